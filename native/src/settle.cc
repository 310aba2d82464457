// What the end of a round, or the end of the epoch, means for an op.
#include <algorithm>

#include "engine_call.h"
#include "window.h"

using hvd::BoundPlan;
using hvd::Op;
using hvd::OpState;
using hvd::Phase;

// Moves an op on as far as the board allows now.  Never waits.
void hvd_engine::settle(Op *op) {
  hvd_status epoch = board.state();
  hvd_status fate = op->cancelled ? HVD_E_CANCELLED : epoch;
  if (op->busy) return;  // its thread settles it when it is through
  if (op->state == OpState::kArrived) {
    settle_arrived(op, epoch);
  } else if (fate != HVD_OK && (op->state == OpState::kUnbound || op->state == OpState::kQueued)) {
    if (op->state == OpState::kQueued) take_off(op, hvd::kCancelled);
    set_failed(op, fate);
  }
}

void hvd_engine::settle_arrived(Op *op, hvd_status epoch) {
  const BoundPlan &plan = *op->plan;
  hvd::open_round(site(plan), op->round);  // the last to arrive may have seen a limit that has been raised since
  bool give_up = epoch != HVD_OK || op->cancelled;
  switch (hvd::phase_of(plan.view, op->round)) {
    case Phase::kComplete:
      return settle_complete(op);
    case Phase::kMissing:
      // All here have arrived and others have not: when an epoch closes, their data may be on the way.
      if (epoch == HVD_E_CLOSED && !op->cancelled && hvd::locals_have_arrived(plan.view, op->round)) return;
      if (give_up && hvd::close_unopened(site(plan), op->round, hvd::kCancelled)) leave_round(op, epoch);
      return;
    case Phase::kWithdrawn:
      if (give_up) leave_round(op, epoch);
      return;
    case Phase::kOpen:
      if (epoch != HVD_E_FAILED) return;
      hvd::close_claims(site(plan), op->round);
      return leave_round(op, epoch);
    case Phase::kCancelled:
      return leave_round(op, epoch);
  }
}

// An op stays arrived until its window is empty, so that whoever passes it can empty it, and until others have read there.
void hvd_engine::settle_complete(Op *op) {
  uint32_t n_chunks = op->plan->view.n_chunks;
  if (op->staged.window != 0) {
    if (op->next_out < n_chunks || !hvd::is_taken(site(*op->plan), op->round, op->plan->member, n_chunks - 1)) return;
  }
  hvd_status status = hvd::status_of(op->plan->view, op->round);
  op->state = OpState::kComplete;
  op->result = op->cancelled ? HVD_E_CANCELLED : status;
  drop_active(op);
  if (!op->pull) mark_read(op);  // the output is in our own memory now
}

// The round is closed to claims.  It is left when no chunk is held any more: until then others may write to our memory.
void hvd_engine::leave_round(Op *op, hvd_status epoch) {
  const BoundPlan &plan = *op->plan;
  if (hvd::round_has_holder(site(plan), op->round)) return;
  if (hvd::phase_of(plan.view, op->round) == Phase::kComplete) return settle_complete(op);
  drop_active(op);
  forget_round(op);
  set_failed(op, epoch != HVD_OK && !op->cancelled ? epoch : HVD_E_CANCELLED);
}

void hvd_engine::set_failed(Op *op, hvd_status status) {
  op->state = OpState::kFailed;
  op->result = status;
  hvd::ring(slot().bell);
}

void hvd_engine::mark_read(Op *op) {
  if (op->read) return;
  op->read = true;
  hvd::mark_read(site(*op->plan), op->round);
}

// The end of an op.  What a pull op published stays until all members have read it.
void hvd_engine::release(Op *op) {
  if (op->state == OpState::kComplete) {
    mark_read(op);
    if (op->pull) published_.push_back({op->plan, op->round, op->staged});
    if (!op->pull) --op->plan->refs;
  }
  if (op->state != OpState::kComplete || !op->pull) stage_free(&op->staged);
  if (op->state != OpState::kComplete && op->plan != nullptr) forget_round(op);
  op->segments.clear();
  op->plan = nullptr;
  op->state = OpState::kGone;
  collect_published();
}

// Looks at a few of them only, so that one slow reader does not make every call long.
void hvd_engine::collect_published() {
  for (size_t looks = std::min<size_t>(published_.size(), 4); looks-- > 0;) {
    Published oldest = published_.front();
    published_.pop_front();
    if (!hvd::all_read(oldest.plan->view, oldest.round)) {
      published_.push_back(oldest);
      continue;
    }
    stage_free(&oldest.staged);
    --oldest.plan->refs;
  }
}

hvd_status hvd_engine::fail(hvd_op handle) {
  Call call(this, handle);
  if (call.op == nullptr) return HVD_E_INVALID;
  if (call.op->state == OpState::kComplete || call.op->state == OpState::kFailed) return HVD_OK;
  call.op->cancelled = true;
  settle(call.op);
  hvd::ring(slot().bell);
  return HVD_OK;
}
