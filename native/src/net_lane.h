// One connection to another agent: frames out, frames in.  Knows sockets and the order of bytes; what a frame means, and where
// its payload goes, is decided by the owner (hvd_net) when the header is complete.
//
// Used by the net's thread only.  Sockets are non-blocking and edge-triggered: `readable` and `writable` say what the kernel
// told us and has not taken back.
#pragma once
#include <deque>
#include <memory>
#include <sys/uio.h>
#include <vector>

#include "hvd.h"
#include "net_frame.h"

namespace hvd {

struct NetPlan;
struct NetPeer;

// Memory that a frame carries, or that a payload is kept in; never initialised.  A thread keeps some of what it gives back, since
// the payloads of small rounds come and go all the time.
class Bytes {
 public:
  explicit Bytes(uint64_t size);
  ~Bytes();
  Bytes(const Bytes &) = delete;
  Bytes &operator=(const Bytes &) = delete;
  char *at() const { return at_.get(); }
  uint64_t size() const { return size_; }

 private:
  std::unique_ptr<char[]> at_;
  uint64_t size_;
};
using SharedBytes = std::shared_ptr<Bytes>;

struct OutFrame {
  Frame frame;
  const char *data = nullptr;  // the payload: in `owned`, or in members' memory that the plan's round holds
  SharedBytes owned;
  NetPlan *plan = nullptr;     // told when the frame is written, unless null
};

// Control frames overtake, then small sums and what rounds wait for that have begun, then bulk that begins.
enum class Urgency : uint8_t { kControl, kForward, kFresh };
constexpr uint32_t kUrgencies = 3;

// Where the payload of the frame that is being received goes.
struct Sink {
  enum class Into : uint8_t { kNowhere, kPlace, kReduce };
  Into into = Into::kNowhere;
  char *at = nullptr;      // next byte: in `kept`, in members' memory, or in the agent's arena
  SharedBytes kept;
  NetPlan *plan = nullptr; // whose memory `at` points to
  double post = 1;         // kReduce: of the plan's dtype and op, onto what lies at `at`
};

class FrameHandler;

class Lane {
 public:
  Lane(int fd, NetPeer *peer, uint32_t number);
  ~Lane();
  Lane(const Lane &) = delete;
  Lane &operator=(const Lane &) = delete;

  void queue(OutFrame frame, Urgency urgency);
  bool has_output() const;
  uint64_t pending_bytes() const { return pending_bytes_; }  // of frames that are not fully written
  size_t pending_frames() const { return begun_.size() + waiting_[0].size() + waiting_[1].size() + waiting_[2].size(); }
  // Writes until the kernel takes no more or about `budget` bytes are gone; frames that are fully written go to `written`.
  // False with errno set when the connection is broken.
  bool flush(uint64_t budget, std::vector<OutFrame> *written);
  // Reads until the kernel has no more or about `budget` bytes are consumed.  False when the connection is broken or closed by
  // the peer; `eof` tells which.  The handler may close the lane on the way.
  bool read(uint64_t budget, FrameHandler *handler);
  void close();
  // Payload that is still to come goes nowhere, if it goes to memory of this plan (null: whatever it is).
  void forget_sink(const NetPlan *plan);
  // Drops pieces of this plan's rounds from `limit` on that have not begun; false when there is no memory for the rest of one
  // that has.
  bool drop_pieces(const NetPlan *plan, uint64_t limit, std::vector<OutFrame> *dropped);
  // Drops frames that have not begun.  The rest of one that has begun is copied: its memory is not ours any more.
  bool drop_output();
  // The peer has gone with a goodbye: what it did not take counts as written.
  void discard_output(std::vector<OutFrame> *written);

  int fd = -1;  // -1: closed
  NetPeer *peer;
  const uint32_t number;
  bool readable = false, writable = true, hung_up = false, eof = false, said_bye = false;
  bool dirty = false;      // listed by the owner, to be flushed
  uint64_t wrote_ns = 0;   // when the owner flushed it last
  uint64_t grew_ns = 0, seen_bytes = 0;  // when the owner saw more of its pending bytes, and how many
  Frame frame;           // being received
  Sink sink;
  uint64_t retransmits();  // segments sent again so far
  uint64_t writes = 0, reads = 0, frames_out = 0, frames_in = 0, bytes_out = 0, bytes_in = 0;

 private:
  bool consume(FrameHandler *handler);
  bool start_frame(FrameHandler *handler);
  void end_frame(FrameHandler *handler);
  void take(const char *from, uint64_t bytes);
  long fill();
  uint64_t buffered() const { return rx_end_ - rx_begin_; }
  bool keep_rest();
  uint32_t gather(iovec *parts, uint64_t *bytes);
  void advance(uint64_t bytes, std::vector<OutFrame> *written);

  std::deque<OutFrame> waiting_[kUrgencies];
  std::deque<OutFrame> begun_;    // handed to the kernel in this order; the first may be partly written
  uint64_t begun_bytes_ = 0;      // of the first, written so far
  uint64_t pending_bytes_ = 0;

  SharedBytes rx_, scratch_;
  uint64_t rx_begin_ = 0, rx_end_ = 0;
  bool in_payload_ = false;
  uint64_t left_ = 0;             // payload bytes to come
  uint64_t retransmits_ = 0;      // at the last look
  uint64_t scratch_bytes_ = 0;    // received, not reduced yet
};

// What a lane asks its owner.
class FrameHandler {
 public:
  virtual ~FrameHandler() = default;
  // The header is complete: check it, set lane.sink.  The lane may be closed here.
  virtual void begin_frame(Lane *lane) = 0;
  // The payload is where it belongs.
  virtual void end_frame(Lane *lane) = 0;
  // Combines `bytes` of payload with what lies at lane.sink.at.
  virtual void reduce_payload(Lane *lane, const char *from, uint64_t bytes) = 0;
};

}  // namespace hvd
