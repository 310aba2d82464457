// Rounds that never finish, because somebody somewhere does not arrive.  They are taken back, so that who waits in them can leave.
//
// Three may say so: the control plane, when a name means something else from a round on (hvd_net_plan_limit); a host whose board is
// closed, on which nobody arrives any more, when data come for a round that its members are not all in; a host that misses the
// part of a peer that has departed with a goodbye.  The last two tell all hosts of the plan (GIVE_UP).
//
// A round is taken back in this order: the claim word is closed, what refers to members' memory is dropped, the hold ends.  What peers
// still send for it is ignored.  Pull rounds are only closed: data that others may read hurt nobody.
#include <algorithm>

#include "net.h"

using hvd::Frame;
using hvd::NetPeer;
using hvd::NetPlan;
using hvd::NetRound;

namespace {

constexpr auto kSeqCst = std::memory_order_seq_cst;

bool have_locals_arrived(const hvd::PlanView &view, uint64_t round) {
  for (uint32_t m = 0; m < view.n_members; ++m)
    if (view.is_here[m] && view.arrivals[m].load(kSeqCst) <= round) return false;
  return true;
}

bool has_a_local_arrived(const hvd::PlanView &view, uint64_t round) {
  for (uint32_t m = 0; m < view.n_members; ++m)
    if (view.is_here[m] && view.arrivals[m].load(kSeqCst) > round) return true;
  return false;
}

bool is_received(const NetPlan &plan, const NetRound &state) {
  return std::all_of(state.chunks.begin(), state.chunks.end(),
                     [&](const hvd::ChunkState &chunk) { return chunk.received == plan.steps(); });
}

}  // namespace

void hvd_net::withdraw(NetPlan *plan, uint64_t limit) {
  if (limit >= plan->limit) return;
  plan->limit = limit;
  uint64_t lap = plan->slots.size();
  if (plan->view->is_pull()) {
    for (auto &slot : plan->slots)
      for (uint64_t round : {slot.round, slot.round + lap}) withdraw_pull(plan, round);
    return;
  }
  for (auto &slot : plan->slots) {
    if (slot.round >= limit) withdraw_round(plan, slot.round, &slot.now);
    if (slot.round + lap >= limit) withdraw_round(plan, slot.round + lap, &slot.next);
  }
  drop_pieces(plan);
  drop_waiting(plan);
  auto &reducing = plan->reducing;
  reducing.erase(std::remove_if(reducing.begin(), reducing.end(), [&](uint64_t round) { return round >= limit; }), reducing.end());
  for (auto &slot : plan->slots) {  // after what was to be sent from members' memory is gone
    if (slot.round < limit || slot.now == nullptr) continue;
    forget_round(plan, slot.round, slot.now.get());
    slot.now.reset();
  }
  hvd::ring_members(site(plan));
}

// Opened by somebody who read the limit before it was there.
void hvd_net::withdraw_unstarted(NetPlan *plan, uint64_t round) {
  uint64_t word = plan->view->entry(round).claim.load(kSeqCst);
  if (hvd::claim_round(word) != round || hvd::claim_closed(word)) return;
  hvd::close_claims(site(plan), round, hvd::kTakenBack);
  hvd::ring_members(site(plan));
}

void hvd_net::withdraw_round(NetPlan *plan, uint64_t round, std::unique_ptr<NetRound> *state) {
  withdraw_unstarted(plan, round);
  if (*state == nullptr) return;
  for (Lane *lane : lanes_)
    if (lane->sink.plan == plan && lane->frame.round == round) lane->sink = hvd::Sink{};
  if ((*state)->started) return;  // its hold ends later
  forget_round(plan, round, state->get());
  state->reset();
}

void hvd_net::withdraw_pull(NetPlan *plan, uint64_t round) {
  if (round < plan->limit || !has_a_local_arrived(*plan->view, round)) return;
  hvd::close_unopened(site(plan), round, hvd::kWithdrawn);
}

void hvd_net::drop_pieces(NetPlan *plan) {
  std::vector<hvd::OutFrame> dropped;
  for (Lane *lane : lanes_)
    if (!lane->drop_pieces(plan, plan->limit, &dropped)) must_drop_ = true;
  plan->unwritten -= static_cast<uint32_t>(dropped.size());
}

void hvd_net::drop_waiting(NetPlan *plan) {
  for (auto &peer : peers_) {
    if (peer == nullptr) continue;
    for (auto at = peer->waiting.begin(); at != peer->waiting.end();) {
      const hvd::OutFrame &out = at->second;
      bool goes = out.plan == plan && out.frame.round >= plan->limit;
      if (goes) peer->waiting_for.erase({out.frame.plan_id, out.frame.round}), --plan->waiting;
      at = goes ? peer->waiting.erase(at) : std::next(at);
    }
  }
}

// All that the peer had to say was read.
void hvd_net::note_departure(NetPeer *peer) {
  if (peer->departed) return;
  for (auto &lane : peer->lanes)
    if (!lane->eof) return;
  peer->departed = any_departed_ = true;
  doubt_all();
}

void hvd_net::doubt_all() {
  for (auto &[id, plan] : plans_)
    for (auto &slot : plan->slots)
      if (slot.now != nullptr) doubt(plan.get(), slot.round);
}

// Looks at rounds that may never finish, where nobody else looks at one.
bool hvd_net::resolve_doubts() {
  if (!dead_ && !closed_ && board_->view.state() == HVD_E_CLOSED) {
    closed_ = true;
    doubt_all();
  }
  std::vector<std::pair<uint64_t, uint64_t>> doubts;
  doubts.swap(doubts_);
  for (auto [id, round] : doubts) {
    auto found = dead_ ? plans_.end() : plans_.find(id);
    if (found == plans_.end()) continue;
    NetPlan *plan = found->second.get();
    look(plan);
    if (round < plan->limit && never_finishes(plan, round)) give_up(plan, round);
  }
  return !doubts.empty();
}

bool hvd_net::never_finishes(NetPlan *plan, uint64_t round) {
  const hvd::PlanView &view = *plan->view;
  const NetRound *state = plan->peek(round);
  if (state == nullptr) return false;
  if (closed_ && state->has_foreign_data() && !have_locals_arrived(view, round)) return true;
  return any_departed_ && misses_departed(*plan, *state);
}

bool hvd_net::misses_departed(const NetPlan &plan, const NetRound &state) const {
  auto departed = [&](uint32_t host) { return host != spec_.my_host && peers_[host]->departed; };
  if (plan.view->is_pull()) {
    for (uint32_t m = 0; m < plan.view->n_members; ++m)
      if (departed(plan.member_hosts[m]) && !state.arriving[m].is_complete() && !state.arriving[m].arrived) return true;
    return false;
  }
  for (uint32_t place = 0; place < plan.hears.size(); ++place)
    if (plan.hears[place] && departed(plan.hosts[place]) && !state.from[place].here) return true;
  return !plan.is_eager() && departed(plan.predecessor()) && !is_received(plan, state);
}

void hvd_net::give_up(NetPlan *plan, uint64_t round) {
  Frame frame;
  frame.type = hvd::FrameType::kGiveUp;
  frame.plan_id = plan->view->plan_id;
  frame.round = round;
  for (uint32_t host : plan->hosts)
    if (host != spec_.my_host) control(peers_[host].get(), frame);
  withdraw(plan, round);
}

const char *hvd_net::got_give_up(const NetPeer *peer, NetPlan *plan, const Frame &frame) {
  if (plan->place_of(peer->host) == plan->n_hosts()) return "news of a plan from a host that takes no part";
  withdraw(plan, frame.round);
  return nullptr;
}
