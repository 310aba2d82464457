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

// Each returns false for a dtype and op that do not go together.
namespace baseline {
bool reduce(const Job &job);
}
#if defined(__x86_64__)
namespace avx2 {
bool reduce(const Job &job);
}
namespace avx512 {
bool reduce(const Job &job);
}
#endif

struct Kernels {
  const char *name;
  bool (*reduce)(const Job &);
};

// The widest kernels that the processor has and that are not above `wish`: "baseline", "avx2" or "avx512"; anything else is
// no wish.
Kernels choose_kernels(const char *wish);

// UINT64_MAX when it does not fit.
uint64_t adasum_scratch_bytes(hvd_dtype dtype, uint32_t n, uint64_t count);

}  // namespace hvd
