// What a thread of this rank does for open rounds: chunks of its own op first, then of any op of this rank.
#include <algorithm>

#include "engine_call.h"

using hvd::BoundPlan;
using hvd::Op;
using hvd::OpState;

namespace {

constexpr uint32_t kTargets = 8;

}  // namespace

// Rounds with a chunk to claim, those of `first` before others.  Settles what it passes, so that entries become free.
uint32_t hvd_engine::find_targets(Op *first, Target *targets) {
  uint32_t n = 0;
  auto consider = [&](const Op &op) {
    if (op.state == OpState::kArrived && n < kTargets && hvd::is_claimable(op.plan->view, op.round)) {
      targets[n++] = {op.plan, op.round};
      ++op.plan->refs;
    }
  };
  consider(*first);
  if (n != 0) return n;
  for (size_t i = 0; i < active_.size() && n < kTargets;) {
    Op *op = active_[i];
    settle(op);
    if (i >= active_.size() || active_[i] != op) continue;  // it was dropped, another op is at its place
    consider(*op);
    ++i;
  }
  return n;
}

uint32_t hvd_engine::help_with(const Target &target, uint32_t most_chunks) {
  const BoundPlan &plan = *target.plan;
  hvd::End end = hvd::end_of(plan.view, plan.member);
  uint32_t helped = 0;
  while (helped < most_chunks && hvd::help_round(site(plan), arenas_, claim_slots_, target.round, end)) ++helped;
  return helped;
}

bool hvd_engine::help_some(Lock &lock, Op *first, uint32_t most_chunks) {
  Target targets[kTargets];
  uint32_t n = most_chunks == 0 ? 0 : find_targets(first, targets), helped = 0;
  if (n == 0) return false;
  lock.unlock();
  for (uint32_t i = 0; i < n; ++i)
    helped += help_with(targets[i], most_chunks - helped);
  lock.lock();
  for (uint32_t i = 0; i < n; ++i) --targets[i].plan->refs;
  return helped != 0;
}
