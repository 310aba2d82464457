// Ops get a round of a plan, arrive in it, and leave it again.
#include <algorithm>
#include <chrono>
#include <thread>

#include "engine_call.h"

using hvd::Arrival;
using hvd::BoundPlan;
using hvd::Op;
using hvd::OpState;

namespace {

constexpr uint64_t kWithdrawnWithinNs = 2'000'000'000;

hvd::MemberFields fields_of(const Op &op, const hvd::Mapping &arena) {
  const hvd::Staged &staged = op.staged;
  uint64_t data = staged.data == nullptr ? 0 : arena.offset_of(staged.data);
  uint64_t meta = staged.meta == nullptr ? 0 : arena.offset_of(staged.meta);
  uint64_t reads = staged.reads == nullptr ? 0 : arena.offset_of(staged.reads);
  return {data, staged.bytes, meta, staged.n_meta, staged.window, reads, staged.n_reads};
}

}  // namespace

// The plan at this offset as this rank uses it; the block may have been given to another plan since we last looked.
BoundPlan *hvd_engine::find_plan(uint64_t offset) {
  auto known = plans_.find(offset);
  if (known != plans_.end()) {
    if (known->second->view.is_current()) return known->second.get();
    old_plans_.push_back(std::move(known->second));
    plans_.erase(known);
  }
  auto plan = std::make_unique<BoundPlan>();
  if (!hvd::load_plan(board, offset, &plan->view)) return nullptr;
  plan->member = plan->view.member_of(local_index_);
  if (plan->member == plan->view.n_members) return nullptr;
  if (plans_.size() + old_plans_.size() >= sweep_at_) sweep_plans();
  return (plans_[offset] = std::move(plan)).get();
}

// Nobody tells this process that a plan was removed, so unused ones are looked at whenever their number doubled.
void hvd_engine::sweep_plans() {
  auto is_unused = [](const std::unique_ptr<BoundPlan> &plan) { return plan->refs == 0; };
  old_plans_.erase(std::remove_if(old_plans_.begin(), old_plans_.end(), is_unused), old_plans_.end());
  for (auto at = plans_.begin(); at != plans_.end();)
    at = is_unused(at->second) && !at->second->view.is_current() ? plans_.erase(at) : std::next(at);
  sweep_at_ = std::max<size_t>(64, 2 * (plans_.size() + old_plans_.size()));
}

bool hvd_engine::fits(const Op &op, const BoundPlan &plan) const {
  if (op.pull != plan.view.is_pull()) return false;
  if (op.pull) return op.staged.n_reads == 0 || op.staged.n_reads == plan.view.n_members;
  return op.staged.bytes == plan.view.bytes;
}

hvd_status hvd_engine::bind(hvd_op handle, uint64_t offset, uint64_t *round) {
  Call call(this, handle);
  if (call.op == nullptr) return HVD_E_INVALID;
  hvd_status status = bind_op(call.lock, call.op, offset);
  if (round != nullptr) *round = call.op->round;
  return status;
}

hvd_status hvd_engine::bind_op(Lock &lock, Op *op, uint64_t offset) {
  settle(op);
  if (op->state == OpState::kFailed) return op->result;
  if (op->state == OpState::kGone) return HVD_E_INVALID;
  BoundPlan *plan = find_plan(offset);
  if (plan == nullptr || !fits(*op, *plan)) return HVD_E_INVALID;
  if (op->state != OpState::kUnbound && op->plan != plan) {
    ++plan->refs;  // it outlives an unlock
    bool off = take_off_soon(lock, op);
    --plan->refs;
    if (!off) return op->state == OpState::kFailed ? op->result : HVD_E_INVALID;
  }
  if (op->state == OpState::kUnbound) {
    ++plan->refs;  // from here on the plan outlives the unlock in prepare
    op->plan = plan;
    hvd_status status = prepare(lock, op);
    if (status != HVD_OK) return forget_round(op), status;
    enqueue(op);
  }
  pump(op->plan);
  hvd::ring(slot().bell);  // a thread of this process may wait for this op
  return bind_result(*op);
}

// The input was where the sum went, so there is none.
bool hvd_engine::is_lost(const Op &op) {
  const hvd::Staged &staged = op.staged;
  return op.spent && staged.block == nullptr && staged.data != nullptr && staged.bytes != 0;
}

// Staging was chosen before the plan was known: the window gets the plan's slots, or the data are staged whole after all.
hvd_status hvd_engine::prepare(Lock &lock, Op *op) {
  const hvd::PlanView &view = op->plan->view;
  if (is_lost(*op)) return HVD_E_SPENT;
  if (op->staged.window == 0) return op->spent ? gather_whole(lock, op) : HVD_OK;
  if (op->busy) return HVD_E_INVALID;
  uint64_t bytes = op->staged.bytes;
  uint32_t slots = view.window_slots();
  if (slots != 0 && slots * view.chunk_bytes == op->staged.block_bytes) return HVD_OK;
  stage_free(&op->staged);
  op->staged.bytes = bytes;
  if (slots != 0) return stage_window(op, slots, view.chunk_bytes) ? HVD_OK : HVD_E_MEMORY;
  return stage_whole(op) ? gather_whole(lock, op) : HVD_E_MEMORY;
}

hvd_status hvd_engine::gather_whole(Lock &lock, Op *op) {
  if (op->busy) return HVD_E_INVALID;
  op->busy = true;
  lock.unlock();
  op->segments.gather(0, op->staged.bytes, op->staged.data);
  lock.lock();
  op->busy = op->spent = false;
  return HVD_OK;
}

