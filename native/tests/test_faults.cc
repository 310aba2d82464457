// What goes wrong: ranks that die, stop, never come or give up, and epochs that end while ranks sleep.
#include <csignal>
#include <cstring>
#include <string>
#include <sys/wait.h>
#include <vector>

#include "bell.h"
#include "board.h"
#include "check.h"
#include "world.h"

using world::Host;

namespace {

constexpr uint64_t kBytes = 8 << 20;

uint32_t sleepers_of(Host &host, uint32_t rank) { return host.board->view.slots[rank].bell.sleepers.load(); }

// Until `rank` sleeps in a wait; the test would otherwise only meet ranks that spin.
void wait_until_asleep(Host &host, uint32_t rank) {
  uint64_t until = hvd::now_ns() + 10'000'000'000;
  while (sleepers_of(host, rank) == 0) CHECK(hvd::now_ns() < until);
}

// Publishes a claim as rank 1 would and takes the next chunk, then never finishes it.
std::atomic<uint64_t> *hold_a_chunk(Host &host, uint64_t plan, uint64_t round) {
  auto view = host.board->plan(plan);
  auto &slot = host.board->view.slots[1].claims[0];
  slot.store(hvd::claim_name(plan, round));
  std::atomic<uint64_t> &claim = view->entry(round).claim;
  uint64_t word = claim.load();
  do {
    CHECK(hvd::claim_round(word) == round && hvd::claim_low(word) + hvd::claim_high(word) < view->n_chunks);
  } while (!claim.compare_exchange_strong(word, word + 1));
  return &slot;
}

void test_never_arriving_rank() {
  for (hvd_status code : {HVD_E_CLOSED, HVD_E_FAILED}) {
    Host host(2);
    uint64_t plan = host.add(HVD_COOPERATIVE, kBytes);
    auto ranks = world::processes(host, [&](uint32_t rank, hvd_engine *engine) {
      if (rank == 1) return;
      std::vector<float> data(kBytes / 4, 1.0f);
      CHECK_EQUAL(world::allreduce(engine, plan, data.data(), data.data(), kBytes), code);
      char reason[64];
      CHECK_EQUAL(hvd_engine_reason(engine, reason, sizeof reason), 14u);
      CHECK(std::string(reason) == "rank 1 is lost");
      hvd_op op = 0;
      CHECK_EQUAL(hvd_op_reduce_bound(engine, plan, data.data(), data.data(), kBytes, 0, 0, &op), code);
      CHECK_EQUAL(op, 0);
    });
    wait_until_asleep(host, 0);
    CHECK_EQUAL(hvd_board_fail(host.board, code, "rank 1 is lost"), HVD_OK);
    CHECK_EQUAL(hvd_board_fail(host.board, code, "a later reason"), HVD_OK);
    for (pid_t rank : ranks) CHECK(world::exited_well(rank));
  }
}

// Unbound and parked ops sleep too; the end of the epoch reaches them.
void test_fail_while_unbound() {
  Host host(1);
  uint64_t plan = host.add(HVD_COOPERATIVE, 4096);
  hvd_board_plan_limit(host.board, plan, 0);
  auto ranks = world::processes(host, [&](uint32_t, hvd_engine *engine) {
    std::vector<float> data(1024, 1.0f);
    hvd_segment segment{data.data(), data.data(), 4096};
    hvd_op unbound = 0, parked = 0;
    CHECK_EQUAL(hvd_op_reduce(engine, &segment, 1, HVD_OP_BLOCKING, 0, &unbound), HVD_OK);
    CHECK_EQUAL(hvd_op_reduce_bound(engine, plan, data.data(), data.data(), 4096, 0, 0, &parked), HVD_MARKED);
    CHECK_EQUAL(world::wait_for(engine, unbound), HVD_E_FAILED);
    CHECK_EQUAL(world::wait_for(engine, parked), HVD_E_FAILED);
    CHECK_EQUAL(hvd_op_wait(engine, parked, 0), HVD_E_INVALID);
  });
  wait_until_asleep(host, 0);
  hvd_board_fail(host.board, HVD_E_FAILED, "over");
  CHECK(world::exited_well(ranks[0]));
}

// A rank is killed while it holds a chunk: the others get an error, but only once it is known to be dead.
void test_killed_in_a_chunk() {
  Host host(2);
  uint64_t plan = host.add(HVD_COOPERATIVE, kBytes);
  world::Meeting arrived_there;
  hvd_engine *engine = host.open(0);
  std::vector<float> data(kBytes / 4, 1.0f);
  pid_t victim = fork();
  if (victim == 0) {
    hvd_engine *other = host.open(1);
    hvd_op op = 0;
    hvd_op_reduce_bound(other, plan, data.data(), data.data(), kBytes, 0, 0, &op);
    arrived_there.arrive();
    pause();
    _exit(0);
  }
  hvd_op op = 0;
  CHECK_EQUAL(hvd_op_reduce_bound(engine, plan, data.data(), data.data(), kBytes, 0, 0, &op), HVD_OK);
  arrived_there.wait(1);
  hold_a_chunk(host, plan, 0);  // as if the victim had claimed it
  CHECK_EQUAL(hvd_op_wait(engine, op, 50), HVD_PENDING);
  kill(victim, SIGKILL);
  waitpid(victim, nullptr, 0);
  hvd_board_fail(host.board, HVD_E_FAILED, "rank 1 was killed");
  CHECK_EQUAL(hvd_op_wait(engine, op, 50), HVD_PENDING);  // the holder might still write into our memory
  uint8_t arrived[2], holder[2];
  CHECK_EQUAL(hvd_board_round_members(host.board, plan, 0, arrived, holder), HVD_OK);
  CHECK(arrived[0] == 1 && arrived[1] == 1 && holder[0] == 0 && holder[1] == 1);
  hvd_rank_info info{};
  CHECK_EQUAL(hvd_board_rank_info(host.board, 1, &info), HVD_OK);
  CHECK_EQUAL(info.claims, 1u);
  CHECK_EQUAL(hvd_board_plan_remove(host.board, plan), HVD_PENDING);
  CHECK_EQUAL(hvd_board_rank_dead(host.board, 1), HVD_OK);
  CHECK_EQUAL(world::wait_for(engine, op), HVD_E_FAILED);
  CHECK_EQUAL(hvd_board_plan_remove(host.board, plan), HVD_OK);
  hvd_engine_close(engine);
}

// Many seeds of the real thing: SIGKILL at any moment of a stream of rounds.
void test_killed_at_any_moment() {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    Host host(3);
    world::Meeting running;
    uint64_t plan = host.add(HVD_COOPERATIVE, kBytes / 8);
    auto ranks = world::processes(host, [&](uint32_t, hvd_engine *engine) {
      std::vector<float> data(kBytes / 32, 1.0f);
      for (uint32_t round = 0;; ++round) {
        hvd_status status = world::allreduce(engine, plan, data.data(), data.data(), kBytes / 8, round % 2);
        if (status == HVD_E_FAILED) _exit(0);
        CHECK_EQUAL(status, HVD_OK);
        running.arrive();
      }
    });
    running.wait(3 + seed * 5);
    kill(ranks[1], SIGKILL);
    waitpid(ranks[1], nullptr, 0);
    hvd_board_fail(host.board, HVD_E_FAILED, "rank 1 was killed");
    hvd_board_rank_dead(host.board, 1);
    CHECK(world::exited_well(ranks[0]) && world::exited_well(ranks[2]));
  }
}

