#include "net_lane.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

namespace hvd {
namespace {

constexpr uint64_t kReceiveBytes = 256 << 10;
constexpr uint64_t kScratchBytes = 256 << 10;   // payload that is reduced waits here: small enough to stay in cache
constexpr uint64_t kLargeBytes = 32 << 10;
constexpr uint64_t kTailBytes = 4096;          // read with or behind a large payload: the next header, and what is small behind it
constexpr uint64_t kBypass = 4096;             // payloads with more to come are read to their place, not through the buffer
constexpr uint32_t kParts = 512;               // of one write
constexpr uint64_t kWriteBytes = 4 << 20;      // what one write takes at most: control frames wait behind it

}  // namespace

Lane::Lane(int descriptor, NetPeer *owner, uint32_t lane_number)
    : fd(descriptor), peer(owner), number(lane_number), rx_(std::make_shared<Bytes>(kReceiveBytes)),
      scratch_(std::make_shared<Bytes>(kScratchBytes)) {}

Lane::~Lane() { close(); }

void Lane::close() {
  if (fd >= 0) ::close(fd);
  fd = -1;
}

uint64_t Lane::retransmits() {
  tcp_info info{};
  socklen_t size = sizeof info;
  if (fd >= 0 && getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) == 0) retransmits_ = info.tcpi_total_retrans;
  return retransmits_;  // other sockets, and closed ones, have no news
}

void Lane::queue(OutFrame frame, Urgency urgency) {
  if (fd < 0) return;
  pending_bytes_ += sizeof(Frame) + frame.frame.bytes;
  waiting_[static_cast<uint32_t>(urgency)].push_back(std::move(frame));
}

bool Lane::has_output() const {
  bool waits = !begun_.empty();
  for (const auto &queue : waiting_) waits = waits || !queue.empty();
  return waits;
}

// Fills `begun_` from the queues and describes it, less what was written of its first frame.
uint32_t Lane::gather(iovec *parts, uint64_t *bytes) {
  uint64_t total = 0;
  for (const OutFrame &out : begun_) total += sizeof(Frame) + out.frame.bytes;
  for (auto &queue : waiting_)
    while (!queue.empty() && begun_.size() < kParts / 2 && total < kWriteBytes) {
      total += sizeof(Frame) + queue.front().frame.bytes;
      begun_.push_back(std::move(queue.front()));
      queue.pop_front();
    }
  uint32_t n = 0;
  uint64_t skip = begun_bytes_;
  auto add = [&](const void *at, uint64_t length) {
    uint64_t skipped = std::min(skip, length);
    skip -= skipped;
    if (length == skipped) return;
    parts[n++] = {const_cast<char *>(static_cast<const char *>(at)) + skipped, length - skipped};
    *bytes += length - skipped;
  };
  for (const OutFrame &out : begun_) {
    add(&out.frame, sizeof(Frame));
    add(out.data, out.frame.bytes);
  }
  return n;
}

void Lane::advance(uint64_t bytes, std::vector<OutFrame> *written) {
  bytes_out += bytes;
  begun_bytes_ += bytes;
  while (!begun_.empty() && begun_bytes_ >= sizeof(Frame) + begun_.front().frame.bytes) {
    uint64_t whole = sizeof(Frame) + begun_.front().frame.bytes;
    begun_bytes_ -= whole;
    pending_bytes_ -= whole;
    ++frames_out;
    written->push_back(std::move(begun_.front()));
    begun_.pop_front();
  }
}

bool Lane::flush(uint64_t budget, std::vector<OutFrame> *written) {
  while (fd >= 0 && writable && has_output() && budget != 0) {
    iovec parts[kParts];
    uint64_t bytes = 0;
    msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = gather(parts, &bytes);
    ssize_t sent = sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    ++writes;
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && errno != EAGAIN && errno != EWOULDBLOCK) return false;
    if (sent < static_cast<ssize_t>(bytes)) writable = false;  // the kernel tells when there is room again
    if (sent > 0) advance(static_cast<uint64_t>(sent), written);
    budget -= std::min<uint64_t>(budget, sent > 0 ? static_cast<uint64_t>(sent) : 0);
  }
  return true;
}

bool Lane::drop_output() {
  for (auto &queue : waiting_) queue.clear();
  while (begun_.size() > (begun_bytes_ == 0 ? 0 : 1)) begun_.pop_back();
  pending_bytes_ = begun_.empty() ? 0 : sizeof(Frame) + begun_.front().frame.bytes;
  if (begun_.empty()) return true;
  begun_.front().plan = nullptr;
  return keep_rest();
}

bool Lane::drop_pieces(const NetPlan *plan, uint64_t limit, std::vector<OutFrame> *dropped) {
  auto goes = [&](const OutFrame &out) {
    return out.plan == plan && out.frame.type == FrameType::kRing && out.frame.round >= limit;
  };
  bool partly = begun_bytes_ != 0 && goes(begun_.front());
  if (partly && !keep_rest()) return false;
  for (auto *queue : {&begun_, &waiting_[0], &waiting_[1], &waiting_[2]}) {
    std::deque<OutFrame> kept;
    for (OutFrame &out : *queue) {
      bool is_partly = queue == &begun_ && begun_bytes_ != 0 && &out == &begun_.front();
      if (goes(out) && !is_partly)
        dropped->push_back(std::move(out));
      else
        kept.push_back(std::move(out));
    }
    queue->swap(kept);
  }
  return true;
}

