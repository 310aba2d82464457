// What a thread of this rank does for open rounds: windows and chunks of its own op first, then of any op of this rank.
#include <algorithm>

#include "engine_call.h"

using hvd::BoundPlan;
using hvd::Op;
using hvd::OpState;

namespace {

constexpr uint32_t kTargets = 8;

bool can_copy_out(const Op &op) {
  return op.next_out < op.next_in && hvd::chunk_is_done(op.plan->view, op.round, op.next_out);
}

bool can_copy_in(const Op &op) {
  return op.next_in < op.plan->view.n_chunks && op.next_in < op.next_out + op.staged.window;
}

bool can_move(const Op &op) { return can_copy_out(op) || can_copy_in(op); }

}  // namespace

// Copies one finished chunk out of the window and one fresh chunk in; runs outside of the lock while the op is busy.
bool hvd_engine::move_window(Op *op) {
  const hvd::PlanView &view = op->plan->view;
  auto place = [&](uint32_t chunk) { return op->staged.data + (chunk % op->staged.window) * view.chunk_bytes; };
  bool moved = false;
  if (can_copy_out(*op)) {
    uint32_t chunk = op->next_out;
    op->segments.scatter(chunk * view.chunk_bytes, view.chunk_length(chunk), place(chunk));
    ++op->next_out;
    moved = true;
  }
  if (can_copy_in(*op)) {
    uint32_t chunk = op->next_in;
    op->segments.gather(chunk * view.chunk_bytes, view.chunk_length(chunk), place(chunk));
    hvd::publish_filled(site(*op->plan), op->round, op->plan->member, ++op->next_in);
    moved = true;
  }
  return moved;
}

// False when there is nothing to move in it now, or another thread is at it.  A complete round's window is emptied.
bool hvd_engine::drive_window(Lock &lock, Op *op) {
  hvd::Phase phase = hvd::phase_of(op->plan->view, op->round);
  bool complete = phase == hvd::Phase::kComplete;
  if (op->busy || !(complete || phase == hvd::Phase::kOpen) || !can_move(*op)) return false;
  op->busy = true;
  lock.unlock();
  while (move_window(op) && complete) {
  }
  lock.lock();
  op->busy = false;
  settle(op);  // others left that to us while it was busy, and some of them may sleep
  hvd::ring(slot().bell);
  return true;
}

// Windows whose threads left their waits would hold up the peers; `own` has been looked at.  Ops that come and go while one is
// driven are met at the next look.
bool hvd_engine::drive_others(Lock &lock, const Op *own) {
  bool moved = false;
  for (size_t i = 0; windowed_ != 0 && i < active_.size(); ++i)
    if (active_[i] != own && active_[i]->staged.window != 0 && drive_window(lock, active_[i])) moved = true;
  return moved;
}

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