// A stopped holder can go on at any time: its round is left when it has finished its chunk.
void test_stopped_holder_is_waited_for() {
  Host host(2);
  uint64_t plan = host.add(HVD_COOPERATIVE, kBytes);
  pid_t rank = fork();
  if (rank == 0) {
    hvd_engine *engine = host.open(0);
    std::vector<float> data(kBytes / 4, 1.0f);
    CHECK_EQUAL(world::allreduce(engine, plan, data.data(), data.data(), kBytes), HVD_E_FAILED);
    hvd_engine_close(engine);
    _exit(0);
  }
  wait_until_asleep(host, 0);
  kill(rank, SIGSTOP);  // so that it does not take all chunks before we hold one
  waitpid(rank, nullptr, WUNTRACED);
  hvd_engine *other = host.open(1);
  std::vector<float> mine(kBytes / 4, 1.0f);
  hvd_op op = 0;
  CHECK_EQUAL(hvd_op_reduce_bound(other, plan, mine.data(), mine.data(), kBytes, 0, 0, &op), HVD_OK);
  std::atomic<uint64_t> *slot = hold_a_chunk(host, plan, 0);
  kill(rank, SIGCONT);
  hvd_board_fail(host.board, HVD_E_FAILED, "over");
  CHECK_EQUAL(hvd_op_wait(other, op, 20), HVD_PENDING);
  CHECK_EQUAL(waitpid(rank, nullptr, WNOHANG), 0);
  slot->store(0);
  hvd::ring(host.board->view.slots[0].bell);
  CHECK(world::exited_well(rank));
  CHECK_EQUAL(world::wait_for(other, op), HVD_E_FAILED);
  hvd_engine_close(other);
}

