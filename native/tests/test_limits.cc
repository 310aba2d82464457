// Limits (marks), unbinding, zeros of joined ranks, and what the agent sees.
#include <atomic>
#include <thread>
#include <vector>

#include "board.h"
#include "check.h"
#include "world.h"

using world::Host;

namespace {

struct Pair {
  Host host{2};
  hvd_engine *a = host.open(0), *b = host.open(1);
  std::vector<float> x = std::vector<float>(1024, 1.0f), y = std::vector<float>(1024, 2.0f);
  ~Pair() {
    hvd_engine_close(a);
    hvd_engine_close(b);
  }
  hvd_status submit_a(uint64_t plan, hvd_op *op) {
    return hvd_op_reduce_bound(a, plan, x.data(), x.data(), 4096, 0, 11, op);
  }
  hvd_status submit_b(uint64_t plan, hvd_op *op) {
    return hvd_op_reduce_bound(b, plan, y.data(), y.data(), 4096, HVD_OP_BLOCKING, 12, op);
  }
};

void test_marked_op_moves_to_another_plan() {
  Pair pair;
  uint64_t plan = pair.host.add(HVD_COOPERATIVE, 4096), next = pair.host.add(HVD_COOPERATIVE, 4096);
  hvd_op op_a = 0, op_b = 0;
  CHECK_EQUAL(pair.submit_a(plan, &op_a), HVD_OK);
  CHECK_EQUAL(hvd_op_unbind(pair.a, op_a), HVD_E_INVALID);  // below the limit: it can still finish
  CHECK_EQUAL(hvd_board_plan_limit(pair.host.board, plan, 0), HVD_OK);
  uint64_t arrivals[2];
  CHECK_EQUAL(hvd_board_plan_arrivals(pair.host.board, plan, arrivals), HVD_OK);
  CHECK(arrivals[0] == 1 && arrivals[1] == 0);
  CHECK_EQUAL(pair.submit_b(plan, &op_b), HVD_MARKED);
  CHECK_EQUAL(hvd_op_wait(pair.b, op_b, 5), HVD_PENDING);
  for (auto [engine, op] : {std::pair(pair.a, op_a), std::pair(pair.b, op_b)}) {
    CHECK_EQUAL(hvd_op_unbind(engine, op), HVD_OK);
    CHECK_EQUAL(hvd_op_unbind(engine, op), HVD_E_INVALID);
  }
  uint64_t round = 9;
  CHECK_EQUAL(hvd_op_bind(pair.a, op_a, next, &round), HVD_OK);
  CHECK_EQUAL(round, 0u);
  CHECK_EQUAL(hvd_op_bind(pair.b, op_b, next, &round), HVD_OK);
  CHECK_EQUAL(world::wait_for(pair.a, op_a), HVD_OK);
  CHECK_EQUAL(world::wait_for(pair.b, op_b), HVD_OK);
  CHECK(pair.x[1023] == 3.0f && pair.y == pair.x);
  CHECK_EQUAL(hvd_board_plan_remove(pair.host.board, plan), HVD_OK);
  CHECK_EQUAL(hvd_board_plan_remove(pair.host.board, plan), HVD_E_INVALID);
}

// The agent's helpers and other threads of a rank may look at a block long after it was given to another plan.
void test_helper_with_an_old_plan_claims_nothing() {
  Pair pair;
  uint64_t offset = pair.host.add(HVD_COOPERATIVE, 64);
  auto old = pair.host.board->plan(offset);
  CHECK_EQUAL(hvd_board_plan_remove(pair.host.board, offset), HVD_OK);
  CHECK_EQUAL(pair.host.add(HVD_COOPERATIVE, 4096), offset);
  hvd_op op_a = 0, op_b = 0;
  CHECK_EQUAL(pair.submit_a(offset, &op_a), HVD_OK);
  CHECK_EQUAL(hvd_op_reduce_bound(pair.b, offset, pair.y.data(), pair.y.data(), 4096, 0, 12, &op_b), HVD_OK);
  hvd::ArenaMappings arenas;
  for (int fd : pair.host.arena_fds) arenas.push_back(hvd::Mapping::open(fd, 0));
  hvd::ClaimSlots slots(&pair.host.board->view.agent_slot());
  CHECK(hvd::is_claimable(*old, 0));  // its words look the same
  CHECK(!hvd::help_round({pair.host.board->view, *old}, arenas, slots, 0, hvd::End::kLow));
  CHECK(!pair.host.board->view.block_has_holder(offset));
  CHECK_EQUAL(world::wait_for(pair.a, op_a), HVD_OK);
  CHECK_EQUAL(world::wait_for(pair.b, op_b), HVD_OK);
  CHECK(pair.x == std::vector<float>(1024, 3.0f) && pair.y == pair.x);
}

// Held, then allowed: parked ops go on in the same round.
void test_marked_op_goes_on() {
  Pair pair;
  uint64_t plan = pair.host.add(HVD_COOPERATIVE, 4096), round = 9;
  hvd_op op_a = 0, op_b = 0;
  CHECK_EQUAL(pair.submit_a(plan, &op_a), HVD_OK);
  hvd_board_plan_limit(pair.host.board, plan, 0);
  CHECK_EQUAL(pair.submit_b(plan, &op_b), HVD_MARKED);
  hvd_board_plan_limit(pair.host.board, plan, 1);
  CHECK_EQUAL(hvd_op_bind(pair.b, op_b, plan, &round), HVD_OK);
  CHECK_EQUAL(round, 0u);
  CHECK_EQUAL(hvd_op_unbind(pair.a, op_a), HVD_E_INVALID);
  CHECK_EQUAL(world::wait_for(pair.a, op_a), HVD_OK);
  CHECK_EQUAL(world::wait_for(pair.b, op_b), HVD_OK);
  CHECK_EQUAL(pair.submit_a(plan, &op_a), HVD_MARKED);
  CHECK_EQUAL(hvd_op_fail(pair.a, op_a), HVD_OK);
  CHECK_EQUAL(hvd_op_wait(pair.a, op_a, 0), HVD_E_CANCELLED);
}

// The agent marks and reads while ranks arrive: an arrival that the agent did not see was marked, in every interleaving.
void test_mark_or_seen() {
  for (int i = 0; i < 300; ++i) {
    Host host(1);
    uint64_t plan = host.add(HVD_COOPERATIVE, 0, 64), seen = 0;
    hvd_engine *engine = host.open(0);
    std::atomic<bool> go{false};
    std::thread agent([&] {
      while (!go.load()) {
      }
      hvd_board_plan_limit(host.board, plan, 0);
      hvd_board_plan_arrivals(host.board, plan, &seen);
    });
    uint64_t arrived_unmarked = 0;
    go.store(true);
    for (uint64_t k = 0; k < 40; ++k) {
      hvd_op op = 0;
      hvd_status status = hvd_op_reduce_bound(engine, plan, nullptr, nullptr, 0, 0, 0, &op);
      if (status == HVD_OK) arrived_unmarked = k + 1;
    }
    agent.join();
    CHECK(seen >= arrived_unmarked);
    hvd_engine_close(engine);
  }
}

void test_zeros_of_a_joined_rank() {
  Pair pair;
  uint64_t plan = pair.host.add(HVD_COOPERATIVE, 4096, 4), rounds = 0;
  hvd_op ops[3];
  CHECK_EQUAL(hvd_board_plan_arrive_for(pair.host.board, plan, 1, 0, &rounds), HVD_OK);
  CHECK_EQUAL(rounds, 0u);
  for (hvd_op &op : ops) CHECK_EQUAL(pair.submit_a(plan, &op), HVD_OK);
  CHECK_EQUAL(hvd_op_wait(pair.a, ops[0], 1), HVD_PENDING);
  CHECK_EQUAL(hvd_board_plan_arrive_for(pair.host.board, plan, 1, 0, &rounds), HVD_OK);
  CHECK_EQUAL(rounds, 3u);
  for (hvd_op op : ops) CHECK_EQUAL(world::wait_for(pair.a, op), HVD_OK);
  CHECK(pair.x == std::vector<float>(1024, 1.0f));
  hvd_op op_a = 0, op_b = 0;  // the rank is back: it goes on behind the rounds that it missed
  CHECK_EQUAL(pair.submit_a(plan, &op_a), HVD_OK);
  CHECK_EQUAL(pair.submit_b(plan, &op_b), HVD_OK);
  CHECK_EQUAL(world::wait_for(pair.b, op_b), HVD_OK);
  CHECK_EQUAL(world::wait_for(pair.a, op_a), HVD_OK);
  CHECK(pair.x == std::vector<float>(1024, 3.0f));
}

// A rank that takes no part at all: reductions see no zeros of it.
void test_absence_of_a_joined_rank() {
  for (uint32_t op : {HVD_MIN, HVD_MAX, HVD_PRODUCT, HVD_SUM}) {
    Host host(3);
    uint64_t plan = host.add(HVD_COOPERATIVE, 4096, 2, op), rounds = 0;
    std::vector<float> x(1024, -2.0f), y(1024, -3.0f);
    hvd_engine *a = host.open(0), *b = host.open(2);
    hvd_op first = 0, second = 0;
    CHECK_EQUAL(hvd_op_reduce_bound(a, plan, x.data(), x.data(), 4096, 0, 0, &first), HVD_OK);
    CHECK_EQUAL(hvd_op_reduce_bound(b, plan, y.data(), y.data(), 4096, 0, 0, &second), HVD_OK);
    CHECK_EQUAL(hvd_board_plan_arrive_for(host.board, plan, 1, 1, &rounds), HVD_OK);
    CHECK_EQUAL(rounds, 1u);
    CHECK_EQUAL(world::wait_for(a, first), HVD_OK);
    CHECK_EQUAL(world::wait_for(b, second), HVD_OK);
    float wanted = op == HVD_MIN ? -3.0f : op == HVD_MAX ? -2.0f : op == HVD_PRODUCT ? 6.0f : -5.0f;
    CHECK(x == std::vector<float>(1024, wanted) && y == x);
    hvd_engine_close(a);
    hvd_engine_close(b);
  }
}

void test_scan_and_bell() {
  Pair pair;
  uint64_t plan = pair.host.add(HVD_COOPERATIVE, 4096, 4);
  hvd_round_info rounds[2];
  uint32_t n = 9;
  CHECK_EQUAL(hvd_board_scan(pair.host.board, rounds, 2, &n), HVD_OK);
  CHECK_EQUAL(n, 0u);
  CHECK_EQUAL(hvd_board_wait_bell(pair.host.board, 0), HVD_PENDING);
  hvd_board_watch_arrivals(pair.host.board, 1);
  hvd_op ops[3];
  for (hvd_op &op : ops) CHECK_EQUAL(pair.submit_a(plan, &op), HVD_OK);
  CHECK_EQUAL(hvd_board_wait_bell(pair.host.board, 10000), HVD_OK);
  CHECK_EQUAL(hvd_board_wait_bell(pair.host.board, 0), HVD_PENDING);
  hvd_board_ring_agent(pair.host.board);
  CHECK_EQUAL(hvd_board_wait_bell(pair.host.board, 0), HVD_OK);
  CHECK_EQUAL(hvd_board_scan(pair.host.board, rounds, 2, &n), HVD_OK);
  CHECK_EQUAL(n, 3u);
  CHECK(rounds[0].round == 0 && rounds[0].n_arrived == 1 && rounds[0].n_members == 2 && rounds[0].phase == 0);
  CHECK(rounds[0].plan_id == 1 && rounds[0].offset == plan && rounds[0].age_ns >= rounds[1].age_ns);
  hvd_op op_b = 0;
  CHECK_EQUAL(pair.submit_b(plan, &op_b), HVD_OK);
  CHECK_EQUAL(hvd_board_scan(pair.host.board, rounds, 2, &n), HVD_OK);
  CHECK(n == 3 && rounds[0].n_arrived == 2 && rounds[0].phase == 1);
  CHECK_EQUAL(world::wait_for(pair.b, op_b), HVD_OK);
  CHECK_EQUAL(hvd_board_scan(pair.host.board, rounds, 2, &n), HVD_OK);
  CHECK(n == 3 && rounds[0].phase == 2);
  CHECK_EQUAL(world::wait_for(pair.a, ops[0]), HVD_OK);
  CHECK_EQUAL(hvd_board_scan(pair.host.board, rounds, 2, &n), HVD_OK);
  CHECK_EQUAL(n, 2u);
  hvd_rank_info info{};
  CHECK_EQUAL(hvd_board_rank_info(pair.host.board, 0, &info), HVD_OK);
  CHECK(info.submits == 3 && info.blocked == 0);
}

// A blocked rank shows what it waits for, and since when it does, across calls with short time limits.
void test_blocked_is_shown() {
  Pair pair;
  uint64_t plan = pair.host.add(HVD_COOPERATIVE, 4096);
  hvd_op op = 0;
  CHECK_EQUAL(pair.submit_a(plan, &op), HVD_OK);
  std::thread waiter([&] { CHECK_EQUAL(world::wait_for(pair.a, op), HVD_OK); });
  hvd_rank_info info{};
  while (info.blocked == 0) CHECK_EQUAL(hvd_board_rank_info(pair.host.board, 0, &info), HVD_OK);
  CHECK_EQUAL(info.blocked_tag, 11u);
  CHECK(info.blocked_ns != 0);
  CHECK_EQUAL(hvd_op_tag(pair.a, op, 12), HVD_OK);
  CHECK_EQUAL(hvd_board_rank_info(pair.host.board, 0, &info), HVD_OK);
  CHECK_EQUAL(info.blocked_tag, 12u);
  hvd_op op_b = 0;
  CHECK_EQUAL(pair.submit_b(plan, &op_b), HVD_OK);
  waiter.join();
  CHECK_EQUAL(hvd_board_rank_info(pair.host.board, 0, &info), HVD_OK);
  CHECK_EQUAL(info.blocked, 0u);
  CHECK_EQUAL(world::wait_for(pair.b, op_b), HVD_OK);
  CHECK_EQUAL(hvd_op_tag(pair.a, op, 13), HVD_E_INVALID);
}

// A helper of the agent reduces what nobody waits for.
void test_agent_helps() {
  Pair pair;
  uint64_t plan = pair.host.add(HVD_COOPERATIVE, 4096);
  hvd_op op_a = 0, op_b = 0;
  CHECK_EQUAL(pair.submit_a(plan, &op_a), HVD_OK);
  std::thread helper([&] {
    uint32_t n = 1;
    hvd_round_info info{};
    while (n == 0 || info.phase != 2) {
      CHECK_EQUAL(hvd_board_help(pair.host.board, pair.host.arena_fds.data(), 2, 10), HVD_OK);
      CHECK_EQUAL(hvd_board_scan(pair.host.board, &info, 1, &n), HVD_OK);
    }
  });
  CHECK_EQUAL(hvd_op_reduce_bound(pair.b, plan, pair.y.data(), pair.y.data(), 4096, 0, 0, &op_b), HVD_OK);
  helper.join();
  CHECK_EQUAL(hvd_op_wait(pair.a, op_a, 0), HVD_OK);
  CHECK_EQUAL(hvd_op_wait(pair.b, op_b, 0), HVD_OK);
  CHECK(pair.x == std::vector<float>(1024, 3.0f) && pair.x == pair.y);
}

// Plans come and go; the board does not grow.
void test_blocks_are_reused() {
  Pair pair;
  uint64_t highest = 0;
  for (int i = 0; i < 3000; ++i) {
    uint64_t plan = pair.host.add(HVD_COOPERATIVE, 4096);
    hvd_op op_a = 0, op_b = 0;
    CHECK_EQUAL(pair.submit_a(plan, &op_a), HVD_OK);
    CHECK_EQUAL(pair.submit_b(plan, &op_b), HVD_OK);
    CHECK_EQUAL(world::wait_for(pair.a, op_a), HVD_OK);
    CHECK_EQUAL(world::wait_for(pair.b, op_b), HVD_OK);
    CHECK_EQUAL(hvd_board_plan_remove(pair.host.board, plan), HVD_OK);
    if (i == 0) highest = plan;
    CHECK_EQUAL(plan, highest);
  }
  hvd_op op = 0;
  CHECK_EQUAL(pair.submit_a(highest, &op), HVD_E_INVALID);  // the last plan is gone, its block is empty
}

}  // namespace

int main() {
  RUN(test_marked_op_moves_to_another_plan);
  RUN(test_helper_with_an_old_plan_claims_nothing);
  RUN(test_marked_op_goes_on);
  RUN(test_mark_or_seen);
  RUN(test_zeros_of_a_joined_rank);
  RUN(test_absence_of_a_joined_rank);
  RUN(test_scan_and_bell);
  RUN(test_blocked_is_shown);
  RUN(test_agent_helps);
  RUN(test_blocks_are_reused);
}
