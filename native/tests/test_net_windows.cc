// Rounds between hosts whose members stage their data through windows: all mixtures, and every way in which such rounds end.
#include <atomic>
#include <cstring>
#include <vector>

#include "bell.h"
#include "board.h"
#include "check.h"
#include "net_world.h"
#include "round.h"
#include "values.h"

using world::Cluster;
using world::answer_to;
using world::NetHost;
using world::PlanOf;
using world::data_of;
using world::few;
using world::same;
using world::sum_of;

namespace {

constexpr uint64_t kCount = 4300001, kBytes = kCount * 4;  // more chunks than a window has slots, for a lone member too
enum Memory : uint32_t { kWindow, kStaged, kArena };

hvd_op submit(hvd_engine *engine, uint64_t plan, void *data, uint64_t bytes = kBytes, uint32_t flags = HVD_OP_BLOCKING) {
  hvd_op op = 0;
  CHECK_EQUAL(hvd_op_reduce_bound(engine, plan, data, data, bytes, flags, 0, &op), HVD_OK);
  return op;
}

template <class Condition>
void wait_until(const Condition &holds) {
  for (uint64_t until = hvd::now_ns() + 100'000'000'000; !holds(); sched_yield()) CHECK(hvd::now_ns() < until);
}

bool is_carried(const hvd::PlanView &plan, uint64_t round, uint32_t chunk) {
  uint64_t word = plan.ready(round, chunk).load();
  return word >> 8 == round + 1 && (word & hvd::kCarried) != 0;
}

void reduce_in(Memory memory, hvd_engine *engine, NetHost &host, uint32_t local, uint64_t plan, std::vector<float> *data) {
  uint64_t bytes = data->size() * 4;
  char *at = reinterpret_cast<char *>(data->data()), *own = nullptr;
  if (memory == kArena) {
    own = static_cast<char *>(hvd_arena_alloc(host.arenas[local], bytes));
    std::memcpy(own, at, bytes);
  }
  hvd_op op = submit(engine, plan, own == nullptr ? at : own, bytes, memory == kStaged ? 0u : HVD_OP_BLOCKING);
  CHECK_EQUAL(world::wait_for(engine, op), HVD_OK);
  if (own == nullptr) return;
  std::memcpy(at, own, bytes);
  CHECK_EQUAL(hvd_arena_free(host.arenas[local], own), HVD_OK);
}

// Each rank's memory changes from round to round, so that leaders with and without windows meet members of all kinds.
void test_mixtures() {
  for (const auto &shape : few({std::vector<uint32_t>{1, 1}, {2, 2}, {1, 3}, {2, 1, 1}}))
    for (uint64_t count : few({kCount, uint64_t{2097153}, uint64_t{300001}})) {
      Cluster cluster(shape);
      PlanOf plan = cluster.add(HVD_COOPERATIVE, count * 4);
      auto sum = sum_of(cluster.n_ranks, count);
      cluster.run([&](uint32_t rank, NetHost &host, hvd_engine *engine) {
        for (uint32_t round = 0; round < 5; ++round) {
          auto data = data_of(rank, count);
          auto memory = round == 0 ? kWindow : static_cast<Memory>((round / (rank + 1) + rank) % 3);
          reduce_in(memory, engine, host, cluster.local_of[rank], plan.offsets[host.index], &data);
          CHECK(same(data, sum));
        }
      });
      for (auto &host : cluster.hosts)
        for (hvd_arena *arena : host->arenas) {
          hvd_arena_info info{};
          CHECK_EQUAL(hvd_arena_stat(arena, &info), HVD_OK);
          CHECK_EQUAL(info.used_bytes, 0u);
        }
    }
}

// Sums of 16-bit floats are rounded at each step: all ranks have the same bits all the same, odd lengths and factors too.
void test_bits() {
  constexpr uint64_t kHalves = 4234567;
  Cluster cluster({2, 1, 2});
  PlanOf plan = cluster.add(HVD_COOPERATIVE, kHalves * 2, 2, HVD_SUM, HVD_BFLOAT16, 0.5, 0.3);
  std::vector<std::vector<uint16_t>> results(cluster.n_ranks);
  cluster.run([&](uint32_t rank, NetHost &host, hvd_engine *engine) {
    std::vector<uint16_t> data(kHalves);
    for (uint64_t i = 0; i < kHalves; ++i) data[i] = static_cast<uint16_t>(0x3f80 + (i * 31 + rank * 7) % 128);
    uint32_t flags = rank == 3 ? 0 : HVD_OP_BLOCKING;
    CHECK_EQUAL(world::wait_for(engine, submit(engine, plan.offsets[host.index], data.data(), kHalves * 2, flags)), HVD_OK);
    results[rank] = data;
  });
  for (uint32_t r = 1; r < cluster.n_ranks; ++r) CHECK(results[r] == results[0]);
}

// A rank leaves the wait for its window; what it waits for meanwhile moves it.
void test_abandoned_window() {
  Cluster cluster({2, 1});
  PlanOf plan = cluster.add(HVD_COOPERATIVE, kBytes), barrier = cluster.add(HVD_COOPERATIVE, 0);
  auto sum = sum_of(3, kCount);
  cluster.run([&](uint32_t rank, NetHost &host, hvd_engine *engine) {
    auto meet = [&] { CHECK_EQUAL(world::allreduce(engine, barrier.offsets[host.index], nullptr, nullptr, 0), HVD_OK); };
    auto data = data_of(rank, kCount);
    hvd_op op = submit(engine, plan.offsets[host.index], data.data());
    if (rank < 2) meet();
    CHECK_EQUAL(world::wait_for(engine, op), HVD_OK);
    CHECK(same(data, sum));
    if (rank == 2) meet();
  });
}

// Two rounds of one plan at once, from two threads of each rank: each has its window.
void test_rounds_at_once() {
  Cluster cluster({2, 1});
  PlanOf plan = cluster.add(HVD_COOPERATIVE, kBytes, 2);
  auto sum = sum_of(3, kCount);
  cluster.run([&](uint32_t rank, NetHost &host, hvd_engine *engine) {
    for (int i = 0; i < 2; ++i) {
      auto first = data_of(rank, kCount), second = data_of(rank, kCount);
      hvd_op ops[] = {submit(engine, plan.offsets[host.index], first.data()),
                      submit(engine, plan.offsets[host.index], second.data())};
      std::thread other([&] { CHECK_EQUAL(world::wait_for(engine, ops[1]), HVD_OK); });
      CHECK_EQUAL(world::wait_for(engine, ops[0]), HVD_OK);
      other.join();
      CHECK(same(first, sum) && same(second, sum));
    }
  });
}

// Rank 1 takes part until the net is through with the round, but does not take the last results; `ends` is what becomes of it.
// Rank 0, from whose window it would take them, does not end before.
void leave_results(const std::function<void(NetHost &, hvd_engine **, hvd_op)> &ends) {
  Cluster cluster({2, 1});
  PlanOf plan = cluster.add(HVD_COOPERATIVE, kBytes);
  auto view = cluster.hosts[0]->board->plan(plan.offsets[0]);
  hvd_engine *engines[] = {cluster.hosts[0]->open(0), cluster.hosts[0]->open(1), cluster.hosts[1]->open(0)};
  std::vector<float> data[] = {data_of(0, kCount), data_of(1, kCount), data_of(2, kCount)};
  hvd_op ops[3];
  for (uint32_t r : {0u, 1u, 2u}) ops[r] = submit(engines[r], plan.offsets[r == 2 ? 1 : 0], data[r].data());
  auto poll = [&](uint32_t r) { CHECK_EQUAL(hvd_op_poll(engines[r], ops[r]), HVD_PENDING); };
  auto filled = [&](uint32_t r) {
    auto at = cluster.hosts[r == 2 ? 1 : 0]->board->plan(plan.offsets[r == 2 ? 1 : 0]);
    return at->entry_member(0, r == 2 ? 0 : r).filled.load();
  };
  // A poll may fill two chunks: the last one of rank 2 is missing, so none of rank 1's polls can end its op.
  wait_until([&] {
    for (uint32_t r : {0u, 1u})
      if (filled(r) < view->n_chunks) poll(r);
    if (filled(2) + 2 < view->n_chunks) poll(2);
    return filled(0) == view->n_chunks && filled(1) == view->n_chunks;
  });
  std::thread other([&] { CHECK_EQUAL(world::wait_for(engines[2], ops[2]), HVD_OK); });
  wait_until([&] {
    poll(0);
    return hvd::phase_of(*view, 0) == hvd::Phase::kComplete;
  });
  for (int i = 0; i < 20; ++i) CHECK_EQUAL(hvd_op_wait(engines[0], ops[0], 1), HVD_PENDING);
  ends(*cluster.hosts[0], &engines[1], ops[1]);
  CHECK_EQUAL(world::wait_for(engines[0], ops[0]), HVD_OK);
  CHECK(same(data[0], sum_of(3, kCount)));
  other.join();
  for (hvd_engine *engine : engines)
    if (engine != nullptr) hvd_engine_close(engine);
}

void test_leader_waits_for_readers() {
  leave_results([](NetHost &, hvd_engine **engine, hvd_op op) { CHECK_EQUAL(world::wait_for(*engine, op), HVD_OK); });
}

void test_reader_closes() {
  leave_results([](NetHost &, hvd_engine **engine, hvd_op) {
    hvd_engine_close(*engine);
    *engine = nullptr;
  });
}

void test_reader_dies() {
  leave_results([](NetHost &host, hvd_engine **, hvd_op) {
    CHECK_EQUAL(hvd_board_rank_dead(host.board, 1), HVD_OK);
    hvd_board_fail(host.board, HVD_E_FAILED, "rank 1 died");
  });
}

// The epoch fails when this chunk has been carried: all end, nobody holds anything, the plan can be removed.
void test_board_fails_in_mid_flight() {
  for (const auto &shape : few({std::vector<uint32_t>{1, 1}, {2, 1}, {3, 2}}))
    for (uint32_t chunk : few({0u, 4u, 8u, 12u, 16u})) {
      Cluster cluster(shape);
      PlanOf plan = cluster.add(HVD_COOPERATIVE, kBytes, 2);
      std::thread agents([&] {
        auto view = cluster.hosts[0]->board->plan(plan.offsets[0]);
        wait_until([&] { return is_carried(*view, 1, chunk % view->n_chunks); });
        for (auto &host : cluster.hosts) hvd_board_fail(host->board, HVD_E_FAILED, "over");
      });
      cluster.run([&](uint32_t rank, NetHost &host, hvd_engine *engine) {
        hvd_status status = HVD_OK;
        while (status == HVD_OK) {
          auto data = data_of(rank, kCount);
          status = world::allreduce(engine, plan.offsets[host.index], data.data(), data.data(), kBytes);
        }
        CHECK_EQUAL(status, HVD_E_FAILED);
      });
      agents.join();
      for (auto &host : cluster.hosts) {
        CHECK_EQUAL(answer_to([&] { return hvd_net_plan_remove(host->net, plan.id); }), HVD_OK);
        CHECK_EQUAL(hvd_board_plan_remove(host->board, plan.offsets[host->index]), HVD_OK);
      }
    }
}

// Closed, unlike failed, lets a round finish in which all have arrived, though windows have not begun to move.
void test_closed_lets_rounds_finish() {
  Cluster cluster({2, 1});
  PlanOf plan = cluster.add(HVD_COOPERATIVE, kBytes);
  std::atomic<uint32_t> in{0};
  auto sum = sum_of(3, kCount);
  cluster.run([&](uint32_t rank, NetHost &host, hvd_engine *engine) {
    auto data = data_of(rank, kCount);
    hvd_op op = submit(engine, plan.offsets[host.index], data.data());
    ++in;
    wait_until([&] { return in == 3; });
    hvd_board_fail(host.board, HVD_E_CLOSED, "shut down");
    CHECK_EQUAL(world::wait_for(engine, op), HVD_OK);
    CHECK(same(data, sum));
  });
}

// The last rank never arrives in a round that is open on the others' hosts, with their windows full.  They get out, and their ops go on
// with what the user's memory holds.
void test_withdrawn_rounds() {
  for (const auto &shape : {std::vector<uint32_t>{1, 1}, {2, 1}, {1, 2}, {2, 2, 1}}) {
    Cluster cluster(shape);
    PlanOf old = cluster.add(HVD_COOPERATIVE, kBytes), other = cluster.add(HVD_COOPERATIVE, kBytes);
    uint32_t last = cluster.n_ranks - 1;
    std::atomic<uint32_t> full{0};
    std::atomic<bool> limited{false};
    auto sum = sum_of(cluster.n_ranks, kCount);
    std::thread agents([&] {
      wait_until([&] { return full == last; });
      for (auto &host : cluster.hosts) CHECK_EQUAL(hvd_board_plan_limit(host->board, old.offsets[host->index], 0), HVD_OK);
      for (auto &host : cluster.hosts) CHECK_EQUAL(answer_to([&] { return hvd_net_plan_limit(host->net, old.id, 0); }), HVD_OK);
      limited = true;
    });
    cluster.run([&](uint32_t rank, NetHost &host, hvd_engine *engine) {
      auto data = data_of(rank, kCount);
      auto view = host.board->plan(old.offsets[host.index]);
      hvd_op op = 0;
      if (rank != last) {
        op = submit(engine, view->offset, data.data());
        const auto &member = view->entry_member(0, cluster.local_of[rank]);
        wait_until([&] {
          CHECK_EQUAL(hvd_op_poll(engine, op), HVD_PENDING);
          return member.filled.load() == view->window_slots();
        });
        ++full;
        wait_until([&] {
          CHECK_EQUAL(hvd_op_poll(engine, op), HVD_PENDING);
          return limited.load();
        });
        CHECK_EQUAL(hvd_op_unbind(engine, op), HVD_OK);
        CHECK_EQUAL(hvd_op_bind(engine, op, other.offsets[host.index], nullptr), HVD_OK);
      } else {
        op = submit(engine, other.offsets[host.index], data.data());
      }
      CHECK_EQUAL(world::wait_for(engine, op), HVD_OK);
      CHECK(same(data, sum));
    });
    agents.join();
  }
}

// What a broken rank published can't be used: the round fails everywhere, windows run through it, the next round is well.
void test_broken_rank() {
  for (uint32_t broken : {0u, 1u}) {
    Cluster cluster({2, 1});
    PlanOf plan = cluster.add(HVD_COOPERATIVE, kBytes);
    auto sum = sum_of(3, kCount);
    cluster.run([&](uint32_t rank, NetHost &host, hvd_engine *engine) {
      auto data = data_of(rank, kCount);
      auto view = cluster.hosts[0]->board->plan(plan.offsets[0]);
      hvd::EntryMember &member = view->entry_member(0, broken);
      if (rank < 2 && rank != broken) {  // the last to arrive on its host
        wait_until([&] { return view->entry(0).arrived.load() != 0; });
        member.data_offset.store(UINT64_MAX - 64);
      }
      hvd_op op = submit(engine, plan.offsets[host.index], data.data());
      CHECK_EQUAL(world::wait_for(engine, op), HVD_E_INVALID);
      data = data_of(rank, kCount);
      CHECK_EQUAL(world::allreduce(engine, plan.offsets[host.index], data.data(), data.data(), kBytes), HVD_OK);
      CHECK(same(data, sum));
    });
  }
}

// One of two ranks of a host has joined: the other is the leader, wherever it stands among the members.
void check_joined_rank(uint32_t joined, int absent) {
  Cluster cluster({2, 1});
  PlanOf plan = cluster.add(HVD_COOPERATIVE, kBytes);
  NetHost &home = *cluster.hosts[0];
  auto view = home.board->plan(plan.offsets[0]);
  std::thread agent([&] {
    wait_until([&] { return view->arrivals[1 - joined].load() == 1; });
    uint64_t rounds = 0;
    CHECK_EQUAL(hvd_board_plan_arrive_for(home.board, plan.offsets[0], joined, absent, &rounds), HVD_OK);
    CHECK_EQUAL(rounds, 1u);
  });
  auto sum = data_of(1 - joined, kCount), third = data_of(2, kCount);
  for (uint64_t i = 0; i < kCount; ++i) sum[i] += third[i];
  cluster.run([&](uint32_t rank, NetHost &host, hvd_engine *engine) {
    if (rank == joined) return;
    auto data = data_of(rank, kCount);
    CHECK_EQUAL(world::allreduce(engine, plan.offsets[host.index], data.data(), data.data(), kBytes), HVD_OK);
    CHECK(same(data, sum));
  });
  agent.join();
}

void test_joined_rank() {
  for (uint32_t joined : {0u, 1u})
    for (int absent : {0, 1}) check_joined_rank(joined, absent);
}

}  // namespace

int main() {
  RUN(test_mixtures);
  RUN(test_bits);
  RUN(test_abandoned_window);
  RUN(test_rounds_at_once);
  RUN(test_leader_waits_for_readers);
  RUN(test_reader_closes);
  RUN(test_reader_dies);
  RUN(test_board_fails_in_mid_flight);
  RUN(test_closed_lets_rounds_finish);
  RUN(test_withdrawn_rounds);
  RUN(test_broken_rank);
  RUN(test_joined_rank);
}
