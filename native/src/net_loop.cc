// The net's thread: takes commands and signals, reads and writes sockets, keeps time.  Nothing here waits but sleep() and the
// goodbye, both bounded.
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <linux/sockios.h>
#include <poll.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>

#include "net.h"

using hvd::NetPeer;

namespace {

constexpr auto kSeqCst = std::memory_order_seq_cst;
constexpr uint64_t kSpinNs = 50'000;           // after the last activity, before the thread sleeps
constexpr uint64_t kLongYieldNs = 500'000, kCrowdedNs = 100'000'000;
constexpr uint64_t kReadBudget = 8 << 20;      // of one lane, before others get their turn
constexpr uint64_t kWriteBudget = 8 << 20;
// A few small frames that follow a write closely wait for more of their kind, so that many small rounds share writes.
// They wait longer while others have not answered what was written before, or have sent what is not asked for here yet: then
// more rounds are under way.  A round that is alone never waits, and nobody waits for what does not come any more.
constexpr uint64_t kShareNs = 20'000, kShareLongNs = 300'000, kShareBytes = 64 << 10;
// A nap of the thread while many small rounds are under way: kManyRounds of ours in flight, and something done since kNapsNs.
constexpr uint64_t kNapNs = 100'000, kShortestNapNs = 30'000, kNapsNs = 500'000, kSlackNs = 1'000;
constexpr uint32_t kManyRounds = 4;
constexpr uint64_t kGoodbyeNs = 1'000'000'000, kHearOutNs = 200'000'000;
constexpr uint64_t kNsPerMs = 1'000'000;

// The rank or the agent whose word we wait for may be queued behind us.  Nanoseconds until the core was ours again: if others
// keep it busy, who sleeps gets it sooner than who offers it.
uint64_t offer_core() {
  uint64_t start = hvd::now_ns();
  sched_yield();
  return hvd::now_ns() - start;
}

// Bytes in the kernel that the peer's kernel has not acknowledged.
bool has_unsent(int fd) {
  int bytes = 0;
  return ioctl(fd, SIOCOUTQ, &bytes) == 0 && bytes != 0;
}

}  // namespace

void hvd_net::run() {
  hvd::block_signals();
  prctl(PR_SET_TIMERSLACK, kSlackNs, 0, 0, 0);
  uint64_t now = hvd::now_ns(), busy_ns = 0, crowded_until = 0;
  for (auto &peer : peers_)
    if (peer != nullptr) peer->heard_ns = now;
  while (!stop_.load(kSeqCst)) {
    now = hvd::now_ns();
    bool busy = step(now);
    if (busy) busy_ns = now;
    if (nap(now, busy_ns) || busy) continue;
    if (!dirty_.empty() || (now - busy_ns < kSpinNs && now >= crowded_until))  // what is queued goes out before any sleep
      crowded_until = offer_core() > kLongYieldNs ? now + kCrowdedNs : 0;
    else
      sleep(now);
  }
  step(now);  // commands that came just before, an abort above all
  say_goodbye();
}

// One turn; true when something was done.  Rounds are dropped only here, where nobody looks at one.
bool hvd_net::step(uint64_t now) {
  bool busy = false;
  try {
    busy |= take_commands();
    busy |= take_signals();
    busy |= poll_sockets(0);
    busy |= read_lanes(now);
    busy |= resolve_doubts();
    busy |= flush_lanes(now);
    if (now >= next_tick_ns_) tick(now);
  } catch (const std::bad_alloc &) {
    if (!dead_) push_event(HVD_NET_ABORT, spec_.my_host, 0, 0, "the agent's network thread has no memory left");
    must_drop_ = true;
  }
  if (!dead_ && (must_drop_ || board_->view.state() == HVD_E_FAILED)) drop_all();
  return busy;
}

// Counts as the bell's sleeper, then looks once more at what others announce (bell.h), then sleeps in epoll.
void hvd_net::sleep(uint64_t now) {
  hvd::NetSignal &signal = board_->view.header->net;
  signal.bell.sleepers.fetch_add(1, kSeqCst);
  bool quiet = signal.summary.load(kSeqCst) == 0 && !has_commands_.load(kSeqCst) && !stop_.load(kSeqCst);
  hvd_status state = board_->view.state();
  quiet = quiet && (dead_ || (state != HVD_E_FAILED && (closed_ || state != HVD_E_CLOSED)));
  if (quiet) {
    uint64_t left = next_tick_ns_ > now ? next_tick_ns_ - now : 0;
    poll_sockets(static_cast<int>(left / kNsPerMs + 1));
    ++info_.sleeps;
  }
  signal.bell.sleepers.fetch_sub(1, kSeqCst);
}

