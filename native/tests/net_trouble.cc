#include "net_trouble.h"

#include <cerrno>
#include <poll.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include "bell.h"
#include "check.h"

namespace world {
namespace {

constexpr uint64_t kLimitNs = 100'000'000'000;  // only what hangs takes longer

}  // namespace

hvd_op start_sum(hvd_engine *engine, uint64_t offset, std::vector<float> *data) {
  hvd_op op = 0;
  uint64_t bytes = data->size() * 4;
  CHECK_EQUAL(hvd_op_reduce_bound(engine, offset, data->data(), data->data(), bytes, 0, 0, &op), HVD_OK);
  return op;
}

Frame frame_of(FrameType type, uint64_t plan, uint64_t round, uint32_t bytes) {
  Frame frame;
  frame.type = type;
  frame.plan_id = plan;
  frame.round = round;
  frame.bytes = bytes;
  return frame;
}

hvd_net_info info_of(const NetHost &host) {
  hvd_net_info found{};
  hvd_status status = HVD_PENDING;
  while (status == HVD_PENDING) status = hvd_net_stat(host.net, &found);
  CHECK_EQUAL(status, HVD_OK);
  return found;
}

// The net answers at the begin of a turn: between two answers it has been through one.
void give_a_turn(const NetHost &host) {
  info_of(host);
  info_of(host);
}

void until(const std::function<bool()> &condition) {
  for (uint64_t limit = hvd::now_ns() + kLimitNs; !condition(); sched_yield()) CHECK(hvd::now_ns() < limit);
}

// Signs of life are under way now and then: they pass, and what counts is a moment at which nothing else is.
void settle(const Cluster &cluster) {
  uint64_t before = UINT64_MAX;
  until([&] {
    uint64_t sent = 0, received = 0, waiting = 0;
    for (auto &host : cluster.hosts) received += info_of(*host).bytes_received;
    for (auto &host : cluster.hosts) {
      hvd_net_info info = info_of(*host);
      sent += info.bytes_sent;
      waiting += info.waiting_frames;
    }
    bool quiet = sent == received && sent == before && waiting == 0;
    before = sent;
    return quiet;
  });
}

void remove_everywhere(Cluster &cluster, const PlanOf &plan) {
  for (auto &host : cluster.hosts) {
    until([&] { return hvd_net_plan_remove(host->net, plan.id) == HVD_OK; });
    CHECK_EQUAL(hvd_board_plan_remove(host->board, plan.offsets[host->index]), HVD_OK);
  }
}

void Gate::arrive() {
  std::lock_guard lock(mutex_);
  ++arrived_;
  changed_.notify_all();
}

void Gate::wait(uint32_t count) {
  std::unique_lock lock(mutex_);
  CHECK(changed_.wait_for(lock, std::chrono::nanoseconds(kLimitNs), [&] { return arrived_ >= count; }));
}

Forwarder::~Forwarder() {
  stop_ = true;
  for (std::thread &thread : threads_) thread.join();
  for (int fd : fds_) close(fd);
}

void Forwarder::join(int ends[2]) {
  int a[2], b[2];
  join_by_socketpair(0, 0, 0, a);
  join_by_socketpair(0, 0, 0, b);
  ends[0] = a[0];
  ends[1] = b[0];
  for (int fd : {a[1], b[1]}) fds_.push_back(fd);
  threads_.emplace_back([this, from = a[1], to = b[1]] { pass(from, to); });
  threads_.emplace_back([this, from = b[1], to = a[1]] { pass(from, to); });
}

Cluster::Join Forwarder::joiner() {
  return [this](uint32_t, uint32_t, uint32_t, int ends[2]) { join(ends); };
}

void Forwarder::pass(int from, int to) {
  std::vector<char> bytes(1 << 16);
  for (uint64_t total = 0; !stop_;) {
    pollfd wait{from, POLLIN, 0};
    if (poll(&wait, 1, 20) <= 0) continue;
    uint64_t passed = pass_some(from, to, &bytes, most_ - total);
    if (passed == 0) break;
    total += passed;
    if (total >= most_) shutdown(from, SHUT_RDWR);
    if (total >= most_) break;
  }
  shutdown(to, SHUT_RDWR);
}

// How much of what came was passed on; 0 at the end of the connection, or when no more is allowed.
uint64_t Forwarder::pass_some(int from, int to, std::vector<char> *bytes, uint64_t allowed) const {
  ssize_t got = recv(from, bytes->data(), bytes->size(), MSG_DONTWAIT);
  uint64_t left = got <= 0 ? 0 : std::min(static_cast<uint64_t>(got), allowed), passed = 0;
  while (passed < left) {
    ssize_t sent = send(to, bytes->data() + passed, std::min<uint64_t>(step_, left - passed), MSG_NOSIGNAL);
    if (sent <= 0) break;
    passed += static_cast<uint64_t>(sent);
  }
  return passed;
}

Impostor::Impostor(NetOptions options) {
  host = std::make_unique<NetHost>(0, 1, 2, options);
  int ends[2];
  join_by_socketpair(0, 0, 0, ends);
  fd = ends[1];
  CHECK_EQUAL(hvd_net_add_peer(host->net, 1, 0, ends[0]), HVD_OK);
  CHECK_EQUAL(hvd_net_start(host->net), HVD_OK);
}

Impostor::~Impostor() { close(fd); }

NetOptions Impostor::quick() {
  NetOptions options;
  options.lanes = 1;
  options.eager_bytes = 512 << 10;
  return options;
}

uint64_t Impostor::add(uint64_t id, uint32_t kind, uint64_t bytes) {
  uint32_t members[] = {0, 1}, ring[] = {0, 1};
  hvd_plan_spec spec{id, kind, HVD_FLOAT32, HVD_SUM, 1, 1, bytes, 2, kind == HVD_PULL ? 2u : 1u, members, HVD_PLAN_REMOTE};
  uint64_t offset = 0;
  CHECK_EQUAL(hvd_board_plan_add(host->board, &spec, &offset), HVD_OK);
  CHECK_EQUAL(hvd_net_plan_add(host->net, offset, ring, 2, ring, spec.n_members), HVD_OK);
  info_of(*host);  // commands are taken in order: the net knows the plan before a frame of it can arrive
  return offset;
}

bool Impostor::say(const void *bytes, size_t length) {
  for (size_t at = 0; at < length;) {
    ssize_t sent = send(fd, static_cast<const char *>(bytes) + at, length - at, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno != EAGAIN) return false;
    char drop[4096];
    if (sent < 0 && recv(fd, drop, sizeof drop, MSG_DONTWAIT) == 0) return false;
    at += sent < 0 ? 0 : static_cast<size_t>(sent);
  }
  return true;
}

bool Impostor::say(const Frame &frame, size_t payload) {
  if (!say(&frame, sizeof frame)) return false;
  std::vector<char> bytes(payload == SIZE_MAX ? frame.bytes : payload, 1);
  return say(bytes.data(), bytes.size());
}

void Impostor::hear(void *bytes, size_t length) {
  for (size_t at = 0; at < length;) {
    pollfd wait{fd, POLLIN, 0};
    CHECK(poll(&wait, 1, static_cast<int>(kLimitNs / 1'000'000)) == 1);
    ssize_t got = recv(fd, static_cast<char *>(bytes) + at, length - at, MSG_DONTWAIT);
    CHECK(got > 0);
    at += static_cast<size_t>(got);
  }
}

Frame Impostor::hear(FrameType type) {
  for (;;) {
    Frame frame;
    hear(&frame, sizeof frame);
    std::vector<char> payload(frame.bytes);
    hear(payload.data(), payload.size());
    if (frame.type == type) return frame;
  }
}

std::string Impostor::loss() {
  auto events = host->events(HVD_NET_PEER_LOST);
  CHECK_EQUAL(events.size(), 1u);
  CHECK_EQUAL(events[0].host, 1u);
  return events[0].text;
}

}  // namespace world
