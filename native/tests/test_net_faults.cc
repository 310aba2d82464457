// What ends connections and epochs: they drip, break, fall silent, are closed; and a rank that is broken.
#include <atomic>
#include <cstring>
#include <sys/socket.h>

#include "bell.h"
#include "board.h"
#include "check.h"
#include "net_trouble.h"

using hvd::Frame;
using hvd::FrameType;
using world::Cluster;
using world::answer_to;
using world::Gate;
using world::Impostor;
using world::NetHost;
using world::NetOptions;
using world::PlanOf;
using world::frame_of;
using world::ones;
using world::same;

namespace {

void test_byte_by_byte() {
  world::Forwarder drip(1, UINT64_MAX);
  NetOptions options;
  options.lanes = 1;
  Cluster cluster({1, 1, 1}, options, drip.joiner());
  PlanOf small = cluster.add(HVD_COOPERATIVE, 400), large = cluster.add(HVD_COOPERATIVE, 100000);
  PlanOf pull = cluster.add(HVD_PULL, 0);
  cluster.run([&](uint32_t rank, NetHost &host, hvd_engine *engine) {
    for (const PlanOf *plan : {&small, &large}) {
      auto data = ones(plan == &small ? 100 : 25000, static_cast<float>(rank + 1));
      CHECK_EQUAL(world::allreduce(engine, plan->offsets[host.index], data.data(), data.data(), data.size() * 4), HVD_OK);
      CHECK(same(data, ones(data.size(), 6)));
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
      CHECK(same(copy, ones(3000, static_cast<float>(m))));
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
    world::Forwarder cutter(1 << 16, cut);
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
        if (status == HVD_OK) CHECK(same(data, ones(kCount, 4)));
      }
      CHECK_EQUAL(status, HVD_E_FAILED);
    });
    over = true;
    agents.join();
    CHECK(failed >= 3);
    for (auto &host : cluster.hosts) CHECK_EQUAL(hvd_board_plan_remove(host->board, plan.offsets[host->index]), HVD_OK);
  }
}

// Who says something now and then is not silent, whatever it says.
void test_silence() {
  NetOptions options = Impostor::quick();
  options.ping_ms = 20;
  options.silent_ms = 1000;
  Impostor peer(options);
  uint64_t start = hvd::now_ns();
  while (hvd::now_ns() - start < 1'500'000'000) {  // longer than silence may last
    peer.hear(FrameType::kPing);
    CHECK(peer.say(Frame{}));
  }
  CHECK_EQUAL(peer.host->events().size(), 0u);
  uint64_t last = hvd::now_ns();
  CHECK(peer.loss().substr(0, 10) == "silence of");
  CHECK(hvd::now_ns() - last > 500'000'000);
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
  world::until([&] { return world::info_of(*peer.host).frames_received == 1; });
  world::give_a_turn(*peer.host);
  CHECK_EQUAL(peer.host->events().size(), 0u);
}

NetOptions by(uint32_t algorithm) {
  NetOptions options;
  options.algorithm = algorithm;
  return options;
}

// Until a rank has arrived in the first round, and it is open here.
void until_arrived(const NetHost &host, const PlanOf &plan) {
  auto view = host.board->plan(plan.offsets[host.index]);
  world::until([&] { return view->entry(0).arrived.load() != 0; });
}

void test_abort(uint32_t algorithm, uint64_t count) {
  Cluster cluster({1, 1, 1}, by(algorithm));
  PlanOf plan = cluster.add(HVD_COOPERATIVE, count * 4);
  std::thread agents([&] {
    for (uint32_t h : {0u, 2u}) until_arrived(*cluster.hosts[h], plan);
    world::settle(cluster);
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
    auto data = ones(count);
    hvd_status status = HVD_OK;
    while (status == HVD_OK && rank != 1)
      status = world::allreduce(engine, plan.offsets[host.index], data.data(), data.data(), count * 4);
    if (rank != 1) CHECK_EQUAL(status, HVD_E_FAILED);
  });
  agents.join();
}

// While what could be sent without the one that is missing is on its way.
void test_aborts() {
  test_abort(HVD_NET_BY_SIZE, 1000);
  test_abort(HVD_NET_BY_SIZE, 1 << 20);
  test_abort(HVD_NET_DOUBLING, 1000);
}

