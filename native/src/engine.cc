// Opening and closing an engine.
#include "engine.h"

#include <algorithm>
#include <cstring>

#include "engine_call.h"

using hvd::Op;
using hvd::OpState;

namespace {

constexpr uint64_t kCloseWithinNs = 2'000'000'000;

}  // namespace

hvd_engine::hvd_engine(hvd::BoardView view, hvd_arena *arena, uint32_t local_index, hvd::ArenaMappings arenas)
    : board(std::move(view)),
      arena_(arena),
      local_index_(local_index),
      arenas_(std::move(arenas)),
      claim_slots_(&board.slots[local_index]),
      staging_(arena) {
  arena_->free_lingering();
}

// Other ranks must not wait for what this one does not finish, and must not read what this one reuses.
hvd_engine::~hvd_engine() {
  Lock lock(mutex_);
  closing_ = true;
  hvd::wake_sleepers(slot().bell);
  idle_.wait(lock, [this] { return calls_ == 0; });
  uint64_t until = hvd::now_ns() + kCloseWithinNs;
  for (Op *op : ops_.all()) give_up(lock, op, until);
  for (Published &published : published_)
    if (published.staged.block != nullptr) leave_or_free(&published);
}

void hvd_engine::leave_or_free(Published *published) {
  if (hvd::all_read(published->plan->view, published->round))
    stage_free(&published->staged);
  else
    staging_.leave_behind(published->staged.block);
}

// Ends an op: a round that has opened is finished as far as it depends on us, any other is closed for all members.
void hvd_engine::give_up(Lock &lock, Op *op, uint64_t until_ns) {
  op->cancelled = true;
  for (settle(op); op->state == OpState::kArrived && hvd::now_ns() < until_ns; settle(op)) {
    bool moved = drive_others(lock, nullptr);  // its own window is one of them
    if (help_some(lock, op, 1) || moved) continue;
    hvd::BellSleep sleeper(slot().bell);
    settle(op);
    if (op->state == OpState::kArrived && !hvd::is_claimable(op->plan->view, op->round)) sleeper.sleep(1'000'000);
  }
  if (op->state != OpState::kArrived) return release(op);
  empty_unseen(*op);
  if (op->staged.block != nullptr) staging_.leave_behind(op->staged.block);
}

uint32_t hvd_engine::reason(char *out, uint32_t capacity) const {
  uint32_t bytes = std::min(board.header->reason_bytes.load(std::memory_order_acquire), hvd::kReasonBytes);
  if (capacity == 0 || out == nullptr) return bytes;
  uint32_t copied = std::min(bytes, capacity - 1);
  std::memcpy(out, board.header->reason, copied);
  out[copied] = '\0';
  return bytes;
}
