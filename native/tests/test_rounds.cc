// Rounds between ranks that are threads, each with its own mapping of board and arenas.
#include <algorithm>
#include <cstring>
#include <vector>

#include "check.h"
#include "values.h"
#include "world.h"

using world::Host;
using world::data_of;
using world::few;
using world::same;
using world::sum_of;

namespace {

void check_allreduce(uint32_t n, uint64_t count, uint32_t flags) {
  Host host(n);
  uint64_t plan = host.add(HVD_COOPERATIVE, count * 4);
  world::threads(host, [&](uint32_t rank, hvd_engine *engine) {
    for (uint32_t round = 0; round < 5; ++round) {
      auto in = data_of(rank, count, round);
      std::vector<float> out(count + 1, -1.0f);
      CHECK_EQUAL(world::allreduce(engine, plan, in.data(), out.data(), count * 4, flags), HVD_OK);
      CHECK(out.back() == -1.0f);
      out.pop_back();
      CHECK(same(out, sum_of(n, count, round)));
    }
  });
}

void test_plain_sizes() {
  for (uint64_t count : few({1u, 3u, 1000u, 8192u, 16384u, 40001u, 700001u}))
    for (uint32_t flags : {0u, HVD_OP_BLOCKING})
      for (uint32_t n : {1u, 2u, 3u}) check_allreduce(n, count, flags);
}

void test_many_ranks() {
  for (uint32_t n : {4u, 8u}) check_allreduce(n, 100001, HVD_OP_BLOCKING);
}

void test_in_arena() {
  Host host(2);
  constexpr uint64_t kCount = 500000;
  uint64_t plan = host.add(HVD_COOPERATIVE, kCount * 4);
  world::threads(host, [&](uint32_t rank, hvd_engine *engine) {
    auto *data = static_cast<float *>(hvd_arena_alloc(host.arenas[rank], kCount * 4));
    for (uint32_t round = 0; round < 3; ++round) {
      auto in = data_of(rank, kCount, round);
      std::copy(in.begin(), in.end(), data);
      CHECK_EQUAL(world::allreduce(engine, plan, data, data, kCount * 4), HVD_OK);
      CHECK(same(std::vector<float>(data, data + kCount), sum_of(2, kCount, round)));
    }
    hvd_arena_info info{};
    CHECK_EQUAL(hvd_arena_stat(host.arenas[rank], &info), HVD_OK);
    CHECK(info.used_bytes < kCount * 4 + 4096);  // nothing was staged
    CHECK_EQUAL(hvd_arena_free(host.arenas[rank], data), HVD_OK);
  });
}

// One round in which a windowed, a whole-staged and an in-arena member meet.
void test_mixed_placement() {
  Host host(3);
  constexpr uint64_t kCount = 900001;
  uint64_t plan = host.add(HVD_COOPERATIVE, kCount * 4);
  world::threads(host, [&](uint32_t rank, hvd_engine *engine) {
    auto *slot = static_cast<float *>(hvd_arena_alloc(host.arenas[rank], kCount * 4));
    for (uint32_t round = 0; round < 6; ++round) {
      auto data = data_of(rank, kCount, round);
      uint32_t way = (rank + round) % 3;
      float *buffer = way == 0 ? slot : data.data();
      if (way == 0) std::copy(data.begin(), data.end(), slot);
      CHECK_EQUAL(world::allreduce(engine, plan, buffer, buffer, kCount * 4, way == 1 ? HVD_OP_BLOCKING : 0u), HVD_OK);
      CHECK(same(std::vector<float>(buffer, buffer + kCount), sum_of(3, kCount, round)));
    }
  });
}

void test_segments_with_padding() {
  Host host(2);
  std::vector<uint64_t> counts = {1, 17, 5000, 3, 90000};
  uint64_t bytes = 0;
  for (uint64_t count : counts) bytes = (bytes + 63) / 64 * 64 + count * 4;
  uint64_t plan = host.add(HVD_COOPERATIVE, bytes);
  world::threads(host, [&](uint32_t rank, hvd_engine *engine) {
    for (uint32_t flags : {0u, HVD_OP_BLOCKING}) {
      std::vector<std::vector<float>> in, out;
      std::vector<hvd_segment> segments;
      for (uint64_t count : counts) {
        in.push_back(data_of(rank, count));
        out.emplace_back(count, 0.0f);
      }
      for (size_t i = 0; i < counts.size(); ++i) segments.push_back({in[i].data(), out[i].data(), counts[i] * 4});
      hvd_op op = 0;
      CHECK_EQUAL(hvd_op_reduce(engine, segments.data(), 5, flags, 7, &op), HVD_OK);
      CHECK_EQUAL(hvd_op_bind(engine, op, plan, nullptr), HVD_OK);
      CHECK_EQUAL(world::wait_for(engine, op), HVD_OK);
      for (size_t i = 0; i < counts.size(); ++i) CHECK(same(out[i], sum_of(2, counts[i])));
      CHECK_EQUAL(hvd_op_wait(engine, op, 0), HVD_E_INVALID);  // the handle is gone
    }
  });
}

void test_barrier() {
  Host host(3);
  uint64_t plan = host.add(HVD_COOPERATIVE, 0);
  std::vector<int> seen(3, 0);
  world::threads(host, [&](uint32_t, hvd_engine *engine) {
    for (int i = 0; i < 200; ++i) CHECK_EQUAL(world::allreduce(engine, plan, nullptr, nullptr, 0), HVD_OK);
  });
}

// Many rounds of one plan are open at once; more than the ring holds are deferred, not refused.
void test_many_open_rounds() {
  constexpr uint32_t kRounds = 500;
  for (uint32_t depth : {512u, 4u, 1u}) {
    Host host(2);
    uint64_t plan = host.add(HVD_COOPERATIVE, 4096, depth);
    world::threads(host, [&](uint32_t rank, hvd_engine *engine) {
      std::vector<std::vector<float>> data;
      std::vector<hvd_op> ops(kRounds);
      for (uint32_t i = 0; i < kRounds; ++i) data.push_back(data_of(rank, 1024, i));
      for (uint32_t i = 0; i < kRounds; ++i)
        CHECK_EQUAL(hvd_op_reduce_bound(engine, plan, data[i].data(), data[i].data(), 4096, 0, i, &ops[i]), HVD_OK);
      for (uint32_t k = 0; k < kRounds; ++k) {
        uint32_t i = rank == 0 ? k : kRounds - 1 - k;  // order of waits is free
        CHECK_EQUAL(world::wait_for(engine, ops[i]), HVD_OK);
        CHECK(same(data[i], sum_of(2, 1024, i)));
      }
    });
  }
}

void test_poll() {
  Host host(2);
  uint64_t plan = host.add(HVD_COOPERATIVE, 400004);
  world::threads(host, [&](uint32_t rank, hvd_engine *engine) {
    auto data = data_of(rank, 100001);
    hvd_op op = 0;
    CHECK_EQUAL(hvd_op_reduce_bound(engine, plan, data.data(), data.data(), 400004, 0, 0, &op), HVD_OK);
    hvd_status status = HVD_PENDING;
    while (status == HVD_PENDING) status = hvd_op_poll(engine, op);
    CHECK_EQUAL(status, HVD_OK);
    CHECK(same(data, sum_of(2, 100001)));
    CHECK_EQUAL(hvd_op_poll(engine, op), HVD_OK);
    CHECK_EQUAL(hvd_op_wait(engine, op, 0), HVD_OK);
    CHECK_EQUAL(hvd_op_poll(engine, op), HVD_E_INVALID);
  });
}

void test_adasum_is_reduced_in_one_piece() {
  Host host(2);
  constexpr uint64_t kCount = 100000;
  uint64_t plan = host.add(HVD_COOPERATIVE, kCount * 4, 2, HVD_ADASUM);
  world::threads(host, [&](uint32_t, hvd_engine *engine) {
    std::vector<float> data(kCount, 1.0f), out(kCount, 0.0f);
    CHECK_EQUAL(world::allreduce(engine, plan, data.data(), out.data(), kCount * 4), HVD_OK);
    CHECK(same(out, data));  // equal gradients: Adasum is their mean
  });
}

// Ranks wait for different plans of overlapping members in opposite order: helping all rounds makes progress.
void test_opposite_orders() {
  Host host(2);
  uint64_t a = host.add(HVD_COOPERATIVE, 1 << 20), b = host.add(HVD_COOPERATIVE, 1 << 20);
  world::threads(host, [&](uint32_t rank, hvd_engine *engine) {
    auto x = data_of(rank, 1 << 18, 1), y = data_of(rank, 1 << 18, 2);
    hvd_op op_a = 0, op_b = 0;
    CHECK_EQUAL(hvd_op_reduce_bound(engine, a, x.data(), x.data(), 1 << 20, 0, 0, &op_a), HVD_OK);
    CHECK_EQUAL(hvd_op_reduce_bound(engine, b, y.data(), y.data(), 1 << 20, 0, 0, &op_b), HVD_OK);
    CHECK_EQUAL(world::wait_for(engine, rank == 0 ? op_a : op_b), HVD_OK);
    CHECK_EQUAL(world::wait_for(engine, rank == 0 ? op_b : op_a), HVD_OK);
    CHECK(x == sum_of(2, 1 << 18, 1) && y == sum_of(2, 1 << 18, 2));
  });
}

void test_several_threads_of_a_rank() {
  Host host(2);
  constexpr int kThreads = 4;
  std::vector<uint64_t> plans;
  for (int i = 0; i < kThreads; ++i) plans.push_back(host.add(HVD_COOPERATIVE, 300004));
  world::threads(host, [&](uint32_t rank, hvd_engine *engine) {
    std::vector<std::thread> users;
    for (int t = 0; t < kThreads; ++t)
      users.emplace_back([&, t] {
        for (uint32_t round = 0; round < 20; ++round) {
          auto data = data_of(rank, 75001, round + static_cast<uint32_t>(t));
          uint32_t flags = round % 2 == 0 ? HVD_OP_BLOCKING : 0u;
          CHECK_EQUAL(world::allreduce(engine, plans[static_cast<size_t>(t)], data.data(), data.data(), 300004, flags), HVD_OK);
          CHECK(same(data, sum_of(2, 75001, round + static_cast<uint32_t>(t))));
        }
      });
    for (std::thread &user : users) user.join();
  });
}

void test_bad_arguments() {
  Host host(1);
  uint64_t plan = host.add(HVD_COOPERATIVE, 4096);
  hvd_engine *engine = host.open(0);
  float data[1024] = {};
  hvd_op op = 0;
  CHECK_EQUAL(hvd_op_reduce_bound(engine, plan, data, data, 2048, 0, 0, &op), HVD_E_INVALID);
  CHECK_EQUAL(hvd_op_reduce_bound(engine, plan + 256, data, data, 4096, 0, 0, &op), HVD_E_INVALID);
  CHECK_EQUAL(hvd_op_reduce_bound(engine, plan, nullptr, data, 4096, 0, 0, &op), HVD_E_INVALID);
  CHECK_EQUAL(hvd_op_reduce_bound(engine, UINT64_MAX, data, data, 4096, 0, 0, &op), HVD_E_INVALID);
  CHECK_EQUAL(hvd_op_wait(engine, 12345, 0), HVD_E_INVALID);
  CHECK_EQUAL(hvd_op_wait(engine, -1, 0), HVD_E_INVALID);
  CHECK_EQUAL(world::allreduce(engine, plan, data, data, 4096), HVD_OK);
  hvd_engine_close(engine);
}

}  // namespace

int main() {
  RUN(test_plain_sizes);
  RUN(test_many_ranks);
  RUN(test_in_arena);
  RUN(test_mixed_placement);
  RUN(test_segments_with_padding);
  RUN(test_barrier);
  RUN(test_many_open_rounds);
  RUN(test_poll);
  RUN(test_adasum_is_reduced_in_one_piece);
  RUN(test_opposite_orders);
  RUN(test_several_threads_of_a_rank);
  RUN(test_bad_arguments);
}
