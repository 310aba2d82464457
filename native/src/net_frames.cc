// From a frame to what it means.  begin_frame: is the header possible, where does the payload go.  end_frame: what follows.
#include <cstring>

#include "net.h"

using hvd::Frame;
using hvd::FrameType;
using hvd::Lane;
using hvd::NetPeer;
using hvd::NetPlan;
using hvd::Sink;

namespace {

bool names_plan(FrameType type) { return type <= FrameType::kGiveUp; }

void keep(Lane *lane) {
  if (lane->frame.bytes == 0) return;
  lane->sink.kept = std::make_shared<hvd::Bytes>(lane->frame.bytes);
  lane->sink.into = Sink::Into::kPlace;
  lane->sink.at = lane->sink.kept->at();
}

}  // namespace

void hvd_net::begin_frame(Lane *lane) {
  const Frame &frame = lane->frame;
  const char *wrong = hvd::check_frame(frame);
  if (wrong != nullptr) return bad_frame(lane, wrong);
  if (hvd::spends_tokens(frame)) {
    uint64_t cost = hvd::token_cost(frame);
    if (cost > lane->peer->unspent) return bad_frame(lane, "more data than its tokens allow");
    lane->peer->unspent -= cost;
  }
  if (frame.type == FrameType::kAbort) return keep(lane);
  if (dead_ || !names_plan(frame.type)) return;
  auto found = plans_.find(frame.plan_id);
  if (found != plans_.end()) return begin_known(lane, found->second.get());
  if (removed_.count(frame.plan_id) != 0) return;
  if (frame.type == FrameType::kRing) return bad_frame(lane, "data of a plan that is not known");
  keep(lane);
}

void hvd_net::begin_known(Lane *lane, NetPlan *plan) {
  const char *wrong = nullptr;
  if (lane->frame.type == FrameType::kRing) {
    wrong = begin_ring(lane, plan);
  } else if (lane->frame.type == FrameType::kData) {
    char *at = nullptr;
    wrong = begin_data(plan, lane->peer, lane->frame, &at);
    if (wrong == nullptr && at != nullptr) {
      lane->sink.into = Sink::Into::kPlace;
      lane->sink.at = at;
      lane->sink.plan = plan;
    }
  } else {
    if (lane->frame.type == FrameType::kEager) wrong = check_eager(lane->peer, plan, lane->frame);
    if (wrong == nullptr) keep(lane);
  }
  if (wrong != nullptr) bad_frame(lane, wrong);
}

void hvd_net::end_frame(Lane *lane) {
  const Frame &frame = lane->frame;
  NetPeer *peer = lane->peer;
  switch (frame.type) {
    case FrameType::kPing: return;
    case FrameType::kBye: peer->said_bye = lane->said_bye = true; return;
    case FrameType::kTokens: return got_tokens(lane);
    case FrameType::kAbort: return got_abort(peer, lane->sink.kept);
    default: break;
  }
  if (dead_) return;
  auto found = plans_.find(frame.plan_id);
  if (found != plans_.end()) return end_known(lane, found->second.get());
  if (removed_.count(frame.plan_id) == 0) return park(peer, frame, std::move(lane->sink.kept));
  if (hvd::spends_tokens(frame)) give_back(peer, hvd::token_cost(frame));
}

void hvd_net::end_known(Lane *lane, NetPlan *plan) {
  const Frame &frame = lane->frame;
  if (frame.type == FrameType::kRing) return end_ring(lane, plan);
  if (frame.type == FrameType::kData && lane->sink.kept == nullptr) return end_data(lane->peer, plan, frame);
  const char *wrong = deliver(lane->peer, plan, frame, std::move(lane->sink.kept));
  if (wrong != nullptr) bad_frame(lane, wrong);
}

// A frame that is here as a whole, now or because it was parked; null, or what is wrong with it.
const char *hvd_net::deliver(NetPeer *peer, NetPlan *plan, const Frame &frame, hvd::SharedBytes data) {
  switch (frame.type) {
    case FrameType::kEager: return got_eager(peer, plan, frame, std::move(data));
    case FrameType::kWant: return got_want(peer, plan, frame);
    case FrameType::kCredit: return plan->is_eager() ? got_eager_credit(peer, plan, frame) : got_ring_credit(peer, plan, frame);
    case FrameType::kMeta: return got_meta(peer, plan, frame);
    case FrameType::kGiveUp: return got_give_up(peer, plan, frame);
    case FrameType::kData: break;
    default: return "a frame of no known type";
  }
  char *at = nullptr;
  const char *wrong = begin_data(plan, peer, frame, &at);
  if (wrong != nullptr) return wrong;
  if (at != nullptr && data != nullptr) std::memcpy(at, data->at(), frame.bytes);
  end_data(peer, plan, frame);
  return nullptr;
}

void hvd_net::got_tokens(Lane *lane) {
  NetPeer *peer = lane->peer;
  uint64_t most = spec_.eager_bytes;
  if (lane->frame.value > most || peer->tokens > most - lane->frame.value) return bad_frame(lane, "more tokens than there are");
  peer->tokens += lane->frame.value;
  if (dead_) return;
  send_waiting(peer);
  send_streams(peer);
}

void hvd_net::got_abort(NetPeer *peer, const hvd::SharedBytes &text) {
  if (peer->said_abort) return;
  peer->said_abort = true;
  must_drop_ = true;
  push_event(HVD_NET_ABORT, peer->host, 0, 0, text == nullptr ? "" : std::string(text->at(), text->size()));
}

void hvd_net::reduce_payload(Lane *lane, const char *from, uint64_t bytes) {
  NetPlan *plan = lane->sink.plan;
  const hvd::PlanView &view = *plan->view;
  auto dtype = static_cast<hvd_dtype>(view.dtype);
  const void *in[2] = {from, lane->sink.at};
  void *out[2] = {nullptr, lane->sink.at};
  hvd_status status = hvd_reduce(dtype, static_cast<hvd_reduce_op>(view.op), 1, lane->sink.post, in, out, 2,
                                 bytes / hvd_dtype_bytes(dtype));
  if (status != HVD_OK) fail_chunk(plan, lane->frame.round, lane->frame.index, status);
}

void hvd_net::written(const hvd::OutFrame &out) {
  if (out.plan == nullptr || dead_) return;
  --out.plan->unwritten;
  if (out.frame.type == FrameType::kRing) ring_written(out.plan, out.frame.round, out.frame.index);
  if (out.frame.type == FrameType::kMeta || out.frame.type == FrameType::kData) pull_sent(out.plan, out.frame.round);
}
