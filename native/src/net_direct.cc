// Direct exchange, for small payloads and barriers: each host sends its partial sum to all others and adds up all of them in
// ring order, so that all end with the same bits.
//
// A host keeps what it needs of its own part for the others in a copy, so a round may be complete here while a slow peer has
// not taken our part yet.  A contribution spends its sender's tokens until the round has begun here: from then on what it
// takes is bounded by what local ranks have submitted.
#include <cstring>

#include "net.h"

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

// What came too early is taken over, and who asks for credit gets it.
void hvd_net::direct_started(NetPlan *plan, uint64_t round, NetRound *state) {
  for (uint32_t place = 0; place < plan->n_hosts(); ++place) {
    NetPeer *peer = peers_[plan->hosts[place]].get();
    Contribution &from = state->from[place];
    if (from.parked) {
      from.parked = false;
      info_.parked_bytes -= plan->view->bytes;
      give_back(peer, hvd::kTokenOverhead + (from.status == 0 ? plan->view->bytes : 0));
    }
    if (state->asks[place] && !from.here) grant(peer, plan, round, 0);
    state->asks[place] = false;
  }
}

// Our part is complete: it goes to all others.
void hvd_net::direct_ready(NetPlan *plan, uint64_t round, NetRound *state) {
  const hvd::PlanView &view = *plan->view;
  hvd::OutFrame out;
  out.plan = plan;
  out.frame.type = FrameType::kEager;
  out.frame.plan_id = view.plan_id;
  out.frame.round = round;
  out.frame.status = state->status;
  if (state->status == 0 && view.bytes != 0 && plan->n_hosts() > 1) {
    out.frame.bytes = static_cast<uint32_t>(view.bytes);
    out.owned = std::make_shared<hvd::Bytes>(view.bytes);
    std::memcpy(out.owned->at(), state->leader, view.bytes);
    out.data = out.owned->at();
  }
  for (uint32_t host : plan->hosts)
    if (host != spec_.my_host) send_eager(peers_[host].get(), out);
  state->own_sent = true;
  state->in_flight.begin(&direct_in_flight_);
  direct_finish(plan, round, state);
}

void hvd_net::direct_finish(NetPlan *plan, uint64_t round, NetRound *state) {
  if (!state->own_sent || state->n_here + 1 != plan->n_hosts()) return;
  for (const Contribution &from : state->from)
    if (from.status != 0) state->status = from.status;
  if (state->status == 0 && plan->view->bytes != 0) {
    direct_reduce(plan, state);
    copy_to_members(plan, round, state, 0, plan->view->bytes);
  }
  complete(plan, round, state);
}

void hvd_net::direct_reduce(NetPlan *plan, NetRound *state) {
  const hvd::PlanView &view = *plan->view;
  auto dtype = static_cast<hvd_dtype>(view.dtype);
  const void *in[hvd::kMaxDirectHosts];
  void *out[hvd::kMaxDirectHosts] = {};
  for (uint32_t place = 0; place < plan->n_hosts(); ++place)
    in[place] = place == plan->me ? state->leader : state->from[place].data->at();
  out[plan->me] = state->leader;
  hvd_status status = hvd_reduce(dtype, static_cast<hvd_reduce_op>(view.op), 1, view.postscale, in, out, plan->n_hosts(),
                                 view.bytes / hvd_dtype_bytes(dtype));
  if (status != HVD_OK) state->status = static_cast<uint8_t>(-static_cast<int>(status));
}

const char *hvd_net::check_eager(NetPeer *peer, NetPlan *plan, const Frame &frame) const {
  if (!plan->direct || plan->place_of(peer->host) == plan->n_hosts()) return "a sum that this plan does not expect";
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
    direct_finish(plan, frame.round, state);
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
  NetRound *state = plan->direct && place != plan->n_hosts() ? plan->find_round(frame.round) : nullptr;
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

// The peer's part of the round has begun: what waits for tokens may go without.  It may have gone already.
const char *hvd_net::got_direct_credit(NetPeer *peer, NetPlan *plan, const Frame &frame) {
  auto found = peer->waiting_for.find({frame.plan_id, frame.round});
  if (found == peer->waiting_for.end()) return nullptr;
  auto waiting = peer->waiting.find(found->second);
  hvd::OutFrame out = std::move(waiting->second);
  out.frame.step = 1;
  --plan->waiting;
  peer->waiting.erase(waiting);
  peer->waiting_for.erase(found);
  queue(peer->lanes[0].get(), std::move(out), hvd::Urgency::kForward);
  return nullptr;
}
