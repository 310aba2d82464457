// How long the stages of rounds took whose members are all on this host.
//
//   wait     from the first to the last arrival
//   reduce   from there until the last chunk was reduced
//
// Counts by powers of two on the board, of one round in kTimed.  Rounds between hosts are timed by the net (net_times.h).
#pragma once
#include "round.h"
#include "time_bucket.h"

namespace hvd {

enum class BoardStage : uint32_t { kWait, kReduce };

inline bool is_timed(const PlanView &plan, uint64_t round) { return round % kTimed == 0 && !plan.is_remote(); }

inline void count_time(const RoundSite &site, BoardStage stage, uint64_t since_ns, uint64_t until_ns) {
  uint64_t ns = until_ns > since_ns ? until_ns - since_ns : 0;
  auto s = static_cast<uint32_t>(stage);
  BoardTimes &times = site.board.header->times;
  times.counts[s][time_bucket(ns)].fetch_add(1, std::memory_order_relaxed);
  times.sum_ns[s].fetch_add(ns, std::memory_order_relaxed);
}

}  // namespace hvd
