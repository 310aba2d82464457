// How long the parts of rounds took: counts by powers of two, so that counting costs a clock and two additions.
//
//   wait     from the first arrival on this host until all members here had arrived
//   reduce   from there until the members' data were reduced into the leader's buffer
//   network  from there (pull: from the first member's data) until all that other hosts have was here, without copying
//   copy     writing the result to the other members of this host
#pragma once
#include <algorithm>
#include <cstdint>

#include "hvd.h"

namespace hvd {

enum class Algorithm : uint32_t { kDirect, kDoubling, kRing, kPull };
enum class Stage : uint32_t { kWait, kReduce, kNetwork, kCopy };

// Bucket b holds what took less than 2^b microseconds of 1024 ns, and not less than half of that.
inline uint32_t time_bucket(uint64_t ns) {
  uint64_t units = ns >> 10;
  uint32_t bits = units == 0 ? 0 : 64 - static_cast<uint32_t>(__builtin_clzll(units));
  return std::min(bits, HVD_NET_BUCKETS - 1u);
}

inline void count_time(hvd_net_times *times, Algorithm algorithm, Stage stage, uint64_t ns) {
  auto a = static_cast<uint32_t>(algorithm), s = static_cast<uint32_t>(stage);
  ++times->counts[a][s][time_bucket(ns)];
  times->sum_ns[a][s] += ns;
}

}  // namespace hvd