// Many small rounds are under way: who makes more of them has the core meanwhile, and what comes is taken in at the end.  Sockets
// and commands end a nap, signals don't.
bool hvd_net::nap(uint64_t now, uint64_t busy_ns) {
  uint64_t until = now + kNapNs;
  bool many = eager_in_flight_ >= kManyRounds && now - busy_ns < kNapsNs;
  if (!dirty_.empty()) until = std::min(until, flush_ns_);
  if ((dirty_.empty() && !many) || until < now + kShortestNapNs) return false;
  pollfd events{epoll_fd_, POLLIN, 0};
  timespec left{0, static_cast<long>(until - now)};
  ppoll(&events, 1, &left, nullptr);
  return true;
}

bool hvd_net::take_commands() {
  if (!has_commands_.load(kSeqCst)) return false;
  std::vector<std::function<void()>> commands;
  {
    std::lock_guard lock(mutex_);
    commands.swap(commands_);
    has_commands_.store(false, kSeqCst);
  }
  for (auto &command : commands) command();
  return true;
}

// Takes the bits of plans that changed (layout.h) and looks at these plans.
bool hvd_net::take_signals() {
  hvd::NetSignal &signal = board_->view.header->net;
  if (signal.summary.load(kSeqCst) == 0) return false;
  uint64_t summary = signal.summary.exchange(0, kSeqCst);
  for (; summary != 0; summary &= summary - 1) {
    uint32_t index = static_cast<uint32_t>(__builtin_ctzll(summary));
    for (uint64_t bits = signal.words[index].exchange(0, kSeqCst); bits != 0; bits &= bits - 1) {
      auto found = by_signal_.find(index * 64 + static_cast<uint32_t>(__builtin_ctzll(bits)));
      if (found == by_signal_.end()) continue;
      for (NetPlan *plan : found->second) look(plan);
    }
  }
  return true;
}

bool hvd_net::poll_sockets(int timeout_ms) {
  epoll_event events[64];
  int n = epoll_wait(epoll_fd_, events, 64, timeout_ms);
  for (int i = 0; i < n; ++i) {
    auto *lane = static_cast<Lane *>(events[i].data.ptr);
    if (lane == nullptr) {
      hvd::clear_event(wake_fd_);
      continue;
    }
    uint32_t what = events[i].events;
    if (what & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR)) lane->readable = !lane->eof;
    if (what & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) lane->hung_up = true;
    if (what & (EPOLLOUT | EPOLLHUP | EPOLLERR)) {
      lane->writable = true;
      if (lane->has_output()) mark_dirty(lane);
    }
  }
  return n > 0;
}

bool hvd_net::read_lanes(uint64_t now) {
  bool busy = false;
  for (Lane *lane : lanes_) {
    if (lane->fd < 0 || !lane->readable) continue;
    uint64_t before = lane->bytes_in;
    bool well = lane->read(kReadBudget, this);
    if (lane->bytes_in != before) lane->peer->heard_ns = now, busy = true;
    if (well) continue;
    lane->readable = false;
    busy = true;
    if (lane->eof && lane->said_bye) {  // what we still have for it may go out
      note_departure(lane->peer);
      continue;
    }
    lose(lane->peer, lane->eof ? "it closed the connection" : std::string("connection lost: ") + std::strerror(errno));
  }
  return busy;
}

// Nothing can be written to this peer any more.  What it said before it went may wait here unread: goodbye, or why it ends.
void hvd_net::hear_last_words(Lane *lane) {
  lane->readable = true;
  while (lane->fd >= 0 && lane->readable && lane->read(kReadBudget, this)) {
  }
  lane->readable = lane->fd >= 0;  // its end is met by read_lanes
}

void hvd_net::mark_dirty(Lane *lane) {
  if (!lane->dirty) dirty_.push_back(lane), lane->dirty = true;
  flush_ns_ = 0;
}

