// What goes wrong between hosts: connections that drip, break, fall silent or lie, epochs that end, ranks that have joined.
#include <atomic>
#include <cerrno>
#include <cstring>
#include <poll.h>
#include <random>
#include <sched.h>
#include <string>
#include <sys/socket.h>
#include <unistd.h>
#include <vector>

#include "bell.h"
#include "board.h"
#include "check.h"
#include "net_frame.h"
#include "net_world.h"

using hvd::Frame;
using hvd::FrameType;
using world::Cluster;
using world::NetHost;
using world::NetOptions;
using world::PlanOf;

namespace {

// Passes bytes on between two connections in its own threads, `step` at a time, and cuts after `most` in one direction.
class Forwarder {
 public:
  Forwarder(size_t step, uint64_t most) : step_(step), most_(most) {}
  ~Forwarder() {
    stop_ = true;
    for (std::thread &thread : threads_) thread.join();
    for (int fd : fds_) close(fd);
  }
  void join(int ends[2]) {
    int a[2], b[2];
    world::join_by_socketpair(0, 0, 0, a);
    world::join_by_socketpair(0, 0, 0, b);
    ends[0] = a[0];
    ends[1] = b[0];
    for (int fd : {a[1], b[1]}) fds_.push_back(fd);
    threads_.emplace_back([this, from = a[1], to = b[1]] { pass(from, to); });
    threads_.emplace_back([this, from = b[1], to = a[1]] { pass(from, to); });
  }
  Cluster::Join joiner() {
    return [this](uint32_t, uint32_t, uint32_t, int ends[2]) { join(ends); };
  }

 private:
  void pass(int from, int to) {
    std::vector<char> bytes(1 << 16);
    for (uint64_t total = 0; !stop_;) {
      pollfd wait{from, POLLIN, 0};
      if (poll(&wait, 1, 20) <= 0) continue;
      ssize_t got = recv(from, bytes.data(), bytes.size(), MSG_DONTWAIT);
      if (got <= 0) break;
      for (ssize_t at = 0; at < got && total < most_;) {
        size_t length = std::min<size_t>({step_, static_cast<size_t>(got - at), most_ - total});
        ssize_t sent = send(to, bytes.data() + at, length, MSG_NOSIGNAL);
        if (sent <= 0) break;
        at += sent;
        total += static_cast<uint64_t>(sent);
      }
      if (total >= most_) shutdown(from, SHUT_RDWR);
      if (total >= most_) break;
    }
    shutdown(to, SHUT_RDWR);
  }

