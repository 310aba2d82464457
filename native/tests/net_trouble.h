// What tests of the net's faults share: connections that drip or break, a peer that is not one, places where threads meet.
#pragma once
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "net_frame.h"
#include "net_world.h"
#include "values.h"

namespace world {

using hvd::Frame;
using hvd::FrameType;

// A sum in place; the op.
hvd_op start_sum(hvd_engine *engine, uint64_t offset, std::vector<float> *data);
Frame frame_of(FrameType type, uint64_t plan, uint64_t round, uint32_t bytes);

// What the net of this host has counted so far.
hvd_net_info info_of(const NetHost &host);
// When this returns, the net has looked at all that was there before.
void give_a_turn(const NetHost &host);
// Waits until a condition holds, and fails after some seconds.
void until(const std::function<bool()> &condition);
// Waits until the nets have received all that they have sent, and have no more to send.
void settle(const Cluster &cluster);
// Removes a plan from nets and boards, each as soon as its net has no work on it.
void remove_everywhere(Cluster &cluster, const PlanOf &plan);

// Threads wait here for others.
class Gate {
 public:
  void arrive();
  void wait(uint32_t count);  // until that many arrived in all

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  uint32_t arrived_ = 0;
};

// Passes bytes on between two connections in its own threads, `step` at a time, and cuts after `most` in one direction.
class Forwarder {
 public:
  Forwarder(size_t step, uint64_t most) : step_(step), most_(most) {}
  ~Forwarder();
  void join(int ends[2]);
  Cluster::Join joiner();

 private:
  void pass(int from, int to);
  uint64_t pass_some(int from, int to, std::vector<char> *bytes, uint64_t allowed) const;

  size_t step_;
  uint64_t most_;
  std::atomic<bool> stop_{false};
  std::vector<std::thread> threads_;
  std::vector<int> fds_;
};

// A net whose peer is the test itself, which speaks for host 1.
struct Impostor {
  explicit Impostor(NetOptions options = quick());
  ~Impostor();
  static NetOptions quick();
  // Plans of one rank on either host.
  uint64_t add(uint64_t id, uint32_t kind, uint64_t bytes);
  // False when the net has closed the connection.
  bool say(const void *bytes, size_t length);
  bool say(const Frame &frame, size_t payload = SIZE_MAX);
  // The next frame of this type that the net sends, what it carries is dropped.
  Frame hear(FrameType type);
  // What the net says of the loss of its peer, after waiting for it.
  std::string loss();

  std::unique_ptr<NetHost> host;
  int fd = -1;

 private:
  void hear(void *bytes, size_t length);
};

}  // namespace world
