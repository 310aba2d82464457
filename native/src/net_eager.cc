// Parts of small sums on their way, whatever the order in which hosts send them (net_direct.cc, net_doubling.cc): at most one from each
// host to each other in a round.
//
// A part spends its sender's tokens until the round has begun here: from then on what it takes is bounded by what local ranks
// have submitted.
#include <cstring>

#include "net.h"

using hvd::Algorithm;
using hvd::Contribution;
using hvd::Frame;
using hvd::FrameType;
using hvd::NetPeer;
using hvd::NetPlan;
using hvd::NetRound;

void hvd_net::grant(NetPeer *peer, NetPlan *plan, uint64_t round, uint32_t chunk) {
  Frame credit;
  credit.type = FrameType::kCredit;
  credit.plan_id = plan->view->plan_id;
  credit.round = round;
  credit.index = chunk;
  control(peer, credit);
}

// What came too early is taken over.  Who asks for credit gets it, and who is first to give learns that we wait: nothing else would
// tell it that the round has begun somewhere.
void hvd_net::eager_started(NetPlan *plan, uint64_t round, NetRound *state) {
  for (uint32_t place = 0; place < plan->n_hosts(); ++place) {
    NetPeer *peer = peers_[plan->hosts[place]].get();
    Contribution &from = state->from[place];
    if (from.parked) {
      from.parked = false;
      info_.parked_bytes -= plan->view->bytes;
      give_back(peer, hvd::kTokenOverhead + (from.status == 0 ? plan->view->bytes : 0));
    }
    if ((state->asks[place] || plan->waits_for(place)) && !from.here) grant(peer, plan, round, 0);
    state->asks[place] = false;
  }
}

// All members here are in: our part may travel.
void hvd_net::eager_ready(NetPlan *plan, uint64_t round, NetRound *state) {
  state->own_ready = true;
  state->in_flight.begin(&eager_in_flight_);
  if (plan->algorithm == Algorithm::kDirect) direct_send(plan, round, *state);
  eager_go_on(plan, round, state);
}

void hvd_net::eager_go_on(NetPlan *plan, uint64_t round, NetRound *state) {
  if (plan->algorithm == Algorithm::kDirect)
    direct_finish(plan, round, state);
  else
    doubling_go_on(plan, round, state);
}

// A copy of what the leader's buffer holds now, or why it holds nothing.
hvd::OutFrame hvd_net::part_of(NetPlan *plan, uint64_t round, const NetRound &state) const {
  const hvd::PlanView &view = *plan->view;
  hvd::OutFrame out;
  out.plan = plan;
  out.frame.type = FrameType::kEager;
  out.frame.plan_id = view.plan_id;
  out.frame.round = round;
  out.frame.status = state.status;
  if (state.status != 0 || view.bytes == 0) return out;
  out.frame.bytes = static_cast<uint32_t>(view.bytes);
  out.owned = std::make_shared<hvd::Bytes>(view.bytes);
  std::memcpy(out.owned->at(), state.leader, view.bytes);
  out.data = out.owned->at();
  return out;
}

const char *hvd_net::check_eager(NetPeer *peer, NetPlan *plan, const Frame &frame) const {
  if (!plan->hears_from(plan->place_of(peer->host))) return "a sum that this plan does not expect";
  return frame.bytes != (frame.status == 0 ? plan->view->bytes : 0) ? "a sum of the wrong size" : nullptr;
}

const char *hvd_net::got_eager(NetPeer *peer, NetPlan *plan, const Frame &frame, hvd::SharedBytes data) {
  const char *wrong = check_eager(peer, plan, frame);
  if (wrong != nullptr) return wrong;
  if (plan->is_beyond(frame.round)) return give_back_of(peer, frame), nullptr;
  NetRound *state = plan->find_round(frame.round);
  if (state == nullptr) return "a sum for a round that cannot be open";
  Contribution &from = state->from[plan->place_of(peer->host)];
  bool credited = frame.step != 0;
  if (from.here || (credited && !state->started)) return "a sum that was not asked for";
  from.data = std::move(data);
  from.status = frame.status;
  from.here = true;
  ++state->n_here;
  if (state->started) {
    if (!credited) give_back(peer, hvd::token_cost(frame));
    eager_go_on(plan, frame.round, state);
  } else {
    from.parked = true;
    info_.parked_bytes += plan->view->bytes;
    note_wanted(plan, frame.round, state);
  }
  return nullptr;
}

const char *hvd_net::got_want(NetPeer *peer, NetPlan *plan, const Frame &frame) {
  uint32_t place = plan->place_of(peer->host);
  if (plan->is_beyond(frame.round)) return nullptr;
  NetRound *state = plan->hears_from(place) ? plan->find_round(frame.round) : nullptr;
  if (state == nullptr) return "credit is wanted for what cannot be open";
  if (state->from[place].here) return nullptr;
  if (state->started) {
    grant(peer, plan, frame.round, 0);
  } else {
    state->asks[place] = true;
    note_wanted(plan, frame.round, state);
  }
  return nullptr;
}

void hvd_net::note_waited_for(const NetPeer *peer, NetPlan *plan, const Frame &frame) {
  if (plan->is_beyond(frame.round) || !plan->gives_first_to(plan->place_of(peer->host))) return;
  NetRound *state = plan->find_round(frame.round);
  if (state == nullptr || state->started) return;
  state->is_waited_for = true;
  note_wanted(plan, frame.round, state);
}

// The peer's part of the round has begun: what waits for tokens may go without.  It may have gone already, or not be there yet.
const char *hvd_net::got_eager_credit(NetPeer *peer, NetPlan *plan, const Frame &frame) {
  auto found = peer->waiting_for.find({frame.plan_id, frame.round});
  if (found == peer->waiting_for.end()) return note_waited_for(peer, plan, frame), nullptr;
  auto waiting = peer->waiting.find(found->second);
  hvd::OutFrame out = std::move(waiting->second);
  out.frame.step = 1;
  --plan->waiting;
  peer->waiting.erase(waiting);
  peer->waiting_for.erase(found);
  queue(peer->lanes[0].get(), std::move(out), hvd::Urgency::kForward);
  return nullptr;
}
