// Rounds as the net sees them on the board: they open, their chunks become ready, they are completed or dropped.
#include <algorithm>
#include <cstring>

#include "net.h"
#include "neutral.h"
#include "window.h"

using hvd::NetPlan;
using hvd::NetRound;

namespace {

constexpr auto kSeqCst = std::memory_order_seq_cst;
constexpr size_t kMaxRemoved = 1u << 16;  // plans that late frames are told apart from unknown ones by

bool is_open(const hvd::PlanView &view, uint64_t round) {
  uint64_t word = view.entry(round).claim.load(kSeqCst);
  return hvd::claim_round(word) == round && !hvd::claim_closed(word);
}

// Acquires the chunk; pairs with finish_chunk.  A lone member's data are ready as they are, or when they are in its window.
uint64_t ready_word(const hvd::PlanView &view, uint64_t round, uint32_t chunk) {
  if (view.n_claims != 0) return view.ready(round, chunk).load(kSeqCst);
  return hvd::is_filled(view, round, chunk) ? (round + 1) << 8 : 0;
}

uint8_t negated(hvd_status status) { return static_cast<uint8_t>(-static_cast<int>(status)); }

}  // namespace

void hvd_net::insert_plan(std::unique_ptr<NetPlan> plan) {
  NetPlan *added = plan.get();
  uint64_t id = plan->view->plan_id;
  if (!plans_.emplace(id, std::move(plan)).second) return;
  by_signal_[hvd::signal_bit(added->view->offset)].push_back(added);
  unpark(id);
  look(added);
}

hvd_status hvd_net::erase_plan(uint64_t plan_id) {
  auto found = plans_.find(plan_id);
  if (found == plans_.end()) return HVD_OK;  // an earlier call was answered too late
  NetPlan *plan = found->second.get();
  look(plan);
  if (!dead_ && plan->has_work()) return HVD_PENDING;
  for (Lane *lane : lanes_) lane->forget_sink(plan);
  for (auto &slot : plan->slots) {
    if (slot.now != nullptr) forget_round(plan, slot.round, slot.now.get());
    if (slot.next != nullptr) forget_round(plan, slot.round + plan->slots.size(), slot.next.get());
  }
  auto &shared = by_signal_[hvd::signal_bit(plan->view->offset)];
  shared.erase(std::find(shared.begin(), shared.end(), plan));
  removed_.insert(plan_id);
  removed_order_.push_back(plan_id);
  if (removed_order_.size() > kMaxRemoved) removed_.erase(removed_order_.front()), removed_order_.pop_front();
  plans_.erase(found);
  return HVD_OK;
}

// Something changed on the board: rounds that have opened start, chunks that are ready travel.
void hvd_net::look(NetPlan *plan) {
  if (dead_) return;
  if (plan->view->is_pull()) return look_at_pull(plan);
  while (start_round(plan, plan->next_open) || skip_closed(plan)) {
  }
  for (size_t i = plan->reducing.size(); i-- > 0;) {
    uint64_t round = plan->reducing[i];
    if (!look_at_chunks(plan, round, plan->current(round))) continue;
    plan->reducing.erase(plan->reducing.begin() + static_cast<std::ptrdiff_t>(i));
  }
}

// Members here have given this round up; those behind it may still open.
bool hvd_net::skip_closed(NetPlan *plan) {
  bool closed = hvd::is_closed(*plan->view, plan->next_open);
  if (closed) ++plan->next_open;
  return closed;
}

bool hvd_net::start_round(NetPlan *plan, uint64_t round) {
  const hvd::PlanView &view = *plan->view;
  if (plan->is_beyond(round)) return withdraw_unstarted(plan, round), false;
  if (plan->slot(round).round != round || !is_open(view, round) || !hvd::take_net_hold(site(plan), round)) return false;
  NetRound *state = plan->find_round(round);
  if (any_departed_) doubt(plan, round);
  state->started = true;
  state->n_not_ready = view.n_chunks;
  ++plan->next_open;
  state->stage_ns = view.entry(round).first_arrival_ns.load(std::memory_order_relaxed);
  end_stage(*plan, state, hvd::Stage::kWait);
  find_leader(plan, round, state);
  if (plan->is_eager()) eager_started(plan, round, state);
  if (view.n_chunks != 0)
    plan->reducing.push_back(round);
  else
    eager_ready(plan, round, state);
  return true;
}

