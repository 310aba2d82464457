// Pull rounds, data out: when a member of this host has arrived, its meta and what other hosts' members may read of its data go
// to their hosts, as tokens allow.  The round is held while frames refer to the member's arena.
#include <algorithm>
#include <cstring>

#include "net.h"

using hvd::EntryMember;
using hvd::Frame;
using hvd::FrameType;
using hvd::NetPeer;
using hvd::NetPlan;
using hvd::NetRound;
using hvd::PullStream;

namespace {

constexpr auto kSeqCst = std::memory_order_seq_cst;
constexpr auto kRelaxed = std::memory_order_relaxed;

// What a member published, checked against its arena; pointers stay valid as long as the mapping.
struct Published {
  const char *data = nullptr, *meta = nullptr;
  const hvd_span *reads = nullptr;
  uint64_t data_bytes = 0;
  uint32_t n_meta = 0;
};

bool find(const hvd::Mapping &arena, uint64_t offset, uint64_t bytes, uint64_t align, const char **at) {
  if (offset > arena.bytes() || bytes > arena.bytes() - offset || offset % align != 0) return false;
  *at = arena.base() + offset;
  return true;
}

bool read_fields(const hvd::PlanView &view, const hvd::Mapping &arena, const EntryMember &fields, Published *out) {
  const char *reads = nullptr;
  uint32_t n_reads = fields.n_reads.load(kRelaxed);
  out->data_bytes = fields.data_bytes.load(kRelaxed);
  out->n_meta = fields.n_meta.load(kRelaxed);
  if (out->n_meta > hvd::kMaxMeta || (n_reads != 0 && n_reads != view.n_members)) return false;
  if (!find(arena, fields.data_offset.load(kRelaxed), out->data_bytes, 1, &out->data)) return false;
  if (!find(arena, fields.meta_offset.load(kRelaxed), out->n_meta * sizeof(int64_t), 8, &out->meta)) return false;
  if (!find(arena, fields.reads_offset.load(kRelaxed), n_reads * sizeof(hvd_span), 8, &reads)) return false;
  if (n_reads != 0) out->reads = reinterpret_cast<const hvd_span *>(reads);
  return true;
}

// The union of what the members on `host` may read, in order, without overlaps; false when a span lies outside of the data.
bool spans_for(const NetPlan &plan, const Published &from, uint32_t host, std::vector<hvd_span> *out) {
  std::vector<hvd_span> spans;
  if (from.reads == nullptr) spans.push_back({0, from.data_bytes});
  for (uint32_t m = 0; from.reads != nullptr && m < plan.member_hosts.size(); ++m)
    if (plan.member_hosts[m] == host) spans.push_back(from.reads[m]);
  std::sort(spans.begin(), spans.end(), [](const hvd_span &a, const hvd_span &b) { return a.offset < b.offset; });
  for (const hvd_span &span : spans) {
    if (span.offset > from.data_bytes || span.bytes > from.data_bytes - span.offset) return false;
    if (span.bytes == 0) continue;
    uint64_t end = span.offset + span.bytes;
    if (!out->empty() && span.offset <= out->back().offset + out->back().bytes)
      out->back().bytes = std::max(end, out->back().offset + out->back().bytes) - out->back().offset;
    else
      out->push_back(span);
  }
  return true;
}

PullStream stream_of(NetPlan *plan, uint64_t round, uint32_t member) {
  PullStream stream;
  stream.plan = plan;
  stream.meta.type = FrameType::kMeta;
  stream.meta.plan_id = plan->view->plan_id;
  stream.meta.round = round;
  stream.meta.index = member;
  return stream;
}

bool fill(PullStream *stream, const Published &from, uint32_t host) {
  std::vector<hvd_span> spans;
  if (!spans_for(*stream->plan, from, host, &spans)) return false;
  stream->meta.step = from.n_meta;
  stream->meta.value = from.data_bytes;
  if (from.n_meta != 0) stream->parts.push_back({from.meta, 0, from.n_meta * sizeof(int64_t), 0});
  for (const hvd_span &span : spans) stream->parts.push_back({from.data + span.offset, span.offset, span.bytes, 1});
  for (const PullStream::Part &part : stream->parts) stream->meta.extra += part.bytes;
  return true;
}

}  // namespace

void hvd_net::look_at_pull(NetPlan *plan) {
  const hvd::PlanView &view = *plan->view;
  free_read(plan);
  if (plan->late) arrive_late(plan);
  for (uint32_t m = 0; m < view.n_members; ++m)
    while (view.is_here[m] && plan->published[m] < view.arrivals[m].load(kSeqCst) && publish(plan, plan->published[m], m)) {
    }
}

