// Times are counted by powers of two, so that counting costs a clock and two additions.
#pragma once
#include <algorithm>
#include <cstdint>

#include "hvd.h"

namespace hvd {

// Bucket b holds what took less than 2^b microseconds of 1024 ns, and not less than half of that.
inline uint32_t time_bucket(uint64_t ns) {
  uint64_t units = ns >> 10;
  uint32_t bits = units == 0 ? 0 : 64 - static_cast<uint32_t>(__builtin_clzll(units));
  return std::min(bits, HVD_BUCKETS - 1u);
}

}  // namespace hvd
