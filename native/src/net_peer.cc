// What goes to a peer and what it may send: tokens, frames that wait for them, frames that came too early, and its loss.
#include <algorithm>
#include <cstdio>

#include "net.h"

using hvd::Frame;
using hvd::FrameType;
using hvd::Lane;
using hvd::NetPeer;
using hvd::OutFrame;
using hvd::Urgency;

namespace {

constexpr uint32_t kMaxParkedControl = 1u << 16;  // frames without tokens for plans we do not know yet, of one peer
constexpr size_t kMaxEvents = 4096;

}  // namespace

void hvd_net::queue(Lane *lane, OutFrame frame, Urgency urgency) {
  if (lane->fd < 0 || dead_told(frame)) return;
  if (frame.plan != nullptr) ++frame.plan->unwritten;
  lane->queue(std::move(frame), urgency);
  mark_dirty(lane);
}

// Once rounds are dropped nothing leaves but the news of it, signs of life and goodbyes.
bool hvd_net::dead_told(const OutFrame &out) const {
  FrameType type = out.frame.type;
  return dead_ && type != FrameType::kAbort && type != FrameType::kPing && type != FrameType::kBye;
}

void hvd_net::control(NetPeer *peer, const Frame &frame) {
  if (peer->lost || peer->lanes.empty()) return;
  OutFrame out;
  out.frame = frame;
  queue(peer->lanes[0].get(), std::move(out), Urgency::kControl);
}

// Without tokens the frame waits, and the peer is asked for credit: it gives that when its own part of the round has begun.
void hvd_net::send_eager(NetPeer *peer, OutFrame out) {
  if (peer->lost) return;
  uint64_t cost = hvd::token_cost(out.frame);
  if (peer->waiting.empty() && peer->tokens >= cost) {
    peer->tokens -= cost;
    return queue(peer->lanes[0].get(), std::move(out), Urgency::kForward);
  }
  Frame want = out.frame;
  want.type = FrameType::kWant;
  want.bytes = want.status = 0;
  ++out.plan->waiting;
  peer->waiting_for[{out.frame.plan_id, out.frame.round}] = peer->next_wait;
  peer->waiting.emplace(peer->next_wait++, std::move(out));
  control(peer, want);
}

void hvd_net::send_waiting(NetPeer *peer) {
  while (!peer->waiting.empty()) {
    auto first = peer->waiting.begin();
    uint64_t cost = hvd::token_cost(first->second.frame);
    if (peer->tokens < cost) return;
    peer->tokens -= cost;
    --first->second.plan->waiting;
    peer->waiting_for.erase({first->second.frame.plan_id, first->second.frame.round});
    OutFrame out = std::move(first->second);
    peer->waiting.erase(first);
    queue(peer->lanes[0].get(), std::move(out), Urgency::kForward);
  }
}

void hvd_net::give_back_of(NetPeer *peer, const Frame &frame) {
  if (hvd::spends_tokens(frame)) give_back(peer, hvd::token_cost(frame));
}

// In quarters, so that the peer never runs dry while we owe it, and frames that only give back are rare.
void hvd_net::give_back(NetPeer *peer, uint64_t cost) {
  peer->owed += cost;
  if (peer->owed < spec_.eager_bytes / 4 || peer->lost) return;
  Frame frame;
  frame.type = FrameType::kTokens;
  frame.value = peer->owed;
  peer->unspent += peer->owed;
  peer->owed = 0;
  control(peer, frame);
}

void hvd_net::park(NetPeer *peer, const Frame &frame, hvd::SharedBytes data) {
  if (!hvd::spends_tokens(frame) && ++peer->parked_control > kMaxParkedControl)
    return lose(peer, "too many frames for plans that are not known");
  info_.parked_bytes += frame.bytes;
  parked_[frame.plan_id].push_back({peer, frame, std::move(data)});
}

void hvd_net::unpark(uint64_t plan_id) {
  auto found = parked_.find(plan_id);
  if (found == parked_.end()) return;
  std::vector<hvd::ParkedFrame> frames = std::move(found->second);
  parked_.erase(found);
  NetPlan *plan = plans_.at(plan_id).get();
  for (auto &parked : frames) {
    info_.parked_bytes -= parked.frame.bytes;
    if (!hvd::spends_tokens(parked.frame)) --parked.peer->parked_control;
    if (parked.peer->lost) continue;
    const char *wrong = deliver(parked.peer, plan, parked.frame, std::move(parked.data));
    if (wrong != nullptr) lose(parked.peer, std::string("bad frame: ") + wrong);
  }
}

// All rounds are dropped at the end of this turn.
void hvd_net::lose(NetPeer *peer, const std::string &text) {
  if (peer->lost) return;
  peer->lost = true;
  for (auto &lane : peer->lanes) lane->close();
  must_drop_ = true;
  if (peer->said_abort || dead_) return;  // this end of the connections follows from what is known already
  push_event(HVD_NET_PEER_LOST, peer->host, 0, 0, text);
  tell_abort("host " + std::to_string(peer->host) + " is lost: " + text, peer);
}

void hvd_net::bad_frame(Lane *lane, const char *what) { lose(lane->peer, std::string("bad frame: ") + what); }

void hvd_net::tell_abort(const std::string &text, const NetPeer *except) {
  if (told_abort_) return;
  told_abort_ = true;
  auto bytes = std::make_shared<hvd::Bytes>(std::min<size_t>(text.size(), hvd::kMaxTextBytes));
  std::copy_n(text.data(), bytes->size(), bytes->at());
  for (auto &peer : peers_) {
    if (peer == nullptr || peer->lost || peer.get() == except || peer->lanes.empty()) continue;
    OutFrame out;
    out.frame.type = FrameType::kAbort;
    out.frame.bytes = static_cast<uint32_t>(bytes->size());
    out.data = bytes->at();
    out.owned = bytes;
    if (dead_)
      queue(peer->lanes[0].get(), std::move(out), Urgency::kControl);
    else
      last_words_.push_back({peer->lanes[0].get(), std::move(out)});
  }
}

void hvd_net::push_event(uint32_t kind, uint32_t host, uint64_t plan_id, uint64_t round, const std::string &text) {
  hvd_net_event event{kind, host, plan_id, round, {}};
  std::snprintf(event.text, sizeof event.text, "%s", text.c_str());
  std::lock_guard lock(mutex_);
  if (events_.size() >= kMaxEvents && kind == HVD_NET_WANTED) return;
  events_.push_back(event);
  hvd::write_event(event_fd_);
}
