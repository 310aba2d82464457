// Ring reduce-scatter and allgather, chunk by chunk, in place on the leader's buffer (ChunkState in net_plan.h has the steps).
//
// A step is sent when its predecessor has been received, and only after the successor's credit for the chunk: so what is
// received is always wanted, and goes straight to where it belongs.  A piece is overwritten by the allgather only after its sum
// went around, which it did not before our part of it was taken.  Whoever finishes a piece applies the post-scale.
#include <algorithm>

#include "net.h"
#include "window.h"

using hvd::ChunkState;
using hvd::Frame;
using hvd::FrameType;
using hvd::Lane;
using hvd::NetPeer;
using hvd::NetPlan;
using hvd::NetRound;
using hvd::Sink;

void hvd_net::ring_ready(NetPlan *plan, uint64_t round, NetRound *state, uint32_t chunk) {
  state->chunks[chunk].ready = true;
  if (plan->n_hosts() == 1) {
    scale_alone(plan, state, chunk);
    return ring_finish(plan, round, state, chunk);
  }
  grant(peers_[plan->predecessor()].get(), plan, round, chunk);
  ring_send(plan, round, state, chunk);
}

// A plan that could travel, with all its members on this host.
void hvd_net::scale_alone(NetPlan *plan, NetRound *state, uint32_t chunk) {
  const hvd::PlanView &view = *plan->view;
  auto dtype = static_cast<hvd_dtype>(view.dtype);
  ChunkState &at = state->chunks[chunk];
  if (at.status != 0 || view.postscale == 1) return;
  void *data = state->at(view, chunk);
  hvd_status status = hvd_reduce(dtype, static_cast<hvd_reduce_op>(view.op), 1, view.postscale, &data, &data, 1,
                                 view.chunk_length(chunk) / hvd_dtype_bytes(dtype));
  at.status = static_cast<uint8_t>(-static_cast<int>(status));
}

// Sends the steps that may be sent: those that the ring brought to us come before what begins.
void hvd_net::ring_send(NetPlan *plan, uint64_t round, NetRound *state, uint32_t chunk) {
  ChunkState &at = state->chunks[chunk];
  NetPeer *peer = peers_[plan->successor()].get();
  while (at.ready && at.credit && at.sent < plan->steps() && at.sent <= at.received && !peer->lost) {
    NetPlan::Piece piece = plan->sent_piece(chunk, at.sent);
    hvd::OutFrame out;
    out.plan = plan;
    out.frame.type = FrameType::kRing;
    out.frame.plan_id = plan->view->plan_id;
    out.frame.round = round;
    out.frame.index = chunk;
    out.frame.step = at.sent;
    out.frame.status = at.status;
    out.frame.bytes = at.status == 0 ? static_cast<uint32_t>(piece.bytes) : 0;
    out.data = at.status == 0 ? state->at(*plan->view, chunk) + piece.offset : nullptr;
    // Steps of a chunk must not overtake each other.
    bool alone = at.written == at.sent && at.sent != 0;
    hvd::Urgency urgency = alone ? hvd::Urgency::kForward : hvd::Urgency::kFresh;
    ++at.sent;
    queue(peer->lanes[chunk % peer->lanes.size()].get(), std::move(out), urgency);
  }
}

const char *hvd_net::begin_ring(Lane *lane, NetPlan *plan) {
  const Frame &frame = lane->frame;
  const hvd::PlanView &view = *plan->view;
  if (plan->is_beyond(frame.round)) return nullptr;
  NetRound *state = plan->current(frame.round);
  bool expected = plan->algorithm == hvd::Algorithm::kRing && plan->predecessor() == lane->peer->host && frame.index < view.n_chunks;
  if (!expected || state == nullptr || !state->started) return "a piece that this plan does not expect";
  ChunkState &at = state->chunks[frame.index];
  if (!at.ready || at.receiving || frame.step != at.received || frame.step >= plan->steps()) return "a piece out of turn";
  NetPlan::Piece piece = plan->received_piece(frame.index, frame.step);
  if (frame.bytes != (frame.status == 0 ? piece.bytes : 0)) return "a piece of the wrong size";
  at.receiving = true;
  if (frame.status != 0) at.status = frame.status;
  if (at.status != 0 || piece.bytes == 0) return nullptr;
  uint32_t reductions = plan->n_hosts() - 1;
  lane->sink.into = frame.step < reductions ? Sink::Into::kReduce : Sink::Into::kPlace;
  lane->sink.post = frame.step + 1 == reductions ? view.postscale : 1;
  lane->sink.at = state->at(view, frame.index) + piece.offset;
  lane->sink.plan = plan;
  return nullptr;
}

void hvd_net::end_ring(Lane *lane, NetPlan *plan) {
  uint64_t round = lane->frame.round;
  uint32_t chunk = lane->frame.index;
  NetRound *state = plan->current(round);
  if (state == nullptr || chunk >= state->chunks.size() || !state->chunks[chunk].receiving) return;
  state->chunks[chunk].receiving = false;
  ++state->chunks[chunk].received;
  ring_send(plan, round, state, chunk);
  ring_finish(plan, round, state, chunk);
}

void hvd_net::ring_written(NetPlan *plan, uint64_t round, uint32_t chunk) {
  NetRound *state = plan->current(round);
  if (state == nullptr) return;
  ++state->chunks[chunk].written;
  ring_finish(plan, round, state, chunk);
}

void hvd_net::ring_finish(NetPlan *plan, uint64_t round, NetRound *state, uint32_t chunk) {
  ChunkState &at = state->chunks[chunk];
  if (at.done || !at.ready || at.received != plan->steps() || at.written != plan->steps()) return;
  at.done = true;
  if (at.status != 0)
    state->status = at.status;
  else
    copy_to_members(plan, round, state, chunk * plan->view->chunk_bytes, plan->view->chunk_length(chunk));
  if (state->has_windows) hvd::publish_carried(site(plan), round, chunk, at.status);
  if (++state->n_done == state->chunks.size()) complete(plan, round, state);
}

const char *hvd_net::got_ring_credit(NetPeer *peer, NetPlan *plan, const Frame &frame) {
  bool expected = !plan->view->is_pull() && plan->successor() == peer->host && frame.index < plan->view->n_chunks;
  if (expected && plan->is_beyond(frame.round)) return nullptr;
  NetRound *state = expected ? plan->find_round(frame.round) : nullptr;
  if (state == nullptr || state->chunks[frame.index].credit) return "a credit that this plan does not expect";
  state->chunks[frame.index].credit = true;
  if (state->started)
    ring_send(plan, frame.round, state, frame.index);
  else
    note_wanted(plan, frame.round, state);
  return nullptr;
}