// Acquires the member's fields by the arrivals that were read before; pairs with arrive().
bool hvd_net::publish(NetPlan *plan, uint64_t round, uint32_t member) {
  const hvd::PlanView &view = *plan->view;
  if (!hvd::is_below_limit(view, round) || plan->slot(round).round != round) return false;
  if (hvd::is_closed(view, round)) return ++plan->published[member], true;  // given up here: nothing leaves
  NetRound *state = plan->find_round(round);
  if (!state->started && !hvd::take_net_hold(site(plan), round)) return false;
  if (any_departed_) doubt(plan, round);
  state->started = true;
  if (state->stage_ns == 0) state->stage_ns = hvd::now_ns();
  ++plan->published[member];
  ++state->n_published;
  ++state->n_sending;  // keeps the round until all streams are there
  Published from;
  bool readable = read_fields(view, *arenas_[view.members[member]], view.entry_member(round, member), &from);
  for (uint32_t host : plan->hosts) {
    if (host == spec_.my_host) continue;
    PullStream stream = stream_of(plan, round, member);
    if (!readable || !fill(&stream, from, host)) {
      stream.parts.clear();
      stream.meta.status = static_cast<uint8_t>(-HVD_E_INVALID);
    }
    ++state->n_sending;
    ++plan->waiting;
    peers_[host]->streams.push_back(std::move(stream));
    send_streams(peers_[host].get());
  }
  pull_sent(plan, round);
  return true;
}

// A member's frames keep their order: one lane, whatever the round.
bool hvd_net::send_part(NetPeer *peer, PullStream *stream, const Frame &frame, const char *data) {
  uint64_t cost = hvd::token_cost(frame);
  if (peer->tokens < cost) return false;
  peer->tokens -= cost;
  hvd::OutFrame out;
  out.plan = stream->plan;
  out.frame = frame;
  out.data = data;
  ++stream->plan->current(frame.round)->n_sending;
  queue(peer->lanes[frame.index % peer->lanes.size()].get(), std::move(out), hvd::Urgency::kFresh);
  return true;
}

// True when all of the stream is on its way.
bool hvd_net::send_stream(NetPeer *peer, PullStream *stream) {
  if (!stream->announced && !send_part(peer, stream, stream->meta, nullptr)) return false;
  stream->announced = true;
  while (stream->next_part < stream->parts.size()) {
    PullStream::Part &part = stream->parts[stream->next_part];
    Frame frame;
    frame.type = FrameType::kData;
    frame.plan_id = stream->meta.plan_id;
    frame.round = stream->meta.round;
    frame.index = stream->meta.index;
    frame.step = part.step;
    frame.value = part.offset;
    frame.bytes = static_cast<uint32_t>(std::min<uint64_t>(part.bytes, hvd::kMaxDataBytes));
    if (!send_part(peer, stream, frame, part.at)) return false;
    part.at += frame.bytes;
    part.offset += frame.bytes;
    part.bytes -= frame.bytes;
    if (part.bytes == 0) ++stream->next_part;
  }
  return true;
}

void hvd_net::send_streams(NetPeer *peer) {
  while (!peer->streams.empty() && !peer->lost && send_stream(peer, &peer->streams.front())) {
    NetPlan *plan = peer->streams.front().plan;
    uint64_t round = peer->streams.front().meta.round;
    peer->streams.pop_front();
    --plan->waiting;
    pull_sent(plan, round);
  }
}

// One thing less of this round is on its way out.
void hvd_net::pull_sent(NetPlan *plan, uint64_t round) {
  NetRound *state = plan->current(round);
  if (state == nullptr || --state->n_sending != 0) return;
  state->started = false;
  hvd::end_net_hold(site(plan), round);
  finish_pull(plan, round);
}

// All members here have been read by the net and all others have arrived: what is left is up to the readers here.
void hvd_net::finish_pull(NetPlan *plan, uint64_t round) {
  const hvd::PlanView &view = *plan->view;
  NetRound *state = plan->current(round);
  uint32_t n_remote = view.n_members - static_cast<uint32_t>(view.locals.size());
  if (state == nullptr || state->n_sending != 0 || state->n_published != view.locals.size() || state->n_arrived != n_remote)
    return;
  end_stage(*plan, state, hvd::Stage::kNetwork);
  NetPlan::Lingering lingering{round, {}};
  for (hvd::Arriving &arriving : state->arriving)
    if (arriving.block != nullptr) lingering.blocks.push_back(arriving.block);
  plan->lingering.push_back(std::move(lingering));
  for (uint32_t i = 0; i < n_remote; ++i) hvd::mark_read(site(plan), round);
  count_round(*plan);
  advance(plan, round);
}