// Where the sums go: a local member's buffer, or one of our own that changes nothing when no member here has memory.
void hvd_net::find_leader(NetPlan *plan, uint64_t round, NetRound *state) {
  const hvd::PlanView &view = *plan->view;
  if (view.bytes == 0) return;
  uint32_t leader = hvd::leader_of(view, round);
  state->has_windows = hvd::has_window(view, round);
  if (leader < view.n_members) {
    const hvd::EntryMember &member = view.entry_member(round, leader);
    state->slots = member.flags.load(std::memory_order_relaxed) & hvd::kWindowMask;
    uint64_t bytes = state->slots == 0 ? view.bytes : std::min(view.bytes, state->slots * view.chunk_bytes);
    state->leader = hvd::find_data(view, arenas_[view.members[leader]].get(), member, 0, bytes);
    // What is exchanged in one piece has no windows.
    if (state->leader == nullptr || (plan->is_eager() && state->has_windows)) state->status = negated(HVD_E_INVALID);
  } else {
    state->leader = state->zeros = static_cast<char *>(own_->alloc(view.bytes));
    if (state->zeros == nullptr) state->status = negated(HVD_E_MEMORY);
    if (state->zeros != nullptr) hvd::fill_neutral(view, round, state->zeros);
  }
  for (hvd::ChunkState &chunk : state->chunks) chunk.status = state->status;
}

// Nobody here may be there to claim the chunks of ranks that have joined.
void hvd_net::claim_zeros(NetPlan *plan, uint64_t round) {
  while (hvd::help_round(site(plan), arenas_, board_->claim_slots(), round, hvd::End::kLow)) {
  }
}

// Takes up chunks that have become ready; true when all are, and the round may be over then.
bool hvd_net::look_at_chunks(NetPlan *plan, uint64_t round, NetRound *state) {
  const hvd::PlanView &view = *plan->view;
  if (state->zeros != nullptr) claim_zeros(plan, round);
  for (uint32_t c = 0; c < view.n_chunks; ++c) {
    if (state->chunks[c].ready) continue;
    uint64_t word = ready_word(view, round, c);
    if (word >> 8 != round + 1) continue;
    uint8_t status = static_cast<uint8_t>(word & 0xff);
    bool last = --state->n_not_ready == 0;
    if (last && view.n_claims != 0) end_stage(*plan, state, hvd::Stage::kReduce);
    if (plan->is_eager()) {
      state->chunks[c].ready = true;
      if (status != 0) state->status = status;
      if (last) eager_ready(plan, round, state);
    } else {
      if (status != 0) state->chunks[c].status = status;
      ring_ready(plan, round, state, c);
    }
    if (last) return true;
  }
  return false;
}

// The result lies in the leader's buffer; the other members here want it too.  The part begins a chunk.  Who has a window
// takes results from the leader's himself, if that is one too (window.h).
void hvd_net::copy_to_members(NetPlan *plan, uint64_t round, NetRound *state, uint64_t offset, uint64_t bytes) {
  const hvd::PlanView &view = *plan->view;
  if (view.n_members == 1 || bytes == 0) return;
  uint64_t start = hvd::now_ns();
  uint32_t chunk = static_cast<uint32_t>(offset / view.chunk_bytes);
  const char *from = state->at(view, chunk) + offset % view.chunk_bytes;
  for (uint32_t m = 0; m < view.n_members; ++m) {
    const hvd::EntryMember &member = view.entry_member(round, m);
    if ((member.flags.load(std::memory_order_relaxed) & hvd::kZeros) != 0) continue;
    if (state->slots != 0 && hvd::is_windowed(member)) continue;
    const hvd::Mapping *arena = arenas_[view.members[m]].get();
    char *to = hvd::is_windowed(member) ? hvd::find_chunk(view, arena, member, chunk) : hvd::find_data(view, arena, member, offset, bytes);
    if (to == nullptr)
      state->status = negated(HVD_E_INVALID);
    else if (to != from)
      std::memcpy(to, from, bytes);
  }
  state->copy_ns += hvd::now_ns() - start;
}

// A stage ends and the next one begins.
void hvd_net::end_stage(const NetPlan &plan, NetRound *state, hvd::Stage stage) {
  uint64_t now = hvd::now_ns(), all = now > state->stage_ns ? now - state->stage_ns : 0;
  if (stage == hvd::Stage::kNetwork && state->copy_ns != 0) {
    hvd::count_time(&times_, plan.algorithm, hvd::Stage::kCopy, state->copy_ns);
    all -= std::min(all, state->copy_ns);
  }
  hvd::count_time(&times_, plan.algorithm, stage, all);
  state->stage_ns = now;
}

void hvd_net::complete(NetPlan *plan, uint64_t round, NetRound *state) {
  const hvd::PlanView &view = *plan->view;
  uint32_t n_zeros = 0;
  for (uint32_t m = 0; m < view.n_members; ++m)
    n_zeros += (view.entry_member(round, m).flags.load(std::memory_order_relaxed) & hvd::kZeros) != 0 ? 1 : 0;
  if (state->zeros != nullptr) own_->free(state->zeros);
  end_stage(*plan, state, hvd::Stage::kNetwork);
  hvd::complete_round(view, round, state->status);
  for (uint32_t i = 0; i < n_zeros; ++i) hvd::mark_read(site(plan), round);
  hvd::end_net_hold(site(plan), round);
  count_round(*plan);
  advance(plan, round);
}