bool hvd_net::flush_lanes(uint64_t now) {
  if (dirty_.empty()) return false;
  std::vector<Lane *> lanes;
  lanes.swap(dirty_);
  flush_ns_ = UINT64_MAX;
  bool busy = false;
  for (Lane *lane : lanes) {
    bool more = eager_in_flight_ > lane->pending_frames() || info_.parked_bytes != 0;
    uint64_t share_ns = more ? kShareLongNs : kShareNs;
    if (lane->seen_bytes != lane->pending_bytes()) lane->grew_ns = now;
    lane->seen_bytes = lane->pending_bytes();
    uint64_t until = std::min(lane->wrote_ns + share_ns, lane->grew_ns + kNapNs);
    if (lane->pending_bytes() < kShareBytes && now < until) {
      flush_ns_ = std::min(flush_ns_, until);
      dirty_.push_back(lane);
      continue;
    }
    busy = true;
    lane->dirty = false;
    lane->wrote_ns = now;
    lane->seen_bytes = 0;
    written_.clear();
    bool well = lane->flush(kWriteBudget, &written_);
    int cause = errno;
    if (!well) hear_last_words(lane);
    if (!well && lane->said_bye) lane->discard_output(&written_);
    for (const hvd::OutFrame &out : written_) written(out);
    if (!well && !lane->said_bye) lose(lane->peer, std::string("connection lost: ") + std::strerror(cause));
    if (lane->fd >= 0 && lane->writable && lane->has_output()) mark_dirty(lane);
  }
  return busy;
}

// Runs after all that was readable was read: a peer is silent only if nothing of it waits here, however late we are.
void hvd_net::tick(uint64_t now) {
  next_tick_ns_ = now + spec_.ping_ms * kNsPerMs;
  for (auto &peer : peers_) {
    if (peer == nullptr || peer->lost || peer->said_bye || peer->lanes.empty()) continue;
    Lane *lane = peer->lanes[0].get();
    uint64_t silence = now > peer->heard_ns ? now - peer->heard_ns : 0;
    if (silence > spec_.silent_ms * kNsPerMs) {
      lose(peer.get(), "silence of " + std::to_string(silence / 1000 / kNsPerMs) + " s");
      continue;
    }
    Frame ping;
    ping.type = hvd::FrameType::kPing;
    if (lane->writable) control(peer.get(), ping);  // a full connection carries signs of life enough
  }
}

// Lets out what was promised, says goodbye on each lane and stays until the peers' kernels have it: closing earlier could reset
// the connection before they read it.
void hvd_net::say_goodbye() {
  try {
    uint64_t until = hvd::now_ns() + kGoodbyeNs;
    drain(until, true);
    for (Lane *lane : lanes_) {
      if (dead_ || lane->fd < 0) continue;
      hvd::OutFrame bye;
      bye.frame.type = hvd::FrameType::kBye;
      queue(lane, std::move(bye), hvd::Urgency::kFresh);
    }
    drain(until, true);
    for (Lane *lane : lanes_)
      if (lane->fd >= 0) shutdown(lane->fd, SHUT_WR);
    drain(hvd::now_ns() + kHearOutNs, false);
  } catch (const std::bad_alloc &) {
  }
  if (!dead_) drop_all();
  for (Lane *lane : lanes_) lane->close();
}

// Reads, and writes what waits, until there is nothing left (outgoing) or until all peers have what was written.
bool hvd_net::drain(uint64_t until_ns, bool outgoing) {
  auto is_open = [&](const Lane *lane) {
    if (lane->fd < 0) return false;
    return outgoing ? lane->has_output() : !lane->eof && has_unsent(lane->fd);
  };
  auto waits = [](const std::unique_ptr<NetPeer> &peer) {
    return peer != nullptr && !peer->lost && (!peer->waiting.empty() || !peer->streams.empty());
  };
  for (uint64_t now = hvd::now_ns(); now < until_ns; now = hvd::now_ns()) {
    read_lanes(now);
    flush_lanes(now);
    bool left = std::any_of(lanes_.begin(), lanes_.end(), is_open);
    if (outgoing && !dead_) left = left || std::any_of(peers_.begin(), peers_.end(), waits);
    if (!left) return true;
    poll_sockets(1);
  }
  return false;
}