void hvd_engine::enqueue(Op *op) {
  BoundPlan &plan = *op->plan;
  // The agent may have arrived for this rank while it had joined.
  if (plan.queue.empty())
    plan.next_round = std::max(plan.next_round, plan.view.arrivals[plan.member].load(std::memory_order_seq_cst));
  op->round = plan.next_round++;
  op->state = OpState::kQueued;
  op->next_in = op->next_out = 0;
  if (plan.queue.empty()) backlog_.push_back(&plan);
  plan.queue.push_back(op);
}

hvd_status hvd_engine::bind_result(const Op &op) const {
  if (op.state == OpState::kFailed) return op.result;
  if (op.state == OpState::kComplete) return HVD_OK;
  const hvd::PlanView &view = op.plan->view;
  hvd::Phase phase = op.state == OpState::kArrived ? hvd::phase_of(view, op.round) : hvd::Phase::kMissing;
  if (phase == hvd::Phase::kOpen || phase == hvd::Phase::kComplete) return HVD_OK;
  return hvd::is_below_limit(view, op.round) ? HVD_OK : HVD_MARKED;
}

// Arrives for as many queued ops as the ring and the limit allow, in order of rounds.
void hvd_engine::pump(BoundPlan *plan) {
  if (board.state() != HVD_OK) return;
  while (!plan->queue.empty()) {
    Op *op = plan->queue.front();
    Arrival arrival = hvd::arrive(site(*plan), op->round, plan->member, fields_of(*op, *arena_->mapping));
    if (arrival == Arrival::kMarked || arrival == Arrival::kRingFull) return;
    plan->queue.pop_front();
    op->state = OpState::kArrived;
    add_active(op);
  }
  backlog_.erase(std::remove(backlog_.begin(), backlog_.end(), plan), backlog_.end());
}

void hvd_engine::pump_all() {
  for (size_t i = backlog_.size(); i-- > 0;) pump(backlog_[i]);  // pump() may erase the element it is at
}

void hvd_engine::add_active(Op *op) {
  op->active_at = active_.size();
  active_.push_back(op);
  if (op->staged.window != 0) ++windowed_;
}

void hvd_engine::drop_active(Op *op) {
  if (op->staged.window != 0) --windowed_;
  active_[op->active_at] = active_.back();
  active_[op->active_at]->active_at = op->active_at;
  active_.pop_back();
}

void hvd_engine::drop_queued(Op *op) {
  BoundPlan &plan = *op->plan;
  plan.queue.erase(std::find(plan.queue.begin(), plan.queue.end(), op));
  if (op->round + 1 == plan.next_round) --plan.next_round;
  if (plan.queue.empty()) backlog_.erase(std::remove(backlog_.begin(), backlog_.end(), &plan), backlog_.end());
}

// Takes a queued or arrived op off its round; false when the round has opened.  A round that the net has taken back may have
// holders of chunks until these are done.  Once results were written, the input may be gone: but then all hosts were in it, and only
// the end of the epoch takes it back, which ends the op too.
bool hvd_engine::take_off(Op *op, uint32_t how) {
  if (op->state == OpState::kQueued) {
    drop_queued(op);
  } else {
    if (op->state != OpState::kArrived || op->busy || op->next_out != 0) return false;
    if (!hvd::close_unopened(site(*op->plan), op->round, how)) return false;
    if (op->plan->view.ends_in_net() && hvd::round_has_holder(site(*op->plan), op->round)) return false;
    if (hvd::was_taken_back(op->plan->view, op->round)) op->spent = true;
    drop_active(op);
  }
  forget_round(op);
  return true;
}

void hvd_engine::forget_round(Op *op) {
  --op->plan->refs;
  op->plan = nullptr;
  op->round = 0;
  op->state = OpState::kUnbound;
}

hvd_status hvd_engine::unbind(hvd_op handle) {
  Call call(this, handle);
  Op *op = call.op;
  if (op == nullptr || (op->state != OpState::kQueued && op->state != OpState::kArrived)) return HVD_E_INVALID;
  if (hvd::is_below_limit(op->plan->view, op->round)) return HVD_E_INVALID;
  if (!take_off_soon(call.lock, op)) return HVD_E_INVALID;
  return is_lost(*op) ? HVD_E_SPENT : HVD_OK;
}

bool hvd_engine::take_off_soon(Lock &lock, Op *op) {
  for (uint64_t until = hvd::now_ns() + kWithdrawnWithinNs; !take_off(op, hvd::kWithdrawn);) {
    if (!may_be_withdrawn(*op) || hvd::now_ns() > until) return false;
    lock.unlock();
    std::this_thread::sleep_for(std::chrono::microseconds(50));
    lock.lock();
  }
  return true;
}

// Open here, at or above the limit: the net takes it back, or has and somebody still holds a chunk.  Or a thread fills
// its window.
bool hvd_engine::may_be_withdrawn(const Op &op) const {
  if (op.state != OpState::kArrived || op.next_out != 0 || !op.plan->view.ends_in_net() || board.state() != HVD_OK) return false;
  if (op.busy) return true;
  hvd::Phase phase = hvd::phase_of(op.plan->view, op.round);
  return phase == hvd::Phase::kOpen || phase == hvd::Phase::kWithdrawn;
}
