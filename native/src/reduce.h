// One reduction as the kernels see it, and the kernels by instruction set.
#pragma once
#include <cstdint>

#include "hvd.h"

namespace hvd {

struct Job {
  hvd_dtype dtype;
  hvd_reduce_op op;
  double pre, post;
  const void *const *in;  // nullptr stands for zeros
  void *const *out;       // nullptr: not wanted
  uint32_t n;
  uint64_t count;
  void *scratch;  // Adasum: adasum_scratch_bytes() of memory, else nullptr
};

struct Kernels {
  const char *name;
  bool (*reduce)(const Job &);  // false for a dtype and op that do not go together
  // Whole lines to where a line begins, past the caches, done before any store that follows.
  void (*copy_lines)(char *to, const char *from, uint64_t lines);
};

namespace baseline {
extern const Kernels kKernels;
}
#if defined(__x86_64__)
namespace avx2 {
extern const Kernels kKernels;
}
namespace avx512 {
extern const Kernels kKernels;
}
#endif

// The widest kernels that the processor has and that are not above `wish`: "baseline", "avx2" or "avx512"; anything else is
// no wish.
Kernels choose_kernels(const char *wish);

// Chosen once, by HVD_SIMD.
const Kernels &kernels();

// UINT64_MAX when it does not fit.
uint64_t adasum_scratch_bytes(hvd_dtype dtype, uint32_t n, uint64_t count);

}  // namespace hvd