void hvd_net::count_round(const NetPlan &plan) {
  switch (plan.algorithm) {
    case hvd::Algorithm::kDirect: ++info_.rounds_direct; return;
    case hvd::Algorithm::kDoubling: ++info_.rounds_doubling; return;
    case hvd::Algorithm::kRing: ++info_.rounds_ring; return;
    case hvd::Algorithm::kPull: ++info_.rounds_pull; return;
  }
}

void hvd_net::advance(NetPlan *plan, uint64_t round) {
  hvd::NetSlot &slot = plan->slot(round);
  slot.now = std::move(slot.next);
  slot.round += plan->slots.size();
  if (slot.now != nullptr) note_wanted(plan, slot.round, slot.now.get());
}

// Others have data for a round that has not opened here: joined ranks must be arrived for.  Stores `wanted`, then reads
// `watch_arrivals`; the agent sets that, then arrives for who has joined, which reads `wanted` (all seq_cst).
void hvd_net::note_wanted(NetPlan *plan, uint64_t round, NetRound *state) {
  const hvd::PlanView &view = *plan->view;
  bool is_current = plan->slot(round).round == round;
  if (closed_ && is_current && !view.is_pull()) doubt(plan, round);
  if (view.is_pull() || state->wanted_told || state->started || !is_current || !state->has_foreign_data()) return;
  state->wanted_told = true;
  if (view.header->wanted.load(kSeqCst) < round + 1) view.header->wanted.store(round + 1, kSeqCst);
  if (board_->view.header->watch_arrivals.load(kSeqCst) == 0) return;
  for (uint32_t m = 0; m < view.n_members; ++m)
    if (view.arrivals[m].load(kSeqCst) > round) return;
  push_event(HVD_NET_WANTED, spec_.my_host, view.plan_id, round, "");
}

void hvd_net::fail_chunk(NetPlan *plan, uint64_t round, uint32_t chunk, hvd_status status) {
  NetRound *state = plan->current(round);
  if (state != nullptr && chunk < state->chunks.size()) state->chunks[chunk].status = negated(status);
}

// The plan goes, or the epoch ends: nothing of this round is ours any more.
void hvd_net::forget_round(NetPlan *plan, uint64_t round, NetRound *state) {
  if (state->zeros != nullptr) own_->free(state->zeros);
  if (state->started) hvd::end_net_hold(site(plan), round);
  for (size_t place = 0; place < state->from.size(); ++place) {
    hvd::Contribution &from = state->from[place];
    if (!from.parked) continue;
    info_.parked_bytes -= plan->view->bytes;
    if (!dead_) give_back(peers_[plan->hosts[place]].get(), hvd::kTokenOverhead + (from.status == 0 ? plan->view->bytes : 0));
  }
  std::vector<void *> blocks;
  for (hvd::Arriving &arriving : state->arriving)
    if (arriving.block != nullptr && (dead_ || arriving.arrived))
      blocks.push_back(arriving.block);
    else if (arriving.block != nullptr)
      own_->free(arriving.block);
  own_->linger(std::move(blocks));
}

// Frames that are half written are finished from a copy, payloads that are half read go nowhere: no member's memory is touched
// after this, and members that leave failed rounds find no hold.
void hvd_net::drop_all() {
  dead_ = true;
  must_drop_ = false;
  for (Lane *lane : lanes_) {
    lane->forget_sink(nullptr);
    if (!lane->drop_output()) lane->close();
  }
  for (auto &peer : peers_) {
    if (peer == nullptr) continue;
    peer->waiting.clear();
    peer->waiting_for.clear();
    peer->streams.clear();
  }
  for (auto &[id, plan] : plans_) drop_plan(plan.get());
  parked_.clear();
  info_.parked_bytes = 0;
  for (auto &[lane, out] : last_words_) queue(lane, std::move(out), hvd::Urgency::kControl);
  last_words_.clear();
}

void hvd_net::drop_plan(NetPlan *plan) {
  for (auto &slot : plan->slots) {
    if (slot.now != nullptr) forget_round(plan, slot.round, slot.now.get());
    if (slot.next != nullptr) forget_round(plan, slot.round + plan->slots.size(), slot.next.get());
    slot.now.reset();
    slot.next.reset();
  }
  for (auto &lingering : plan->lingering) own_->linger(std::move(lingering.blocks));
  plan->lingering.clear();
  plan->reducing.clear();
  plan->unwritten = plan->waiting = 0;
}
