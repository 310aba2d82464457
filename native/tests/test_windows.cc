// Windows whose thread has left its wait: other calls of the rank move them, so that peers do not wait for ever.
#include <atomic>
#include <sched.h>
#include <vector>

#include "board.h"
#include "check.h"
#include "values.h"
#include "world.h"

using world::Host;
using world::data_of;
using world::same;
using world::sum_of;

namespace {

constexpr uint64_t kCount = 700001, kBytes = kCount * 4;  // more chunks than a window has slots
constexpr double kSeconds = 10;

hvd_op submit(hvd_engine *engine, uint64_t plan, std::vector<float> *data) {
  hvd_op op = 0;
  CHECK_EQUAL(hvd_op_reduce_bound(engine, plan, data->data(), data->data(), kBytes, HVD_OP_BLOCKING, 0, &op), HVD_OK);
  return op;
}

hvd_op submit_barrier(hvd_engine *engine, uint64_t plan) {
  hvd_op op = 0;
  CHECK_EQUAL(hvd_op_reduce_bound(engine, plan, nullptr, nullptr, 0, 0, 0, &op), HVD_OK);
  return op;
}

// Rank 0 leaves its windowed op alone and makes `others` calls; rank 1 waits for it.  Later rank 0 finds its output written.
void abandon(Host &host, uint64_t plan, const std::function<void(hvd_engine *)> &others,
             const std::function<void(hvd_engine *)> &peer_after) {
  world::threads(host, [&](uint32_t rank, hvd_engine *engine) {
    auto data = data_of(rank, kCount);
    hvd_op op = submit(engine, plan, &data);
    if (rank == 0) others(engine);
    CHECK_EQUAL(world::wait_for(engine, op, kSeconds), HVD_OK);
    CHECK(same(data, sum_of(2, kCount)));
    if (rank == 1) peer_after(engine);
  });
}

void test_another_wait_moves_the_window() {
  for (uint64_t spin_ns : {0u, 20000u}) {
    Host host(2, spin_ns);
    uint64_t plan = host.add(HVD_COOPERATIVE, kBytes), barrier = host.add(HVD_COOPERATIVE, 0);
    auto meet = [&](hvd_engine *engine) {
      CHECK_EQUAL(world::wait_for(engine, submit_barrier(engine, barrier), kSeconds), HVD_OK);
    };
    abandon(host, plan, meet, meet);
  }
}

void test_another_poll_moves_the_window() {
  Host host(2);
  uint64_t plan = host.add(HVD_COOPERATIVE, kBytes), barrier = host.add(HVD_COOPERATIVE, 0);
  auto poll = [&](hvd_engine *engine) {
    hvd_op op = submit_barrier(engine, barrier);
    uint64_t until = hvd::now_ns() + 10'000'000'000;
    while (hvd_op_poll(engine, op) == HVD_PENDING) CHECK(hvd::now_ns() < until);
  };
  abandon(host, plan, poll, [&](hvd_engine *engine) { submit_barrier(engine, barrier); });
}

void test_another_submit_moves_the_window() {
  Host host(2);
  uint64_t plan = host.add(HVD_COOPERATIVE, kBytes), lonely = host.add_for({0}, HVD_COOPERATIVE, 0, 64);
  std::atomic<bool> finished{false};
  auto submit_only = [&](hvd_engine *engine) {
    uint64_t until = hvd::now_ns() + 10'000'000'000;
    for (; !finished.load(); sched_yield()) {
      CHECK(hvd::now_ns() < until);
      submit_barrier(engine, lonely);
    }
  };
  abandon(host, plan, submit_only, [&](hvd_engine *) { finished.store(true); });
}

// What is left in a window goes out too: a round that this rank has not read would hold up the ring for its peer.
void test_abandoned_rounds_leave_the_ring() {
  constexpr uint32_t kRounds = 6;
  Host host(2);
  uint64_t plan = host.add(HVD_COOPERATIVE, kBytes, 2), barrier = host.add(HVD_COOPERATIVE, 0);
  world::threads(host, [&](uint32_t rank, hvd_engine *engine) {
    std::vector<std::vector<float>> data(kRounds, data_of(rank, kCount));
    std::vector<hvd_op> ops;
    for (auto &one : data) {
      ops.push_back(submit(engine, plan, &one));
      if (rank == 1) CHECK_EQUAL(world::wait_for(engine, ops.back(), kSeconds), HVD_OK);
    }
    CHECK_EQUAL(world::wait_for(engine, submit_barrier(engine, barrier), kSeconds), HVD_OK);
    for (uint32_t i = 0; i < kRounds; ++i) {
      if (rank == 0) CHECK_EQUAL(hvd_op_wait(engine, ops[i], 0), HVD_OK);
      CHECK(same(data[i], sum_of(2, kCount)));
    }
  });
}

// One thread waits for the window that another thread drives, while the epoch fails under both.
void test_epoch_fails_while_another_thread_drives() {
  for (int delay = 0; delay < 20; ++delay) {
    Host host(2);
    uint64_t plan = host.add(HVD_COOPERATIVE, kBytes), never = host.add(HVD_COOPERATIVE, 64);
    hvd_engine *a = host.open(0), *b = host.open(1);
    auto x = data_of(0, kCount), y = data_of(1, kCount);
    hvd_op op_a = submit(a, plan, &x), op_b = submit(b, plan, &y);
    auto ends = [](hvd_engine *engine, hvd_op op) {
      hvd_status status = world::wait_for(engine, op, kSeconds);
      CHECK(status == HVD_E_FAILED || status == HVD_OK);
    };
    std::thread other([&] {
      float z[16] = {};
      CHECK_EQUAL(world::allreduce(a, never, z, z, 64), HVD_E_FAILED);
    });
    std::thread owner(ends, a, op_a), peer(ends, b, op_b);
    for (int i = 0; i < delay * 10; ++i) sched_yield();
    hvd_board_fail(host.board, HVD_E_FAILED, "over");
    for (std::thread *thread : {&other, &owner, &peer}) thread->join();
    hvd_engine_close(a);
    hvd_engine_close(b);
  }
}

}  // namespace

int main() {
  RUN(test_another_wait_moves_the_window);
  RUN(test_another_poll_moves_the_window);
  RUN(test_another_submit_moves_the_window);
  RUN(test_abandoned_rounds_leave_the_ring);
  RUN(test_epoch_fails_while_another_thread_drives);
}
