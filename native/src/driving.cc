// Windows of this rank's ops: what the user's memory holds goes in chunk by chunk, results come out (window.h).
#include "engine_call.h"
#include "window.h"

using hvd::Op;
using hvd::OpState;
using hvd::Phase;

namespace {

// What is taken from a leader's window must not change meanwhile: holds the round like a claim does.
class Reading {
 public:
  Reading(const hvd::RoundSite &site, hvd::ClaimSlots &slots, uint64_t round)
      : site_(site), slots_(slots), slot_(slots.acquire()) {
    if (slot_ == nullptr) return;
    slot_->store(hvd::claim_name(site.plan.offset, round), std::memory_order_seq_cst);
    // A leader does not leave a complete round before this member has taken all of it, closed or not.
    is_held_ = !hvd::is_closed(site.plan, round) || hvd::phase_of(site.plan, round) == Phase::kComplete;
  }
  ~Reading() {
    if (slot_ == nullptr) return;
    slot_->store(0, std::memory_order_seq_cst);
    if (site_.board.state() != HVD_OK) hvd::ring_members(site_);  // who leaves the round may sleep until the slot is free
    slots_.release(slot_);
  }
  Reading(const Reading &) = delete;
  Reading &operator=(const Reading &) = delete;
  bool is_held() const { return is_held_; }

 private:
  const hvd::RoundSite site_;
  hvd::ClaimSlots &slots_;
  std::atomic<uint64_t> *slot_;
  bool is_held_ = false;
};

}  // namespace

bool hvd_engine::can_copy_out(const Op &op) const {
  return op.next_out < op.next_in && hvd::chunk_is_done(op.plan->view, op.round, op.next_out);
}

bool hvd_engine::can_copy_in(const Op &op) const {
  if (op.next_in == op.plan->view.n_chunks || op.next_in >= op.next_out + op.staged.window) return false;
  return op.next_in < op.staged.window || hvd::is_taken(site(*op.plan), op.round, op.plan->member, op.next_in - op.staged.window);
}

bool hvd_engine::copy_in(Op *op) {
  if (!can_copy_in(*op)) return false;
  const hvd::PlanView &view = op->plan->view;
  uint32_t chunk = op->next_in;
  char *to = op->staged.data + (chunk % op->staged.window) * view.chunk_bytes;
  op->segments.gather(chunk * view.chunk_bytes, view.chunk_length(chunk), to);
  hvd::publish_filled(site(*op->plan), op->round, op->plan->member, ++op->next_in);
  return true;
}

bool hvd_engine::copy_out(Op *op) {
  if (!can_copy_out(*op)) return false;
  const hvd::PlanView &view = op->plan->view;
  uint32_t source = hvd::source_of(view, op->round, op->plan->member);
  if (source == op->plan->member) return scatter_result(op, source);
  Reading reading(site(*op->plan), claim_slots_, op->round);
  return reading.is_held() && scatter_result(op, source);
}

// Writes the next result to the user's memory.  A leader whose fields are wrong fails the round, so there is none to write.
bool hvd_engine::scatter_result(Op *op, uint32_t source) {
  const hvd::PlanView &view = op->plan->view;
  uint32_t chunk = op->next_out;
  const char *from = hvd::find_chunk(view, arena_of(view, source), view.entry_member(op->round, source), chunk);
  if (from != nullptr) op->segments.scatter(chunk * view.chunk_bytes, view.chunk_length(chunk), from);
  hvd::publish_emptied(site(*op->plan), op->round, op->plan->member, ++op->next_out);
  return true;
}

// Copies one finished chunk out of the window and one fresh chunk in; all that is left of a complete round.  False when there is
// nothing to move in it now, or another thread is at it.  Data that travel go in before the round is open: others may be late.
bool hvd_engine::drive_window(Lock &lock, Op *op) {
  const hvd::PlanView &view = op->plan->view;
  Phase phase = hvd::phase_of(view, op->round);
  bool is_early = phase == Phase::kMissing && view.ends_in_net() && board.state() == HVD_OK;
  bool may_move = phase == Phase::kComplete || phase == Phase::kOpen || is_early;
  if (op->busy || !may_move || !(can_copy_out(*op) || can_copy_in(*op))) return false;
  op->busy = true;
  lock.unlock();
  bool moved = false, again = true;
  while (again) {
    bool out = copy_out(op), in = copy_in(op);
    moved = moved || out || in;
    again = (out || in) && phase == Phase::kComplete;
  }
  lock.lock();
  op->busy = false;
  settle(op);  // others left that to us while it was busy, and some of them may sleep
  hvd::ring(slot().bell);
  return moved;
}

// Windows whose threads left their waits would hold up the peers; `own` has been looked at.  Ops that come and go while one is
// driven are met at the next look.
bool hvd_engine::drive_others(Lock &lock, const Op *own) {
  bool moved = false;
  for (size_t i = 0; windowed_ != 0 && i < active_.size(); ++i)
    if (active_[i] != own && active_[i]->staged.window != 0 && drive_window(lock, active_[i])) moved = true;
  return moved;
}

// This op will not take what is left of its results: a leader must not wait for that.
void hvd_engine::empty_unseen(const Op &op) {
  if (op.staged.window == 0 || op.plan == nullptr || op.next_out == op.plan->view.n_chunks) return;
  hvd::publish_emptied(site(*op.plan), op.round, op.plan->member, op.plan->view.n_chunks);
}
