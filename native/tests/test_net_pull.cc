// Pull rounds between hosts: every member reads what it may, wherever the others live.
#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "check.h"
#include "net_world.h"
#include "values.h"

using world::Cluster;
using world::answer_to;
using world::NetHost;
using world::NetOptions;
using world::PlanOf;
using world::bytes_of;
using world::few;
using world::ones;
using world::same;

namespace {

using Data = std::vector<uint8_t>;

hvd_op publish(hvd_engine *engine, uint64_t plan, const Data &data, const std::vector<int64_t> &meta,
               const std::vector<hvd_span> &reads = {}) {
  hvd_segment segment{data.data(), nullptr, data.size()};
  hvd_op op = 0;
  CHECK_EQUAL(hvd_op_pull(engine, &segment, data.empty() ? 0 : 1, meta.data(), static_cast<uint32_t>(meta.size()), reads.data(),
                          static_cast<uint32_t>(reads.size()), 0, &op), HVD_OK);
  CHECK_EQUAL(hvd_op_bind(engine, op, plan, nullptr), HVD_OK);
  return op;
}

Data copy_of(hvd_engine *engine, hvd_op op, uint32_t member, uint64_t offset, uint64_t size) {
  Data data(size, 0xee);
  hvd_copy copy{member, offset, data.data(), size};
  CHECK_EQUAL(hvd_op_pull_copy(engine, op, &copy, 1), HVD_OK);
  return data;
}

const std::vector<std::vector<uint32_t>> kShapes = {{1, 1}, {2, 2}, {1, 2, 1}, {2, 1, 3, 1}, {1, 1, 1, 1, 1, 1, 1, 1}};

uint64_t size_of(uint32_t rank, uint32_t round, uint64_t unit) { return (rank + round) % 4 * unit + (rank + round) % 3; }

// Allgatherv with meta; sizes differ by rank and round, also nothing.
void test_gather() {
  for (const auto &shape : kShapes)
    for (uint64_t unit : few({0u, 1u, 5000u, 200001u})) {
      Cluster cluster(shape);
      PlanOf plan = cluster.add(HVD_PULL, 0);
      cluster.run([&](uint32_t rank, NetHost &host, hvd_engine *engine) {
        for (uint32_t round = 0; round < 6; ++round) {
          Data data = bytes_of(rank, size_of(rank, round, unit), round);
          hvd_op op = publish(engine, plan.offsets[host.index], data, {rank, round, -5});
          CHECK_EQUAL(world::wait_for(engine, op), HVD_OK);
          for (uint32_t m = 0; m < cluster.n_ranks; ++m) {
            int64_t meta[4] = {};
            uint32_t n = 0;
            uint64_t size = 0;
            CHECK_EQUAL(hvd_op_meta(engine, op, m, meta, 4, &n, &size), HVD_OK);
            CHECK(n == 3 && meta[0] == m && meta[1] == round && meta[2] == -5);
            CHECK_EQUAL(size, size_of(m, round, unit));
            CHECK(copy_of(engine, op, m, 0, size) == bytes_of(m, size, round));
          }
          CHECK_EQUAL(hvd_op_done(engine, op), HVD_OK);
        }
      });
    }
}

// Alltoallv: each member says which part each other one reads, and only that travels.
void test_all_to_all() {
  constexpr uint64_t kPart = 100000;
  Cluster cluster({2, 1, 2});
  uint32_t n = cluster.n_ranks;
  PlanOf plan = cluster.add(HVD_PULL, 0);
  cluster.run([&](uint32_t rank, NetHost &host, hvd_engine *engine) {
    for (uint32_t round = 0; round < 3; ++round) {
      Data data = bytes_of(rank, n * kPart, round);
      std::vector<hvd_span> reads;
      for (uint32_t m = 0; m < n; ++m) reads.push_back({m * kPart, m == 1 ? 0 : kPart});
      hvd_op op = publish(engine, plan.offsets[host.index], data, {}, reads);
      CHECK_EQUAL(world::wait_for(engine, op), HVD_OK);
      for (uint32_t m = 0; m < n && rank != 1; ++m) {
        Data whole = bytes_of(m, n * kPart, round);
        Data part(whole.begin() + static_cast<long>(rank * kPart), whole.begin() + static_cast<long>((rank + 1) * kPart));
        CHECK(copy_of(engine, op, m, rank * kPart, kPart) == part);
      }
      CHECK_EQUAL(hvd_op_done(engine, op), HVD_OK);
    }
  });
  hvd_net_info info{};
  CHECK_EQUAL(answer_to([&] { return hvd_net_stat(cluster.hosts[1]->net, &info); }), HVD_OK);
  uint64_t most = 3 * 3 * kPart;  // its one member sends to 3 others that read: rounds x readers elsewhere x part
  CHECK(info.bytes_sent > most && info.bytes_sent < most + 20000);
}

// Broadcast: one member has data; and a reducescatter in which each member reduces its part of what all published.
void test_broadcast_and_reducescatter() {
  for (const auto &shape : kShapes) {
    Cluster cluster(shape);
    uint32_t n = cluster.n_ranks;
    PlanOf broadcast = cluster.add(HVD_PULL, 0);
    PlanOf scatter = cluster.add(HVD_PULL, 0, 2, HVD_SUM, HVD_FLOAT32, 1, 0.5);
    cluster.run([&](uint32_t rank, NetHost &host, hvd_engine *engine) {
      hvd_op op = publish(engine, broadcast.offsets[host.index], rank == 1 ? bytes_of(1, 70001, 0) : Data(), {});
      CHECK_EQUAL(world::wait_for(engine, op), HVD_OK);
      CHECK(copy_of(engine, op, 1, 0, 70001) == bytes_of(1, 70001, 0));
      CHECK_EQUAL(hvd_op_done(engine, op), HVD_OK);
      constexpr uint64_t kCount = 3000;
      std::vector<float> values(kCount * n);
      for (uint64_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 100 + rank);
      Data raw(values.size() * 4);
      std::memcpy(raw.data(), values.data(), raw.size());
      std::vector<hvd_span> reads;
      for (uint32_t m = 0; m < n; ++m) reads.push_back({m * kCount * 4, kCount * 4});
      op = publish(engine, scatter.offsets[host.index], raw, {}, reads);
      CHECK_EQUAL(world::wait_for(engine, op), HVD_OK);
      std::vector<float> sum(kCount);
      CHECK_EQUAL(hvd_op_pull_reduce(engine, op, rank * kCount * 4, sum.data(), kCount * 4), HVD_OK);
      for (uint64_t i = 0; i < kCount; ++i) {
        uint64_t base = (rank * kCount + i) % 100;
        CHECK(sum[i] == static_cast<float>(n * base + n * (n - 1) / 2) * 0.5f);
      }
      CHECK_EQUAL(hvd_op_done(engine, op), HVD_OK);
    });
  }
}

// More data than tokens, in both directions at once, with small reductions between.
void test_more_than_tokens() {
  NetOptions options;
  options.eager_bytes = 512 << 10;
  Cluster cluster({1, 1, 1}, options);
  PlanOf gather = cluster.add(HVD_PULL, 0), sum = cluster.add(HVD_COOPERATIVE, 4096);
  cluster.run([&](uint32_t rank, NetHost &host, hvd_engine *engine) {
    for (uint32_t round = 0; round < 3; ++round) {
      Data data = bytes_of(rank, 5 << 20, round);
      hvd_op op = publish(engine, gather.offsets[host.index], data, {});
      std::vector<float> small(1024, 1.0f);
      CHECK_EQUAL(world::allreduce(engine, sum.offsets[host.index], small.data(), small.data(), 4096), HVD_OK);
      CHECK(small == std::vector<float>(1024, 3.0f));
      CHECK_EQUAL(world::wait_for(engine, op), HVD_OK);
      for (uint32_t m = 0; m < 3; ++m) CHECK(copy_of(engine, op, m, 0, 5 << 20) == bytes_of(m, 5 << 20, round));
      CHECK_EQUAL(hvd_op_done(engine, op), HVD_OK);
    }
  });
}

// Rounds are many, readers are slow; the agent's arena is given back when all have read.
void test_many_rounds_and_memory() {
  for (uint32_t depth : {1u, 2u, 16u}) {
    Cluster cluster({2, 1});
    PlanOf plan = cluster.add(HVD_PULL, 0, depth);
    cluster.run([&](uint32_t rank, NetHost &host, hvd_engine *engine) {
      constexpr uint32_t kRounds = 60;
      std::vector<hvd_op> ops;
      for (uint32_t i = 0; i < kRounds; ++i)
        ops.push_back(publish(engine, plan.offsets[host.index], bytes_of(rank, 3000 + i, i), {i}));
      for (uint32_t i = 0; i < kRounds; ++i) {
        CHECK_EQUAL(world::wait_for(engine, ops[i]), HVD_OK);
        for (uint32_t m = 0; m < 3; ++m) CHECK(copy_of(engine, ops[i], m, 0, 3000 + i) == bytes_of(m, 3000 + i, i));
        CHECK_EQUAL(hvd_op_done(engine, ops[i]), HVD_OK);
      }
    });
    for (auto &host : cluster.hosts) {
      hvd_status status = HVD_PENDING;
      for (int i = 0; i < 100 && status == HVD_PENDING; ++i) status = hvd_net_plan_remove(host->net, plan.id);
      CHECK_EQUAL(status, HVD_OK);
      CHECK_EQUAL(hvd_board_plan_remove(host->board, plan.offsets[host->index]), HVD_OK);
      hvd_arena_info info{};
      CHECK_EQUAL(hvd_arena_stat(host->agent, &info), HVD_OK);
      CHECK_EQUAL(info.used_bytes, 0u);
    }
  }
}

// The agent's arena is too small: the round fails there, and only there.
void test_no_memory() {
  NetOptions options;
  options.agent_arena_bytes = 1 << 20;
  Cluster cluster({1, 1}, options);
  PlanOf plan = cluster.add(HVD_PULL, 0);
  cluster.run([&](uint32_t rank, NetHost &host, hvd_engine *engine) {
    hvd_op op = publish(engine, plan.offsets[host.index], bytes_of(rank, rank == 0 ? 3 << 20 : 1000, 0), {1});
    CHECK_EQUAL(world::wait_for(engine, op), rank == 0 ? HVD_OK : HVD_E_MEMORY);
    if (rank == 0) CHECK_EQUAL(hvd_op_done(engine, op), HVD_OK);
    op = publish(engine, plan.offsets[host.index], bytes_of(rank, 500, 1), {2});
    CHECK_EQUAL(world::wait_for(engine, op), HVD_OK);
    CHECK(copy_of(engine, op, 1 - rank, 0, 500) == bytes_of(1 - rank, 500, 1));
    CHECK_EQUAL(hvd_op_done(engine, op), HVD_OK);
  });
}

// Everything at once: plans of all kinds and sizes, started and awaited by each host in an order of its own, few tokens.
void test_all_kinds_in_any_order() {
  constexpr uint32_t kPlans = 40;
  const uint64_t sizes[] = {0, 4, 4000, 60000, 70000, 400000, 1500000};
  NetOptions options;
  options.eager_bytes = 512 << 10;
  for (const auto &shape : {kShapes[1], kShapes[3]}) {
    Cluster cluster(shape, options);
    std::vector<PlanOf> plans;
    auto is_pull = [](uint32_t i) { return i % 3 == 0; };
    auto size_at = [&](uint32_t i) { return sizes[i * 5 % 7]; };
    for (uint32_t i = 0; i < kPlans; ++i)
      plans.push_back(cluster.add(is_pull(i) ? HVD_PULL : HVD_COOPERATIVE, is_pull(i) ? 0 : size_at(i), 1 + i % 3));
    uint32_t n = cluster.n_ranks;
    cluster.run([&](uint32_t rank, NetHost &host, hvd_engine *engine) {
      std::mt19937 random(rank);
      std::vector<uint32_t> order(kPlans);
      for (uint32_t i = 0; i < kPlans; ++i) order[i] = i;
      for (uint32_t lap : few({0u, 1u, 2u, 3u, 4u, 5u})) {
        std::vector<hvd_op> ops(kPlans);
        std::vector<std::vector<float>> data(kPlans);
        std::shuffle(order.begin(), order.end(), random);
        for (uint32_t i : order) {
          uint64_t offset = plans[i].offsets[host.index];
          data[i] = ones(size_at(i) / 4, static_cast<float>(rank + lap));
          if (is_pull(i))
            ops[i] = publish(engine, offset, bytes_of(rank, size_at(i), lap), {i});
          else
            CHECK_EQUAL(hvd_op_reduce_bound(engine, offset, data[i].data(), data[i].data(), size_at(i), 0, i, &ops[i]), HVD_OK);
        }
        std::shuffle(order.begin(), order.end(), random);
        for (uint32_t i : order) {
          CHECK_EQUAL(world::wait_for(engine, ops[i]), HVD_OK);
          if (!is_pull(i)) {
            CHECK(same(data[i], ones(size_at(i) / 4, static_cast<float>(n * lap + n * (n - 1) / 2))));
            continue;
          }
          for (uint32_t m = 0; m < n; ++m) CHECK(copy_of(engine, ops[i], m, 0, size_at(i)) == bytes_of(m, size_at(i), lap));
          CHECK_EQUAL(hvd_op_done(engine, ops[i]), HVD_OK);
        }
      }
    });
  }
}

}  // namespace

int main() {
  RUN(test_gather);
  RUN(test_all_to_all);
  RUN(test_broadcast_and_reducescatter);
  RUN(test_more_than_tokens);
  RUN(test_many_rounds_and_memory);
  RUN(test_no_memory);
  RUN(test_all_kinds_in_any_order);
}