// Closed, unlike failed, lets a round finish in which all have arrived.
void test_closed_lets_full_rounds_finish() {
  Host host(2);
  uint64_t plan = host.add(HVD_COOPERATIVE, kBytes), lonely = host.add(HVD_COOPERATIVE, 4096);
  hvd_engine *a = host.open(0), *b = host.open(1);
  std::vector<float> x(kBytes / 4, 1.0f), y(kBytes / 4, 2.0f), z(1024, 0.0f);
  hvd_op op_a = 0, op_b = 0, op_lonely = 0;
  CHECK_EQUAL(hvd_op_reduce_bound(a, plan, x.data(), x.data(), kBytes, 0, 0, &op_a), HVD_OK);
  CHECK_EQUAL(hvd_op_reduce_bound(a, lonely, z.data(), z.data(), 4096, 0, 0, &op_lonely), HVD_OK);
  CHECK_EQUAL(hvd_op_reduce_bound(b, plan, y.data(), y.data(), kBytes, 0, 0, &op_b), HVD_OK);
  hvd_board_fail(host.board, HVD_E_CLOSED, "shut down");
  CHECK_EQUAL(world::wait_for(a, op_lonely), HVD_E_CLOSED);
  CHECK_EQUAL(world::wait_for(a, op_a), HVD_OK);
  hvd_board_fail(host.board, HVD_E_FAILED, "worse");
  CHECK_EQUAL(world::wait_for(b, op_b), HVD_OK);  // a completed round beats a failed board
  CHECK(x == std::vector<float>(kBytes / 4, 3.0f) && x == y);
  CHECK_EQUAL(hvd_engine_state(a), HVD_E_FAILED);
  hvd_engine_close(a);
  hvd_engine_close(b);
}

void test_cancelled_op_ends_its_round() {
  Host host(2);
  uint64_t plan = host.add(HVD_COOPERATIVE, 4096);
  hvd_engine *a = host.open(0), *b = host.open(1);
  std::vector<float> x(1024, 1.0f), y(1024, 1.0f);
  hvd_op op_a = 0, op_b = 0;
  CHECK_EQUAL(hvd_op_reduce_bound(a, plan, x.data(), x.data(), 4096, 0, 0, &op_a), HVD_OK);
  CHECK_EQUAL(hvd_op_fail(a, op_a), HVD_OK);
  CHECK_EQUAL(world::wait_for(a, op_a), HVD_E_CANCELLED);
  CHECK_EQUAL(hvd_op_reduce_bound(b, plan, y.data(), y.data(), 4096, 0, 0, &op_b), HVD_OK);
  CHECK_EQUAL(world::wait_for(b, op_b), HVD_E_CANCELLED);
  CHECK(y == std::vector<float>(1024, 1.0f));
  hvd_engine_close(a);
  hvd_engine_close(b);
}

