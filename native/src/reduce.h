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
};

namespace baseline {
bool reduce(const Job &job);
}
namespace avx2 {
bool reduce(const Job &job);
}
namespace avx512 {
bool reduce(const Job &job);
}

}  // namespace hvd