// The board fails under the net, when some bytes have gone: members leave, the net lets go, plans can be removed.
void test_board_fails_in_mid_flight(uint32_t algorithm, uint64_t count) {
  for (uint64_t step = 0; step < 12; ++step) {
    Cluster cluster({2, 1}, by(algorithm));
    PlanOf plan = cluster.add(HVD_COOPERATIVE, count * 4, 4), pull = cluster.add(HVD_PULL, 0, 4);
    std::thread agents([&] {
      world::until([&] { return world::info_of(*cluster.hosts[step % 2]).bytes_sent > step * count * 3 / 2; });
      for (auto &host : cluster.hosts) hvd_board_fail(host->board, HVD_E_FAILED, "over");
    });
    cluster.run([&](uint32_t, NetHost &host, hvd_engine *engine) {
      auto data = ones(count);
      hvd_status status = HVD_OK;
      while (status == HVD_OK) {
        hvd_op sum = 0, op = 0;
        hvd_segment segment{data.data(), nullptr, count / 2};
        status = hvd_op_pull(engine, &segment, 1, nullptr, 0, nullptr, 0, 0, &op);
        if (status == HVD_OK) status = hvd_op_bind(engine, op, pull.offsets[host.index], nullptr);
        if (status == HVD_OK)
          status = hvd_op_reduce_bound(engine, plan.offsets[host.index], data.data(), data.data(), count * 4, 0, 0, &sum);
        if (status == HVD_OK) status = world::wait_for(engine, sum);
        if (status == HVD_OK) status = world::wait_for(engine, op);
        if (status == HVD_OK) status = hvd_op_done(engine, op);
      }
      CHECK_EQUAL(status, HVD_E_FAILED);
    });
    agents.join();
    for (auto &host : cluster.hosts) {
      CHECK_EQUAL(answer_to([&] { return hvd_net_plan_remove(host->net, plan.id); }), HVD_OK);
      CHECK_EQUAL(hvd_board_plan_remove(host->board, plan.offsets[host->index]), HVD_OK);
      CHECK_EQUAL(answer_to([&] { return hvd_net_plan_remove(host->net, pull.id); }), HVD_OK);
    }
  }
}

void test_boards_fail_in_mid_flight() {
  test_board_fails_in_mid_flight(HVD_NET_BY_SIZE, 2 << 20);
  test_board_fails_in_mid_flight(HVD_NET_BY_SIZE, 4000);
  test_board_fails_in_mid_flight(HVD_NET_DOUBLING, 16000);
}

// Closed, unlike failed, lets rounds finish that all members everywhere have arrived in.
void test_closed_lets_rounds_finish() {
  Cluster cluster({1, 1});
  Gate closed;
  PlanOf plan = cluster.add(HVD_COOPERATIVE, 16 << 20), pull = cluster.add(HVD_PULL, 0);
  cluster.run([&](uint32_t rank, NetHost &host, hvd_engine *engine) {
    auto data = ones(4 << 20);
    hvd_segment segment{data.data(), nullptr, 16 << 20};
    hvd_op sum = 0, op = 0;
    if (rank == 1) closed.wait(1);
    CHECK_EQUAL(hvd_op_reduce_bound(engine, plan.offsets[host.index], data.data(), data.data(), 16 << 20, 0, 0, &sum), HVD_OK);
    CHECK_EQUAL(hvd_op_pull(engine, &segment, 1, nullptr, 0, nullptr, 0, 0, &op), HVD_OK);
    CHECK_EQUAL(hvd_op_bind(engine, op, pull.offsets[host.index], nullptr), HVD_OK);
    hvd_board_fail(host.board, HVD_E_CLOSED, "shut down");
    closed.arrive();
    CHECK_EQUAL(world::wait_for(engine, sum), HVD_OK);
    CHECK(same(data, ones(4 << 20, 2)));
    CHECK_EQUAL(world::wait_for(engine, op), HVD_OK);
    CHECK_EQUAL(hvd_op_done(engine, op), HVD_OK);
  });
}

// One agent closes as soon as its own ranks are through: the others still get what they need, and see no loss.
void test_early_close(uint32_t algorithm) {
  for (int i = 0; i < 5; ++i) {
    Cluster cluster({1, 1, 1, 1, 1}, by(algorithm));
    PlanOf plan = cluster.add(HVD_COOPERATIVE, i % 2 == 0 ? 400 : 8 << 20);
    uint64_t count = i % 2 == 0 ? 100 : 2 << 20;
    cluster.run([&](uint32_t, NetHost &host, hvd_engine *engine) {
      auto data = ones(count);
      CHECK_EQUAL(world::allreduce(engine, plan.offsets[host.index], data.data(), data.data(), count * 4), HVD_OK);
      CHECK(same(data, ones(count, 5)));
      if (host.index != 0) host.close_net();
    });
    world::give_a_turn(*cluster.hosts[0]);
    CHECK_EQUAL(cluster.hosts[0]->events().size(), 0u);
  }
}

void test_early_closes() {
  test_early_close(HVD_NET_BY_SIZE);
  test_early_close(HVD_NET_DOUBLING);
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
        world::until([&] { return first->entry(0).arrived.load() != 0; });
        first->entry_member(0, 0).data_offset.store(UINT64_MAX - 64);
      }
      CHECK_EQUAL(hvd_op_reduce_bound(engine, each->offsets[host.index], data.data(), data.data(), bytes, 0, 0, &op), HVD_OK);
      CHECK_EQUAL(world::wait_for(engine, op), HVD_E_INVALID);
      CHECK_EQUAL(world::allreduce(engine, each->offsets[host.index], data.data(), data.data(), bytes), HVD_OK);
    }
  });
}

}  // namespace

int main() {
  RUN(test_byte_by_byte);
  RUN(test_silence);
  RUN(test_reset_and_goodbye);
  RUN(test_aborts);
  RUN(test_cut_at_any_byte);
  RUN(test_boards_fail_in_mid_flight);
  RUN(test_closed_lets_rounds_finish);
  RUN(test_early_closes);
  RUN(test_broken_rank_fails_the_round_everywhere);
}