  size_t step_;
  uint64_t most_;
  std::atomic<bool> stop_{false};
  std::vector<std::thread> threads_;
  std::vector<int> fds_;
};

std::vector<float> ones(uint64_t count, float value = 1) { return std::vector<float>(count, value); }

void test_byte_by_byte() {
  Forwarder drip(1, UINT64_MAX);
  NetOptions options;
  options.lanes = 1;
  Cluster cluster({1, 1, 1}, options, drip.joiner());
  PlanOf small = cluster.add(HVD_COOPERATIVE, 400), large = cluster.add(HVD_COOPERATIVE, 100000);
  PlanOf pull = cluster.add(HVD_PULL, 0);
  cluster.run([&](uint32_t rank, NetHost &host, hvd_engine *engine) {
    for (const PlanOf *plan : {&small, &large}) {
      auto data = ones(plan == &small ? 100 : 25000, static_cast<float>(rank + 1));
      CHECK_EQUAL(world::allreduce(engine, plan->offsets[host.index], data.data(), data.data(), data.size() * 4), HVD_OK);
      CHECK(data == ones(data.size(), 6));
    }
    auto mine = ones(3000, static_cast<float>(rank));
    hvd_segment segment{mine.data(), nullptr, 12000};
    int64_t meta = rank;
    hvd_op op = 0;
    CHECK_EQUAL(hvd_op_pull(engine, &segment, 1, &meta, 1, nullptr, 0, 0, &op), HVD_OK);
    CHECK_EQUAL(hvd_op_bind(engine, op, pull.offsets[host.index], nullptr), HVD_OK);
    CHECK_EQUAL(world::wait_for(engine, op), HVD_OK);
    for (uint32_t m = 0; m < 3; ++m) {
      std::vector<float> copy(3000);
      hvd_copy what{m, 0, copy.data(), 12000};
      CHECK_EQUAL(hvd_op_pull_copy(engine, op, &what, 1), HVD_OK);
      CHECK(copy == ones(3000, static_cast<float>(m)));
    }
    CHECK_EQUAL(hvd_op_done(engine, op), HVD_OK);
  });
}

// What the agent does with a loss: the epoch fails on its board.
void fail_on_event(Cluster &cluster, uint32_t host, std::atomic<uint32_t> *failed) {
  for (const hvd_net_event &event : cluster.hosts[host]->events()) {
    CHECK(event.kind == HVD_NET_PEER_LOST || event.kind == HVD_NET_ABORT);
    CHECK(std::strlen(event.text) > 3);
    if (failed != nullptr) ++*failed;
    CHECK_EQUAL(hvd_board_fail(cluster.hosts[host]->board, HVD_E_FAILED, event.text), HVD_OK);
  }
}

// The connections of host 0 break after so many bytes, wherever that is: every rank gets an error or a whole result.
void test_cut_at_any_byte() {
  uint64_t cuts[] = {0, 1, 40, 48, 100, 1000, 70000, 131072, 200001, 600000, 999999};
  for (uint64_t cut : cuts) {
    Forwarder cutter(1 << 16, cut);
    NetOptions options;
    options.lanes = 1;
    Cluster cluster({1, 2, 1}, options, [&](uint32_t a, uint32_t, uint32_t, int ends[2]) {
      a == 0 ? cutter.join(ends) : world::join_by_socketpair(0, 0, 0, ends);
    });
    constexpr uint64_t kCount = 300001;
    PlanOf plan = cluster.add(HVD_COOPERATIVE, kCount * 4);
    std::atomic<uint32_t> failed{0};
    std::atomic<bool> over{false};
    std::thread agents([&] {
      while (!over)
        for (uint32_t h = 0; h < 3; ++h) fail_on_event(cluster, h, &failed);
    });
    cluster.run([&](uint32_t, NetHost &host, hvd_engine *engine) {
      hvd_status status = HVD_OK;
      for (int round = 0; round < 8 && status == HVD_OK; ++round) {
        auto data = ones(kCount);
        status = world::allreduce(engine, plan.offsets[host.index], data.data(), data.data(), kCount * 4);
        CHECK(status == HVD_OK || status == HVD_E_FAILED);
        if (status == HVD_OK) CHECK(data == ones(kCount, 4));
      }
      CHECK_EQUAL(status, HVD_E_FAILED);
    });
    over = true;
    agents.join();
    CHECK(failed >= 3);
    for (auto &host : cluster.hosts) CHECK_EQUAL(hvd_board_plan_remove(host->board, plan.offsets[host->index]), HVD_OK);
  }
}

// A net whose peer is the test itself, which speaks for host 1.
struct Impostor {
  explicit Impostor(NetOptions options = quick()) {
    host = std::make_unique<NetHost>(0, 1, 2, options);
    int ends[2];
    world::join_by_socketpair(0, 0, 0, ends);
    fd = ends[1];
    CHECK_EQUAL(hvd_net_add_peer(host->net, 1, 0, ends[0]), HVD_OK);
    CHECK_EQUAL(hvd_net_start(host->net), HVD_OK);
  }
  ~Impostor() { close(fd); }
  static NetOptions quick() {
    NetOptions options;
    options.lanes = 1;
    options.eager_bytes = 512 << 10;
    return options;
  }
  uint64_t add(uint64_t id, uint32_t kind, uint64_t bytes) {
    uint32_t members[] = {0, 1}, ring[] = {0, 1};
    hvd_plan_spec spec{id, kind, HVD_FLOAT32, HVD_SUM, 1, 1, bytes, 2, kind == HVD_PULL ? 2u : 1u, members, HVD_PLAN_REMOTE};
    uint64_t offset = 0;
    CHECK_EQUAL(hvd_board_plan_add(host->board, &spec, &offset), HVD_OK);
    CHECK_EQUAL(hvd_net_plan_add(host->net, offset, ring, 2, ring, spec.n_members), HVD_OK);
    return offset;
  }
  // False when the net has closed the connection.
  bool say(const void *bytes, size_t length) {
    for (size_t at = 0; at < length;) {
      ssize_t sent = send(fd, static_cast<const char *>(bytes) + at, length - at, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent < 0 && errno != EAGAIN) return false;
      char drop[4096];
      if (sent < 0 && recv(fd, drop, sizeof drop, MSG_DONTWAIT) == 0) return false;
      at += sent < 0 ? 0 : static_cast<size_t>(sent);
    }
    return true;
  }
  bool say(const Frame &frame, size_t payload = SIZE_MAX) {
    if (!say(&frame, sizeof frame)) return false;
    std::vector<char> bytes(payload == SIZE_MAX ? frame.bytes : payload, 1);
    return say(bytes.data(), bytes.size());
  }
  std::string loss() {
    auto events = host->events(HVD_NET_PEER_LOST);
    CHECK_EQUAL(events.size(), 1u);
    CHECK_EQUAL(events[0].host, 1u);
    return events[0].text;
  }
  hvd_net_info info() {
    hvd_net_info found{};
    hvd_status status = HVD_PENDING;
    while (status == HVD_PENDING) status = hvd_net_stat(host->net, &found);
    CHECK_EQUAL(status, HVD_OK);
    return found;
  }
  void until(const std::function<bool(const hvd_net_info &)> &condition) {
    uint64_t limit = hvd::now_ns() + 10'000'000'000;
    while (!condition(info())) CHECK(hvd::now_ns() < limit);
  }
  std::unique_ptr<NetHost> host;
  int fd = -1;
};

Frame frame_of(FrameType type, uint64_t plan, uint64_t round, uint32_t bytes) {
  Frame frame;
  frame.type = type;
  frame.plan_id = plan;
  frame.round = round;
  frame.bytes = bytes;
  return frame;
}

void test_silence() {
  NetOptions options = Impostor::quick();
  options.ping_ms = 20;
  options.silent_ms = 1000;
  Impostor peer(options);
  uint64_t start = hvd::now_ns();
  for (int i = 0; i < 20; ++i) {  // signs of life
    CHECK(peer.say(Frame{}));
    usleep(20000);
  }
  CHECK_EQUAL(peer.host->events().size(), 0u);
  CHECK(peer.loss().substr(0, 10) == "silence of");
  CHECK(hvd::now_ns() - start > 1'350'000'000);
}

void test_reset_and_goodbye() {
  {
    Impostor peer;
    shutdown(peer.fd, SHUT_RDWR);
    CHECK(peer.loss() == "it closed the connection");
  }
  Impostor peer;
  CHECK(peer.say(frame_of(FrameType::kBye, 0, 0, 0)));
  shutdown(peer.fd, SHUT_RDWR);
  peer.until([](const hvd_net_info &info) { return info.frames_received == 1; });
  usleep(20000);
  CHECK_EQUAL(peer.host->events().size(), 0u);
}

void test_abort() {
  Cluster cluster({1, 1, 1});
  PlanOf plan = cluster.add(HVD_COOPERATIVE, 4 << 20);
  std::thread agents([&] {
    usleep(20000);
    CHECK_EQUAL(hvd_net_abort(cluster.hosts[2]->net, "rank 2 was killed by signal 9"), HVD_OK);
    hvd_board_fail(cluster.hosts[2]->board, HVD_E_FAILED, "here");
    for (uint32_t h : {0u, 1u}) {
      auto events = cluster.hosts[h]->events(HVD_NET_ABORT);
      CHECK(events.size() == 1 && events[0].host == 2);
      CHECK(std::string(events[0].text) == "rank 2 was killed by signal 9");
      hvd_board_fail(cluster.hosts[h]->board, HVD_E_FAILED, events[0].text);
    }
  });
  cluster.run([&](uint32_t rank, NetHost &host, hvd_engine *engine) {
    auto data = ones(1 << 20);
    hvd_status status = HVD_OK;
    while (status == HVD_OK && rank != 1)
      status = world::allreduce(engine, plan.offsets[host.index], data.data(), data.data(), 4 << 20);
    if (rank != 1) CHECK_EQUAL(status, HVD_E_FAILED);
  });
  agents.join();
}

// The board fails under the net, in the middle of rounds: members leave, the net lets go, plans can be removed.
void test_board_fails_in_mid_flight() {
  for (int delay = 0; delay < 12; ++delay) {
    Cluster cluster({2, 1});
    PlanOf plan = cluster.add(HVD_COOPERATIVE, 8 << 20, 4), pull = cluster.add(HVD_PULL, 0, 4);
    std::thread agents([&] {
      usleep(static_cast<useconds_t>(2000 + delay * 3000));
      for (auto &host : cluster.hosts) hvd_board_fail(host->board, HVD_E_FAILED, "over");
    });
    cluster.run([&](uint32_t, NetHost &host, hvd_engine *engine) {
      auto data = ones(2 << 20);
      hvd_status status = HVD_OK;
      while (status == HVD_OK) {
        hvd_op sum = 0, op = 0;
        hvd_segment segment{data.data(), nullptr, 1 << 20};
        status = hvd_op_pull(engine, &segment, 1, nullptr, 0, nullptr, 0, 0, &op);
        if (status == HVD_OK) status = hvd_op_bind(engine, op, pull.offsets[host.index], nullptr);
        if (status == HVD_OK)
          status = hvd_op_reduce_bound(engine, plan.offsets[host.index], data.data(), data.data(), 8 << 20, 0, 0, &sum);
        if (status == HVD_OK) status = world::wait_for(engine, sum);
        if (status == HVD_OK) status = world::wait_for(engine, op);
        if (status == HVD_OK) status = hvd_op_done(engine, op);
      }
      CHECK_EQUAL(status, HVD_E_FAILED);
    });
    agents.join();
    for (auto &host : cluster.hosts) {
      CHECK_EQUAL(hvd_net_plan_remove(host->net, plan.id), HVD_OK);
      CHECK_EQUAL(hvd_board_plan_remove(host->board, plan.offsets[host->index]), HVD_OK);
      CHECK_EQUAL(hvd_net_plan_remove(host->net, pull.id), HVD_OK);
    }
  }
}

// Closed, unlike failed, lets rounds finish that all members everywhere have arrived in.
void test_closed_lets_rounds_finish() {
  Cluster cluster({1, 1});
  PlanOf plan = cluster.add(HVD_COOPERATIVE, 16 << 20), pull = cluster.add(HVD_PULL, 0);
  cluster.run([&](uint32_t rank, NetHost &host, hvd_engine *engine) {
    auto data = ones(4 << 20);
    hvd_segment segment{data.data(), nullptr, 16 << 20};
    hvd_op sum = 0, op = 0;
    if (rank == 1) usleep(30000);
    CHECK_EQUAL(hvd_op_reduce_bound(engine, plan.offsets[host.index], data.data(), data.data(), 16 << 20, 0, 0, &sum), HVD_OK);
    CHECK_EQUAL(hvd_op_pull(engine, &segment, 1, nullptr, 0, nullptr, 0, 0, &op), HVD_OK);
    CHECK_EQUAL(hvd_op_bind(engine, op, pull.offsets[host.index], nullptr), HVD_OK);
    hvd_board_fail(host.board, HVD_E_CLOSED, "shut down");
    CHECK_EQUAL(world::wait_for(engine, sum), HVD_OK);
    CHECK(data == ones(4 << 20, 2));
    CHECK_EQUAL(world::wait_for(engine, op), HVD_OK);
    CHECK_EQUAL(hvd_op_done(engine, op), HVD_OK);
  });
}

// One agent closes as soon as its own ranks are through: the others still get what they need, and see no loss.
void test_early_close() {
  for (int i = 0; i < 5; ++i) {
    Cluster cluster({1, 1, 1});
    PlanOf plan = cluster.add(HVD_COOPERATIVE, i % 2 == 0 ? 400 : 8 << 20);
    uint64_t count = i % 2 == 0 ? 100 : 2 << 20;
    cluster.run([&](uint32_t, NetHost &host, hvd_engine *engine) {
      auto data = ones(count);
      CHECK_EQUAL(world::allreduce(engine, plan.offsets[host.index], data.data(), data.data(), count * 4), HVD_OK);
      CHECK(data == ones(count, 3));
      if (host.index != 0) host.close_net();
    });
    usleep(10000);
    CHECK_EQUAL(cluster.hosts[0]->events().size(), 0u);
  }
}

// A broken rank: what it published can't be used.  All hosts learn that, in this round, and go on.
void test_broken_rank_fails_the_round_everywhere() {
  Cluster cluster({2, 1});
  PlanOf plan = cluster.add(HVD_COOPERATIVE, 800000), direct = cluster.add(HVD_COOPERATIVE, 4000);
  cluster.run([&](uint32_t rank, NetHost &host, hvd_engine *engine) {
    for (const PlanOf *each : {&plan, &direct}) {
      uint64_t bytes = each == &plan ? 800000 : 4000;
      auto data = ones(bytes / 4);
      hvd_op op = 0;
      if (rank == 1) {  // the last to arrive on its host
        auto first = host.board->plan(each->offsets[0]);
        while (first->entry(0).arrived.load() == 0) sched_yield();
        first->entry_member(0, 0).data_offset.store(UINT64_MAX - 64);
      }
      CHECK_EQUAL(hvd_op_reduce_bound(engine, each->offsets[host.index], data.data(), data.data(), bytes, 0, 0, &op), HVD_OK);
      CHECK_EQUAL(world::wait_for(engine, op), HVD_E_INVALID);
      CHECK_EQUAL(world::allreduce(engine, each->offsets[host.index], data.data(), data.data(), bytes), HVD_OK);
    }
  });
}

// An op that is given up before its round opened closes that round on its host; later rounds run.
void test_cancelled_round_is_passed() {
  Cluster cluster({1, 1});
  PlanOf sum = cluster.add(HVD_COOPERATIVE, 400, 4), pull = cluster.add(HVD_PULL, 0, 4);
  for (auto &host : cluster.hosts)
    for (uint64_t offset : {sum.offsets[host->index], pull.offsets[host->index]})
      CHECK_EQUAL(hvd_board_plan_limit(host->board, offset, 0), HVD_OK);
  cluster.run([&](uint32_t, NetHost &host, hvd_engine *engine) {
    auto data = ones(100);
    hvd_op op = 0;
    CHECK_EQUAL(hvd_op_reduce_bound(engine, sum.offsets[host.index], data.data(), data.data(), 400, 0, 0, &op), HVD_MARKED);
    CHECK_EQUAL(hvd_op_fail(engine, op), HVD_OK);
    CHECK_EQUAL(world::wait_for(engine, op), HVD_E_CANCELLED);
  });
  for (auto &host : cluster.hosts)
    for (uint64_t offset : {sum.offsets[host->index], pull.offsets[host->index]}) {
      auto plan = host->board->plan(offset);  // as if a member had arrived and given up
      CHECK(hvd::close_unopened({host->board->view, *plan}, 0, hvd::kCancelled));
      plan->arrivals[host->index == 0 || !plan->is_pull() ? 0 : 1].store(1);
      CHECK_EQUAL(hvd_board_plan_limit(host->board, offset, hvd::kNoLimit), HVD_OK);
    }
  cluster.run([&](uint32_t, NetHost &host, hvd_engine *engine) {
    auto data = ones(100);
    uint64_t round = 0;
    hvd_segment segment{data.data(), data.data(), 400};
    hvd_op op = 0;
    CHECK_EQUAL(hvd_op_reduce(engine, &segment, 1, 0, 0, &op), HVD_OK);
    CHECK_EQUAL(hvd_op_bind(engine, op, sum.offsets[host.index], &round), HVD_OK);
    CHECK_EQUAL(round, 1u);
    CHECK_EQUAL(world::wait_for(engine, op), HVD_OK);
    CHECK(data == ones(100, 2));
  });
}

// All ranks of a host have joined: its agent learns that others have data, arrives with zeros, and the round ends.
void test_joined_host() {
  for (uint64_t count : {0u, 1000u, 100000u}) {
    Cluster cluster({1, 2, 1});
    PlanOf plan = cluster.add(HVD_COOPERATIVE, count * 4, 4);
    hvd_board *board = cluster.hosts[1]->board;
    std::atomic<bool> over{false};
    std::thread agent([&] {
      CHECK_EQUAL(hvd_board_watch_arrivals(board, 1), HVD_OK);
      uint64_t rounds = 0, total = 0;
      auto arrive = [&] {
        for (uint32_t local : {0u, 1u}) {
          CHECK_EQUAL(hvd_board_plan_arrive_for(board, plan.offsets[1], local, 0, &rounds), HVD_OK);
          total += rounds;
        }
      };
      for (arrive(); total < 10;) {
        CHECK(!over);
        auto events = cluster.hosts[1]->events(HVD_NET_WANTED, 5);
        CHECK(!events.empty());
        CHECK(events[0].plan_id == plan.id && events[0].host == 1);
        arrive();
      }
    });
    cluster.run([&](uint32_t rank, NetHost &host, hvd_engine *engine) {
      for (int round = 0; round < 5 && host.index != 1; ++round) {
        auto data = ones(count, static_cast<float>(rank + 1));
        CHECK_EQUAL(world::allreduce(engine, plan.offsets[host.index], data.data(), data.data(), count * 4), HVD_OK);
        CHECK(data == ones(count, 5));
      }
    });
    agent.join();
    over = true;
    hvd_arena_info info{1, 0, 0};
    for (uint64_t until = hvd::now_ns() + 10'000'000'000; info.used_bytes != 0;) {  // the joined host may be the last to end
      CHECK_EQUAL(hvd_arena_stat(cluster.hosts[1]->agent, &info), HVD_OK);
      CHECK(hvd::now_ns() < until);
    }
  }
}

// Frames come before the plan is known here.
void test_parked_frames() {
  Cluster cluster({1, 1});
  PlanOf plan{7, {0, 0}}, pull{8, {0, 0}};
  uint32_t members[] = {0, 1}, turned[] = {1, 0};
  hvd_plan_spec spec{7, HVD_COOPERATIVE, HVD_FLOAT32, HVD_SUM, 1, 1, 4000, 8, 1, members, HVD_PLAN_REMOTE};
  hvd_plan_spec other{8, HVD_PULL, HVD_FLOAT32, HVD_SUM, 1, 1, 0, 8, 2, members, HVD_PLAN_REMOTE};
  hvd_plan_spec large{9, HVD_COOPERATIVE, HVD_FLOAT32, HVD_SUM, 1, 1, 4000000, 8, 1, members, HVD_PLAN_REMOTE};
  PlanOf big{9, {0, 0}};
  std::vector<std::pair<PlanOf *, hvd_plan_spec *>> all = {{&plan, &spec}, {&pull, &other}, {&big, &large}};
  for (auto [which, what] : all) {
    if (what->kind == HVD_PULL) what->members = members;
    cluster.add_on(0, which, *what);
    if (what->kind == HVD_PULL) what->members = turned;
    cluster.add_on(1, which, *what, true);
  }
  cluster.run([&](uint32_t rank, NetHost &host, hvd_engine *engine) {
    std::vector<std::vector<float>> data(8, ones(1000)), more(2, ones(1000000));
    std::vector<hvd_op> ops(8), pulls(4), bigs(2);
    for (int i = 0; i < 8; ++i)
      CHECK_EQUAL(hvd_op_reduce_bound(engine, plan.offsets[rank], data[i].data(), data[i].data(), 4000, 0, 0, &ops[i]), HVD_OK);
    for (int i = 0; i < 2; ++i)
      CHECK_EQUAL(hvd_op_reduce_bound(engine, big.offsets[rank], more[i].data(), more[i].data(), 4000000, 0, 0, &bigs[i]),
                  HVD_OK);
    auto mine = ones(60000, static_cast<float>(rank));
    for (int i = 0; i < 4; ++i) {
      hvd_segment segment{mine.data(), nullptr, 240000};
      CHECK_EQUAL(hvd_op_pull(engine, &segment, 1, nullptr, 0, nullptr, 0, 0, &pulls[i]), HVD_OK);
      CHECK_EQUAL(hvd_op_bind(engine, pulls[i], pull.offsets[rank], nullptr), HVD_OK);
    }
    if (rank == 1) {
      hvd_net_info info{};
      while (info.parked_bytes < 8 * 4000 + 4 * 240000) CHECK_EQUAL(hvd_net_stat(host.net, &info), HVD_OK);
      for (const PlanOf *each : {&plan, &pull, &big}) cluster.net_add(1, *each);
    }
    for (int i = 0; i < 8; ++i) CHECK_EQUAL(world::wait_for(engine, ops[i]), HVD_OK);
    for (int i = 0; i < 8; ++i) CHECK(data[i] == ones(1000, 2));
    for (int i = 0; i < 2; ++i) CHECK_EQUAL(world::wait_for(engine, bigs[i]), HVD_OK);
    for (int i = 0; i < 2; ++i) CHECK(more[i] == ones(1000000, 2));
    for (int i = 0; i < 4; ++i) {
      CHECK_EQUAL(world::wait_for(engine, pulls[i]), HVD_OK);
      std::vector<float> copy(60000);
      hvd_copy what{1 - rank, 0, copy.data(), 240000};
      CHECK_EQUAL(hvd_op_pull_copy(engine, pulls[i], &what, 1), HVD_OK);
      CHECK(copy == ones(60000, static_cast<float>(1 - rank)));
      CHECK_EQUAL(hvd_op_done(engine, pulls[i]), HVD_OK);
    }
    hvd_net_info info{};
    CHECK_EQUAL(hvd_net_stat(host.net, &info), HVD_OK);
    if (rank == 1) CHECK_EQUAL(info.parked_bytes, 0u);
  });
}

// Each of these ends the peer, with a text that says why.
void test_bad_frames() {
  struct Lie {
    const char *text;
    std::function<void(Frame &)> spoil;
  };
  auto base = frame_of(FrameType::kEager, 1, 0, 400);
  std::vector<Lie> lies = {
      {"does not start as one", [](Frame &f) { f.magic = 1; }},
      {"no known type", [](Frame &f) { f.type = static_cast<FrameType>(12); }},
      {"no known type", [](Frame &f) { f.type = static_cast<FrameType>(0); }},
      {"longer than", [](Frame &f) { f.bytes = UINT32_MAX; }},
      {"longer than", [](Frame &f) { f.type = FrameType::kCredit; }},
      {"impossible status", [](Frame &f) { f.status = 9; }},
      {"impossible status", [](Frame &f) { f.status = 1; }},
      {"wrong size", [](Frame &f) { f.bytes = 404; }},
      {"cannot be open", [](Frame &f) { f.round = 4; }},
      {"cannot be open", [](Frame &f) { f.round = UINT64_MAX; }},
      {"not asked for", [](Frame &f) { f.step = 1; }},
      {"does not expect", [](Frame &f) { f.plan_id = 2; f.bytes = 4096; }},
      {"does not expect", [](Frame &f) { f.type = FrameType::kRing; f.plan_id = 2; }},
      {"does not expect", [](Frame &f) { f.type = FrameType::kRing; f.plan_id = 1; }},
      {"is not known", [](Frame &f) { f.type = FrameType::kRing; f.plan_id = 77; }},
      {"does not expect", [](Frame &f) { f = frame_of(FrameType::kCredit, 2, 0, 0), f.index = 99; }},
      {"does not expect", [](Frame &f) { f = frame_of(FrameType::kCredit, 2, 4, 0); }},
      {"does not expect", [](Frame &f) { f = frame_of(FrameType::kMeta, 3, 0, 0); }},
      {"does not expect", [](Frame &f) { f = frame_of(FrameType::kMeta, 3, 9, 0), f.index = 1; }},
      {"bytes to come", [](Frame &f) { f = frame_of(FrameType::kMeta, 3, 0, 0), f.index = 1, f.extra = 1; }},
      {"can have", [](Frame &f) { f = frame_of(FrameType::kMeta, 3, 0, 0), f.index = 1, f.value = 1ull << 60; }},
      {"not announced", [](Frame &f) { f = frame_of(FrameType::kData, 3, 0, 100), f.index = 1; }},
      {"no data", [](Frame &f) { f = frame_of(FrameType::kData, 3, 0, 0), f.index = 1; }},
      {"more tokens", [](Frame &f) { f = frame_of(FrameType::kTokens, 0, 0, 0), f.value = 1; }},
      {"more tokens", [](Frame &f) { f = frame_of(FrameType::kTokens, 0, 0, 0), f.value = UINT64_MAX; }},
      {"cannot be open", [](Frame &f) { f = frame_of(FrameType::kWant, 2, 0, 0); }},
  };
  for (const Lie &lie : lies) {
    Impostor peer;
    peer.add(1, HVD_COOPERATIVE, 400);
    peer.add(2, HVD_COOPERATIVE, 400000);
    peer.add(3, HVD_PULL, 0);
    Frame frame = base;
    lie.spoil(frame);
    peer.say(frame, std::min(frame.bytes, 1000u));
    std::string text = peer.loss();
    if (text.find(lie.text) == std::string::npos) std::printf("%s, not %s\n", text.c_str(), lie.text);
    CHECK(text.find("bad frame") == 0 && text.find(lie.text) != std::string::npos);
  }
}

void test_twice_and_too_much() {
  {
    Impostor peer;
    peer.add(1, HVD_COOPERATIVE, 400);
    peer.say(frame_of(FrameType::kEager, 1, 0, 400));
    peer.say(frame_of(FrameType::kEager, 1, 0, 400));
    CHECK(peer.loss().find("not asked for") != std::string::npos);
  }
  {
    Impostor peer;  // more than the tokens, for a plan that is not known
    bool open = true;
    for (int i = 0; i < 100 && open; ++i) open = peer.say(frame_of(FrameType::kEager, 9, static_cast<uint64_t>(i), 64 << 10));
    CHECK(peer.loss().find("tokens") != std::string::npos);
  }
  {
    Impostor peer;  // frames that need no tokens, for a plan that is not known
    bool open = true;
    for (int i = 0; i < 100000 && open; ++i) open = peer.say(frame_of(FrameType::kCredit, 9, static_cast<uint64_t>(i), 0));
    CHECK(peer.loss().find("too many frames") != std::string::npos);
  }
}

uint64_t memory_kib() {
  long pages = 0, resident = 0;
  std::FILE *file = std::fopen("/proc/self/statm", "r");
  CHECK(file != nullptr && std::fscanf(file, "%ld %ld", &pages, &resident) == 2);
  std::fclose(file);
  return static_cast<uint64_t>(resident) * 4;
}

// Noise: bytes at random, and frames at random that are half right.  Nobody crashes, nothing grows.
void test_noise() {
  std::mt19937_64 random(20260101);
  uint64_t before = 0;
  for (int i = 0; i < 400; ++i) {
    if (i == 50) before = memory_kib();
    Impostor peer;
    hvd_engine *engine = peer.host->open(0);
    uint64_t plans[] = {peer.add(1, HVD_COOPERATIVE, 400), peer.add(2, HVD_COOPERATIVE, 400000), peer.add(3, HVD_PULL, 0)};
    auto data = ones(100000);
    hvd_op ops[3];
    hvd_segment segment{data.data(), nullptr, 70000};
    if (i % 3 != 0) {
      CHECK_EQUAL(hvd_op_reduce_bound(engine, plans[0], data.data(), data.data(), 400, 0, 0, &ops[0]), HVD_OK);
      CHECK_EQUAL(hvd_op_reduce_bound(engine, plans[1], data.data(), data.data(), 400000, 0, 0, &ops[1]), HVD_OK);
      CHECK_EQUAL(hvd_op_pull(engine, &segment, 1, nullptr, 0, nullptr, 0, 0, &ops[2]), HVD_OK);
      CHECK_EQUAL(hvd_op_bind(engine, ops[2], plans[2], nullptr), HVD_OK);
    }
    bool open = true;
    for (int k = 0; k < 60 && open; ++k) {
      Frame frame = frame_of(static_cast<FrameType>(1 + random() % 11), 1 + random() % 4, random() % 4, 0);
      const uint32_t sizes[] = {0, 0, 400, 100, 65600, static_cast<uint32_t>(random() % 70000)};
      frame.bytes = sizes[random() % 6];
      if (frame.type == FrameType::kWant || frame.type == FrameType::kCredit || frame.type > FrameType::kData) frame.bytes = 0;
      if (frame.type == FrameType::kMeta) frame.bytes = 0, frame.value = random() % 200000, frame.extra = frame.value;
      if (frame.type == FrameType::kData) frame.step = 1, frame.value = random() % 1000;
      if (frame.type == FrameType::kTokens) frame.value = random() % 1000;
      if (frame.type == FrameType::kBye || frame.type == FrameType::kAbort) frame.type = FrameType::kPing;
      frame.index = random() % 3;
      if (frame.type == FrameType::kRing) frame.step = random() % 2;
      if (random() % 100 == 0) frame.status = 1, frame.bytes = 0;
      open = peer.say(frame);
    }
    std::vector<uint64_t> junk(1000);
    for (uint64_t &word : junk) word = random();
    if (open) peer.say(junk.data(), 8000);
    CHECK(peer.loss().size() > 10);
    hvd_board_fail(peer.host->board, HVD_E_FAILED, "noise");
    hvd_engine_close(engine);
  }
  uint64_t after = memory_kib();
  std::printf("memory: %llu KiB, then %llu KiB\n", static_cast<unsigned long long>(before),
              static_cast<unsigned long long>(after));
  CHECK(after < before + (100 << 10));
}

hvd_op start_sum(hvd_engine *engine, uint64_t offset, std::vector<float> *data) {
  hvd_op op = 0;
  uint64_t bytes = data->size() * 4;
  CHECK_EQUAL(hvd_op_reduce_bound(engine, offset, data->data(), data->data(), bytes, 0, 0, &op), HVD_OK);
  return op;
}

// All but the last rank are in a round, open on their hosts, in which that rank never arrives: they get out, and go on elsewhere.
void test_withdrawn_rounds(const std::vector<uint32_t> &ranks, uint64_t count) {
  Cluster cluster(ranks);
  PlanOf old = cluster.add(HVD_COOPERATIVE, count * 4), other = cluster.add(HVD_COOPERATIVE, count * 4);
  float total = static_cast<float>(cluster.n_ranks);
  std::atomic<uint32_t> in{0};
  std::atomic<bool> limited{false};
  std::thread agents([&] {
    while (in < cluster.n_ranks) usleep(1000);
    usleep(20000);  // pieces travel, as far as they can
    for (auto &host : cluster.hosts) CHECK_EQUAL(hvd_board_plan_limit(host->board, old.offsets[host->index], 1), HVD_OK);
    for (auto &host : cluster.hosts) CHECK_EQUAL(hvd_net_plan_limit(host->net, old.id, 1), HVD_OK);
    limited = true;
  });
  cluster.run([&](uint32_t rank, NetHost &host, hvd_engine *engine) {
    auto data = ones(count);
    CHECK_EQUAL(world::allreduce(engine, old.offsets[host.index], data.data(), data.data(), count * 4), HVD_OK);
    CHECK(data == ones(count, total));
    data = ones(count);
    bool away = rank + 1 == cluster.n_ranks;
    hvd_op op = away ? 0 : start_sum(engine, old.offsets[host.index], &data);
    ++in;
    while (!limited)
      if (!away) CHECK_EQUAL(hvd_op_poll(engine, op), HVD_PENDING);
    if (!away) {
      CHECK_EQUAL(hvd_op_unbind(engine, op), HVD_OK);
      CHECK_EQUAL(hvd_op_fail(engine, op), HVD_OK);
      CHECK_EQUAL(world::wait_for(engine, op), HVD_E_CANCELLED);
    }
    data = ones(count);
    CHECK_EQUAL(world::allreduce(engine, other.offsets[host.index], data.data(), data.data(), count * 4), HVD_OK);
    CHECK(data == ones(count, total));
  });
  agents.join();
  for (auto &host : cluster.hosts) {
    hvd_status status = HVD_PENDING;
    for (int i = 0; status == HVD_PENDING && i < 1000; ++i) status = hvd_net_plan_remove(host->net, old.id);
    CHECK_EQUAL(status, HVD_OK);
    CHECK_EQUAL(hvd_board_plan_remove(host->board, old.offsets[host->index]), HVD_OK);
    CHECK_EQUAL(host->events().size(), 0u);
  }
}

// A board is closed before the last rank has arrived: the others hear so at once, whether its host stays or goes.
void test_closed_without_a_member(const std::vector<uint32_t> &ranks, uint32_t kind, uint64_t count, bool goes) {
  Cluster cluster(ranks);
  PlanOf plan = cluster.add(kind, kind == HVD_PULL ? 0 : count * 4);
  std::atomic<uint32_t> in{0}, out{0};
  std::thread agents([&] {
    while (in < cluster.n_ranks) usleep(1000);
    usleep(20000);
    if (goes) cluster.hosts.back()->close_net();
    for (auto &host : cluster.hosts) CHECK_EQUAL(hvd_board_fail(host->board, HVD_E_CLOSED, "shut down"), HVD_OK);
  });
  cluster.run([&](uint32_t rank, NetHost &host, hvd_engine *engine) {
    auto data = ones(count);
    bool away = rank + 1 == cluster.n_ranks;
    hvd_op op = 0;
    hvd_segment segment{data.data(), nullptr, count * 4};
    if (!away && kind == HVD_PULL) {
      CHECK_EQUAL(hvd_op_pull(engine, &segment, 1, nullptr, 0, nullptr, 0, 0, &op), HVD_OK);
      CHECK_EQUAL(hvd_op_bind(engine, op, plan.offsets[host.index], nullptr), HVD_OK);
    } else if (!away) {
      op = start_sum(engine, plan.offsets[host.index], &data);
    }
    ++in;
    if (!away) CHECK_EQUAL(world::wait_for(engine, op), HVD_E_CLOSED);
    ++out;
    while (out < cluster.n_ranks) usleep(1000);
  });
  agents.join();
  for (auto &host : cluster.hosts)
    if (host->net != nullptr) CHECK_EQUAL(host->events().size(), 0u);
}

void test_rounds_that_never_finish() {
  for (const auto &ranks : {std::vector<uint32_t>{1, 1}, {1, 1, 1}, {2, 1}, {2, 2, 1, 1}, {1, 2}})
    for (uint64_t count : {uint64_t{100}, uint64_t{400001}}) test_withdrawn_rounds(ranks, count);
}

void test_closed_rounds_that_never_finish() {
  for (const auto &ranks : {std::vector<uint32_t>{1, 1}, {1, 1, 1}, {1, 2}, {1, 1, 1, 1}})
    for (bool goes : {false, true}) {
      if (goes && ranks.back() != 1) continue;
      test_closed_without_a_member(ranks, HVD_COOPERATIVE, 100, goes);
      test_closed_without_a_member(ranks, HVD_COOPERATIVE, 400001, goes);
      test_closed_without_a_member(ranks, HVD_PULL, 1000, goes);
    }
}

void test_bad_arguments() {
  Impostor peer;
  hvd_net *net = peer.host->net;
  uint32_t ring[] = {0, 1}, wrong[] = {1, 1}, alone[] = {1};
  uint64_t local = peer.host->add(HVD_COOPERATIVE, 64);
  CHECK_EQUAL(hvd_net_plan_add(net, local, ring, 2, nullptr, 0), HVD_E_INVALID);
  uint32_t members[] = {0, 1};
  auto add = [&](uint64_t id, uint32_t kind, uint32_t op) {
    bool is_pull = kind == HVD_PULL;
    hvd_plan_spec spec{id, kind, HVD_FLOAT32, op, 1, 1, is_pull ? 0u : 64u, 2, is_pull ? 2u : 1u, members, HVD_PLAN_REMOTE};
    uint64_t offset = 0;
    CHECK_EQUAL(hvd_board_plan_add(peer.host->board, &spec, &offset), HVD_OK);
    return offset;
  };
  uint64_t sum = add(50, HVD_COOPERATIVE, HVD_SUM), pull = add(51, HVD_PULL, HVD_SUM);
  CHECK_EQUAL(hvd_net_plan_add(net, add(52, HVD_COOPERATIVE, HVD_ADASUM), ring, 2, nullptr, 0), HVD_E_INVALID);
  CHECK_EQUAL(hvd_net_plan_add(net, sum, wrong, 2, nullptr, 0), HVD_E_INVALID);
  CHECK_EQUAL(hvd_net_plan_add(net, sum, alone, 1, nullptr, 0), HVD_E_INVALID);
  CHECK_EQUAL(hvd_net_plan_add(net, sum + 256 * 1000, ring, 2, nullptr, 0), HVD_E_INVALID);
  CHECK_EQUAL(hvd_net_plan_add(net, pull, ring, 2, nullptr, 0), HVD_E_INVALID);
  CHECK_EQUAL(hvd_net_plan_add(net, pull, ring, 2, wrong, 2), HVD_E_INVALID);
  CHECK_EQUAL(hvd_net_plan_add(net, pull, ring, 2, ring, 2), HVD_OK);
  CHECK_EQUAL(hvd_net_plan_add(net, pull, ring, 2, ring, 2), HVD_E_INVALID);
  CHECK_EQUAL(hvd_net_plan_add(net, sum, ring, 2, nullptr, 0), HVD_OK);
  CHECK_EQUAL(hvd_net_plan_remove(net, 51), HVD_OK);
  CHECK_EQUAL(hvd_net_plan_remove(net, 51), HVD_E_INVALID);
  CHECK_EQUAL(hvd_net_start(net), HVD_E_INVALID);
  CHECK_EQUAL(hvd_net_add_peer(net, 1, 0, dup(0)), HVD_E_INVALID);
}

}  // namespace

int main() {
  RUN(test_byte_by_byte);
  RUN(test_silence);
  RUN(test_reset_and_goodbye);
  RUN(test_abort);
  RUN(test_cut_at_any_byte);
  RUN(test_board_fails_in_mid_flight);
  RUN(test_closed_lets_rounds_finish);
  RUN(test_early_close);
  RUN(test_broken_rank_fails_the_round_everywhere);
  RUN(test_cancelled_round_is_passed);
  RUN(test_joined_host);
  RUN(test_parked_frames);
  RUN(test_bad_frames);
  RUN(test_twice_and_too_much);
  RUN(test_noise);
  RUN(test_rounds_that_never_finish);
  RUN(test_closed_rounds_that_never_finish);
  RUN(test_bad_arguments);
}
