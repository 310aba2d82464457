// How long the parts of rounds between hosts took.
//
//   wait     from the first arrival on this host until all members here had arrived
//   reduce   from there until the members' data were reduced into the leader's buffer
//   network  from there (pull: from the first member's data) until all that other hosts have was here, without copying
//   copy     writing the result to the other members of this host
#pragma once
#include "time_bucket.h"

namespace hvd {

enum class Algorithm : uint32_t { kDirect, kDoubling, kRing, kPull };
enum class Stage : uint32_t { kWait, kReduce, kNetwork, kCopy };

inline void count_time(hvd_net_times *times, Algorithm algorithm, Stage stage, uint64_t ns) {
  auto a = static_cast<uint32_t>(algorithm), s = static_cast<uint32_t>(stage);
  ++times->counts[a][s][time_bucket(ns)];
  times->sum_ns[a][s] += ns;
}

}  // namespace hvd
