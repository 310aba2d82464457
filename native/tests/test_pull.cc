// Pull rounds: uneven sizes, meta integers, reductions by readers, and how long published data stay.
#include <cstring>
#include <vector>

#include "check.h"
#include "world.h"

using world::Host;

namespace {

hvd_op publish(hvd_engine *engine, uint64_t plan, const std::vector<float> &data, const std::vector<int64_t> &meta) {
  hvd_segment segment{data.data(), nullptr, data.size() * 4};
  hvd_op op = 0;
  CHECK_EQUAL(hvd_op_pull(engine, &segment, 1, meta.data(), static_cast<uint32_t>(meta.size()), nullptr, 0, 0, &op), HVD_OK);
  CHECK_EQUAL(hvd_op_bind(engine, op, plan, nullptr), HVD_OK);
  return op;
}

void test_gather_uneven() {
  Host host(3);
  uint64_t plan = host.add(HVD_PULL, 0);
  world::threads(host, [&](uint32_t rank, hvd_engine *engine) {
    for (uint32_t round = 0; round < 20; ++round) {
      std::vector<float> data((rank + round) % 3 * 1000, static_cast<float>(rank + round));
      hvd_op op = publish(engine, plan, data, {rank, round, -7});
      CHECK_EQUAL(world::wait_for(engine, op), HVD_OK);
      for (uint32_t m = 0; m < 3; ++m) {
        int64_t meta[3] = {};
        uint32_t n = 0;
        uint64_t bytes = 0;
        CHECK_EQUAL(hvd_op_meta(engine, op, m, meta, 3, &n, &bytes), HVD_OK);
        CHECK(n == 3 && meta[0] == m && meta[1] == round && meta[2] == -7);
        CHECK_EQUAL(bytes, (m + round) % 3 * 4000);
        std::vector<float> copy(bytes / 4, -1.0f);
        hvd_copy what{m, 0, copy.data(), bytes};
        CHECK_EQUAL(hvd_op_pull_copy(engine, op, &what, 1), HVD_OK);
        CHECK(copy == std::vector<float>(bytes / 4, static_cast<float>(m + round)));
        hvd_copy beyond{m, 4, copy.data(), bytes};
        CHECK_EQUAL(hvd_op_pull_copy(engine, op, &beyond, 1), HVD_E_INVALID);
      }
      CHECK_EQUAL(hvd_op_done(engine, op), HVD_OK);
      CHECK_EQUAL(hvd_op_done(engine, op), HVD_E_INVALID);
    }
  });
}

// A rank that has joined publishes nothing, in as many rounds as the others have; its entry is free for later ones.
void test_absent_member() {
  Host host(2);
  uint64_t plan = host.add(HVD_PULL, 0, 2), rounds = 0;
  hvd_engine *engine = host.open(0);
  CHECK_EQUAL(hvd_board_plan_arrive_for(host.board, plan, 1, 0, &rounds), HVD_E_INVALID);  // zeros of which size?
  for (uint32_t round = 0; round < 5; ++round) {
    hvd_op op = publish(engine, plan, std::vector<float>(8, 3.0f), {8});
    CHECK_EQUAL(hvd_op_wait(engine, op, 1), HVD_PENDING);
    CHECK_EQUAL(hvd_board_plan_arrive_for(host.board, plan, 1, 1, &rounds), HVD_OK);
    CHECK_EQUAL(rounds, 1u);
    CHECK_EQUAL(world::wait_for(engine, op), HVD_OK);
    uint32_t n = 9;
    uint64_t bytes = 9;
    CHECK_EQUAL(hvd_op_meta(engine, op, 1, nullptr, 0, &n, &bytes), HVD_OK);
    CHECK(n == 0 && bytes == 0);
    std::vector<float> sum(8, 0.0f);
    CHECK_EQUAL(hvd_op_pull_reduce(engine, op, 0, sum.data(), 32), HVD_OK);
    CHECK(sum == std::vector<float>(8, 3.0f));
    CHECK_EQUAL(hvd_op_done(engine, op), HVD_OK);
  }
  hvd_engine_close(engine);
}

void test_pull_reduce() {
  Host host(2);
  uint64_t plan = host.add(HVD_PULL, 0, 2, HVD_SUM, HVD_FLOAT32, 0.5);
  world::threads(host, [&](uint32_t rank, hvd_engine *engine) {
    std::vector<float> data(1000, rank == 0 ? 1.0f : 3.0f), out(500, 0.0f);
    hvd_op op = publish(engine, plan, data, {});
    CHECK_EQUAL(world::wait_for(engine, op), HVD_OK);
    CHECK_EQUAL(hvd_op_pull_reduce(engine, op, rank * 2000, out.data(), 2000), HVD_OK);
    CHECK(out == std::vector<float>(500, 2.0f));
    CHECK_EQUAL(hvd_op_pull_reduce(engine, op, 2004, out.data(), 2000), HVD_E_INVALID);
    CHECK_EQUAL(hvd_op_pull_reduce(engine, op, 2, out.data(), 8), HVD_E_INVALID);
    CHECK_EQUAL(hvd_op_done(engine, op), HVD_OK);
  });
}

// The data of a publisher stay until the last member has read, although the publisher goes on at once.
void test_lazy_free() {
  Host host(2);
  uint64_t plan = host.add(HVD_PULL, 0, 4);
  hvd_engine *fast = host.open(0), *slow = host.open(1);
  std::vector<float> data(4 << 20, 5.0f), small(1, 0.0f);
  hvd_op first = publish(fast, plan, data, {1}), other = publish(slow, plan, small, {});
  CHECK_EQUAL(world::wait_for(fast, first), HVD_OK);
  CHECK_EQUAL(hvd_op_done(fast, first), HVD_OK);
  hvd_arena_info before{}, after{};
  hvd_arena_stat(host.arenas[0], &before);
  CHECK(before.used_bytes >= data.size() * 4);
  CHECK_EQUAL(world::wait_for(slow, other), HVD_OK);
  std::vector<float> copy(data.size(), 0.0f);
  hvd_copy what{0, 0, copy.data(), copy.size() * 4};
  CHECK_EQUAL(hvd_op_pull_copy(slow, other, &what, 1), HVD_OK);
  CHECK(copy == data);
  CHECK_EQUAL(hvd_op_done(slow, other), HVD_OK);
  hvd_op second = publish(fast, plan, small, {}), again = publish(slow, plan, small, {});
  CHECK_EQUAL(world::wait_for(fast, second), HVD_OK);
  CHECK_EQUAL(world::wait_for(slow, again), HVD_OK);
  CHECK_EQUAL(hvd_op_done(fast, second), HVD_OK);
  hvd_arena_stat(host.arenas[0], &after);
  CHECK(after.used_bytes < data.size() * 4);
  hvd_engine_close(fast);  // `slow` has not read the second round: the block stays until the next engine opens
  CHECK_EQUAL(hvd_op_done(slow, again), HVD_OK);
  hvd_engine_close(slow);
  for (uint32_t rank : {0u, 1u}) {
    hvd_engine_close(host.open(rank));
    hvd_arena_stat(host.arenas[rank], &after);
    CHECK_EQUAL(after.used_bytes, 0u);
  }
}

}  // namespace

int main() {
  RUN(test_gather_uneven);
  RUN(test_pull_reduce);
  RUN(test_absent_member);
  RUN(test_lazy_free);
}