// A rank that closes its engine with a thread asleep and an open round leaves nobody behind.
void test_close_wakes_own_threads() {
  Host host(2);
  uint64_t plan = host.add(HVD_COOPERATIVE, kBytes);
  hvd_engine *a = host.open(0), *b = host.open(1);
  std::vector<float> x(kBytes / 4, 1.0f), y(kBytes / 4, 1.0f);
  std::thread waiter([&] { CHECK_EQUAL(world::allreduce(a, plan, x.data(), x.data(), kBytes), HVD_E_CANCELLED); });
  wait_until_asleep(host, 0);
  hvd_engine_close(a);
  waiter.join();
  CHECK_EQUAL(world::allreduce(b, plan, y.data(), y.data(), kBytes), HVD_E_CANCELLED);
  hvd_engine_close(b);
  hvd_arena_info info{};
  hvd_arena_stat(host.arenas[0], &info);
  CHECK_EQUAL(info.used_bytes, 0u);
}

// What a broken rank writes must not bring the agent down or make it loop.
void test_scribbled_board() {
  Host host(2);
  uint64_t plan = host.add(HVD_COOPERATIVE, kBytes);
  auto view = host.board->plan(plan);
  std::memset(static_cast<void *>(view->entries), 0xa5, view->entry_stride * view->depth);
  for (uint32_t m = 0; m < 2; ++m) view->arrivals[m].store(m == 0 ? ~0ull : 1);
  hvd_round_info rounds[4];
  uint32_t n = 0;
  uint64_t zeros = 0;
  uint8_t arrived[2], holder[2];
  CHECK_EQUAL(hvd_board_scan(host.board, rounds, 4, &n), HVD_OK);
  CHECK_EQUAL(hvd_board_plan_arrive_for(host.board, plan, 1, 0, &zeros), HVD_OK);
  CHECK(zeros <= 2);
  CHECK_EQUAL(hvd_board_help(host.board, host.arena_fds.data(), 2, 1), HVD_OK);
  CHECK_EQUAL(hvd_board_round_members(host.board, plan, 0, arrived, holder), HVD_OK);
  std::memset(static_cast<void *>(view->header), 0xff, sizeof(hvd::PlanHeader));
  hvd_engine *engine = host.open(0);
  float data = 0;
  hvd_op op = 0;
  CHECK_EQUAL(hvd_op_reduce_bound(engine, plan, &data, &data, 4, 0, 0, &op), HVD_E_INVALID);
  hvd_engine_close(engine);
}

// A peer that publishes an address outside of its arena makes the round fail on all, and nobody crash.
void test_address_out_of_range() {
  Host host(2);
  uint64_t plan = host.add(HVD_COOPERATIVE, 4096);
  hvd_engine *a = host.open(0), *b = host.open(1);
  std::vector<float> x(1024, 1.0f), y(1024, 1.0f);
  hvd_op op_a = 0, op_b = 0;
  CHECK_EQUAL(hvd_op_reduce_bound(a, plan, x.data(), x.data(), 4096, 0, 0, &op_a), HVD_OK);
  host.board->plan(plan)->entry_member(0, 0).data_offset.store(UINT64_MAX - 64);
  CHECK_EQUAL(hvd_op_reduce_bound(b, plan, y.data(), y.data(), 4096, 0, 0, &op_b), HVD_OK);
  CHECK_EQUAL(world::wait_for(b, op_b), HVD_E_INVALID);
  CHECK_EQUAL(world::wait_for(a, op_a), HVD_E_INVALID);
  hvd_engine_close(a);
  hvd_engine_close(b);
}

}  // namespace

int main() {
  RUN(test_never_arriving_rank);
  RUN(test_fail_while_unbound);
  RUN(test_killed_in_a_chunk);
  RUN(test_killed_at_any_moment);
  RUN(test_stopped_holder_is_waited_for);
  RUN(test_closed_lets_full_rounds_finish);
  RUN(test_cancelled_op_ends_its_round);
  RUN(test_close_wakes_own_threads);
  RUN(test_scribbled_board);
  RUN(test_address_out_of_range);
}