// What is left of the first frame, whose payload may lie in memory that is not ours any more.
bool Lane::keep_rest() {
  OutFrame &first = begun_.front();
  if (first.owned != nullptr || first.frame.bytes == 0) return true;
  SharedBytes copy(new (std::nothrow) Bytes(first.frame.bytes));
  if (copy == nullptr) return false;
  std::memcpy(copy->at(), first.data, first.frame.bytes);
  first.data = copy->at();
  first.owned = std::move(copy);
  return true;
}

void Lane::discard_output(std::vector<OutFrame> *written) {
  for (auto *queue : {&begun_, &waiting_[0], &waiting_[1], &waiting_[2]}) {
    for (OutFrame &out : *queue) written->push_back(std::move(out));
    queue->clear();
  }
  begun_bytes_ = pending_bytes_ = 0;
  close();
}

void Lane::forget_sink(const NetPlan *plan) {
  if (sink.plan != nullptr && (plan == nullptr || sink.plan == plan)) sink = Sink{};
}

bool Lane::read(uint64_t budget, FrameHandler *handler) {
  uint64_t stop = bytes_in + budget;
  while (fd >= 0 && readable && bytes_in < stop) {
    long got = fill();
    ++reads;
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return readable = false, true;
    if (got <= 0) return eof = got == 0, false;
    while (fd >= 0 && consume(handler)) {
    }
  }
  return true;
}

// One read: to the payload's place if much of it is to come, and what follows it to the buffer.
long Lane::fill() {
  if (rx_begin_ != 0) {
    std::memmove(rx_->at(), rx_->at() + rx_begin_, buffered());
    rx_end_ -= rx_begin_;
    rx_begin_ = 0;
  }
  bool reduces = sink.into == Sink::Into::kReduce;
  uint64_t room = reduces ? std::min(left_, kScratchBytes - scratch_bytes_) : left_;
  bool bypass = in_payload_ && left_ >= kBypass && sink.into != Sink::Into::kNowhere && room != 0 && buffered() == 0;
  char *place = !bypass ? nullptr : reduces ? scratch_->at() + scratch_bytes_ : sink.at;
  // A payload in the buffer is copied once more.  Behind a large one another large one is likely, so little is read ahead.
  uint64_t tail = std::min(kReceiveBytes - rx_end_, frame.bytes >= kLargeBytes ? kTailBytes : kReceiveBytes);
  iovec parts[2] = {{place, room}, {rx_->at() + rx_end_, tail}};
  uint64_t asked = bypass ? room : 0;
  if (!bypass || room == left_) asked += parts[1].iov_len;
  int n = bypass && room != left_ ? 1 : 2;
  ssize_t got = readv(fd, bypass ? parts : parts + 1, bypass ? n : 1);
  if (got <= 0) return got;
  bytes_in += static_cast<uint64_t>(got);
  // A short read has emptied the socket, unless the peer's end of the connection is already behind it.
  if (static_cast<uint64_t>(got) < asked && !hung_up) readable = false;
  uint64_t direct = bypass ? std::min<uint64_t>(static_cast<uint64_t>(got), room) : 0;
  rx_end_ += static_cast<uint64_t>(got) - direct;
  left_ -= direct;
  if (reduces)
    scratch_bytes_ += direct;
  else if (bypass)
    sink.at += direct;
  return got;
}

// Takes what it can from the buffer; false when more bytes are needed.
bool Lane::consume(FrameHandler *handler) {
  if (!in_payload_) {
    if (buffered() < sizeof(Frame)) return false;
    return start_frame(handler);
  }
  uint64_t bytes = std::min(left_, buffered());
  if (sink.into == Sink::Into::kReduce) bytes = std::min(bytes, kScratchBytes - scratch_bytes_);
  take(rx_->at() + rx_begin_, bytes);
  rx_begin_ += bytes;
  left_ -= bytes;
  bool full = scratch_bytes_ == kScratchBytes || left_ == 0;
  if (sink.into == Sink::Into::kReduce && scratch_bytes_ != 0 && full) {
    handler->reduce_payload(this, scratch_->at(), scratch_bytes_);
    sink.at += scratch_bytes_;
    scratch_bytes_ = 0;
  }
  if (left_ == 0) end_frame(handler);
  return left_ == 0 || buffered() != 0;
}

void Lane::take(const char *from, uint64_t bytes) {
  if (bytes == 0 || sink.into == Sink::Into::kNowhere) return;
  char *to = sink.into == Sink::Into::kReduce ? scratch_->at() + scratch_bytes_ : sink.at;
  std::memcpy(to, from, bytes);
  if (sink.into == Sink::Into::kReduce)
    scratch_bytes_ += bytes;
  else
    sink.at += bytes;
}

bool Lane::start_frame(FrameHandler *handler) {
  std::memcpy(&frame, rx_->at() + rx_begin_, sizeof(Frame));
  rx_begin_ += sizeof(Frame);
  ++frames_in;
  sink = Sink{};
  left_ = frame.bytes;
  scratch_bytes_ = 0;
  in_payload_ = true;
  handler->begin_frame(this);
  return fd >= 0;
}

void Lane::end_frame(FrameHandler *handler) {
  in_payload_ = false;
  handler->end_frame(this);
  sink = Sink{};
}

}  // namespace hvd
