// Waiting: help what is open, spin, sleep, and hand out what is finished.
#include <algorithm>
#include <sched.h>

#include "engine_call.h"

using hvd::BoundPlan;
using hvd::Op;
using hvd::OpState;

namespace {

constexpr uint32_t kPausesPerLook = 32;
constexpr uint64_t kLongYieldNs = 500'000;      // longer than a peer needs for a chunk
constexpr uint64_t kCrowdedNs = 100'000'000;    // no spinning for so long after a long yield
constexpr uint32_t kChunksPerLook = 16;  // helped in one go before looking at the own op again

}  // namespace

// Shows this op in hvd_rank_info while its thread sleeps.
class hvd_engine::Blocked {
 public:
  Blocked(hvd_engine *engine, Op *op) : engine_(engine), op_(op) {}
  ~Blocked() {
    if (!listed_) return;
    auto &blocked = engine_->blocked_;
    blocked.erase(std::find(blocked.begin(), blocked.end(), op_));
    engine_->show_blocked();
  }
  Blocked(const Blocked &) = delete;
  Blocked &operator=(const Blocked &) = delete;
  void list() {
    if (listed_) return;
    listed_ = true;
    if (op_->blocked_since_ns == 0) op_->blocked_since_ns = hvd::now_ns();
    engine_->blocked_.push_back(op_);
    engine_->show_blocked();
  }

 private:
  hvd_engine *engine_;
  Op *op_;
  bool listed_ = false;
};

void hvd_engine::show_blocked() {
  auto older = [](const Op *a, const Op *b) { return a->blocked_since_ns < b->blocked_since_ns; };
  auto longest = std::min_element(blocked_.begin(), blocked_.end(), older);
  if (longest != blocked_.end()) {
    slot().blocked_tag.store((*longest)->tag, std::memory_order_seq_cst);
    slot().blocked_ns.store((*longest)->blocked_since_ns, std::memory_order_seq_cst);
  }
  slot().blocked.store(static_cast<uint32_t>(blocked_.size()), std::memory_order_seq_cst);
}

hvd_status hvd_engine::wait(hvd_op handle, uint64_t timeout_ns) {
  Call call(this, handle);
  Op *op = call.op;
  if (op == nullptr) return closing_ ? HVD_E_CANCELLED : HVD_E_INVALID;
  bool progress = true;
  hvd_status status = HVD_PENDING;
  while (status == HVD_PENDING && progress) status = attempt(call.lock, op, kChunksPerLook, &progress);
  if (status != HVD_PENDING) return finish(op, status);
  Blocked blocked(this, op);
  uint64_t now = hvd::now_ns(), until = now + timeout_ns, spin_until = now + spin_ns(now);
  for (; status == HVD_PENDING && now < until; now = hvd::now_ns()) {
    if (progress) spin_until = now + spin_ns(now);
    if (now < spin_until) {
      spin(call.lock, op);
      status = attempt(call.lock, op, kChunksPerLook, &progress);
    } else {
      blocked.list();
      status = sleep(call.lock, op, until - now, &progress);
    }
  }
  return finish(op, status);
}

hvd_status hvd_engine::tag(hvd_op handle, uint64_t tag) {
  Call call(this, handle);
  if (call.op == nullptr) return closing_ ? HVD_E_CANCELLED : HVD_E_INVALID;
  call.op->tag = tag;
  show_blocked();
  return HVD_OK;
}

// Looks once more while counted as a sleeper, so that nothing that happens from here on is missed.
hvd_status hvd_engine::sleep(Lock &lock, Op *op, uint64_t at_most_ns, bool *progress) {
  hvd::BellSleep sleeper(slot().bell);
  hvd_status status = attempt(lock, op, kChunksPerLook, progress);
  if (status != HVD_PENDING || *progress) return status;
  lock.unlock();
  sleeper.sleep(at_most_ns);
  lock.lock();
  return HVD_PENDING;
}

// On a core that others keep busy, who offers it gets it back late, but who sleeps is put back as soon as it is woken.
uint64_t hvd_engine::spin_ns(uint64_t now) const { return now < crowded_until_ns_ ? 0 : board.header->spin_ns; }

// Looks for a moment, then offers the core: the rank that we wait for may be queued behind us on it, and would otherwise
// come only when we sleep.
void hvd_engine::spin(Lock &lock, const Op *op) {
  const BoundPlan *plan = op->state == OpState::kArrived ? op->plan : nullptr;
  const hvd::Entry *entry = plan == nullptr ? nullptr : &plan->view.entry(op->round);
  lock.unlock();
  uint64_t claim = entry == nullptr ? 0 : entry->claim.load(std::memory_order_acquire);
  bool changed = false;
  for (uint32_t i = 0; i < kPausesPerLook && !changed; ++i) {
    hvd::cpu_pause();
    changed = entry != nullptr && entry->claim.load(std::memory_order_acquire) != claim;
  }
  uint64_t start = changed ? 0 : hvd::now_ns();
  if (!changed) sched_yield();
  uint64_t end = changed ? 0 : hvd::now_ns();
  lock.lock();
  if (end - start > kLongYieldNs) crowded_until_ns_ = end + kCrowdedNs;
}

// One look at everything: HVD_PENDING, or how the op ended.  *progress: something was moved or reduced.
hvd_status hvd_engine::attempt(Lock &lock, Op *op, uint32_t most_chunks, bool *progress) {
  *progress = false;
  if (closing_) return HVD_E_CANCELLED;
  pump_all();
  settle(op);
  if (op->state == OpState::kGone) return op->result;  // another thread waited for it too
  if (op->state == OpState::kFailed) return op->result;
  if (op->state == OpState::kComplete) return deliver(lock, op);
  if (op->staged.window != 0 && op->state == OpState::kArrived) {
    *progress = drive_window(lock, op);
    most_chunks = 1;
  }
  if (help_some(lock, op, most_chunks)) *progress = true;
  if (!*progress) *progress = drive_others(lock, op);
  return HVD_PENDING;
}

// Writes the output of a complete op, once; a window has written it already.
hvd_status hvd_engine::deliver(Lock &lock, Op *op) {
  if (op->busy) return HVD_PENDING;
  if (!op->delivered && !op->pull && op->result == HVD_OK && op->staged.block != nullptr && op->staged.window == 0) {
    op->busy = true;
    lock.unlock();
    op->segments.scatter(0, op->staged.bytes, op->staged.data);
    lock.lock();
    op->busy = false;
    hvd::ring(slot().bell);
  }
  op->delivered = true;
  return op->result;
}

// What a wait that ended leaves behind: a complete pull op lives on, to be read.
hvd_status hvd_engine::finish(Op *op, hvd_status status) {
  if (status == HVD_PENDING || op->state == OpState::kGone || closing_) return status;
  if (op->pull && status == HVD_OK) {
    op->waited = true;
    return status;
  }
  release(op);
  return status;
}

hvd_status hvd_engine::poll(hvd_op handle) {
  Call call(this, handle);
  if (call.op == nullptr) return closing_ ? HVD_E_CANCELLED : HVD_E_INVALID;
  bool progress = false;
  hvd_status status = attempt(call.lock, call.op, 1, &progress);
  if (status == HVD_PENDING && progress) status = attempt(call.lock, call.op, 0, &progress);
  return status;
}
