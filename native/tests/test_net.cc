// Cooperative rounds between hosts: direct exchange and ring, against sums made by hand.
#include <vector>

#include "check.h"
#include "net_cases.h"
#include "values.h"

using world::Case;
using world::Cluster;
using world::answer_to;
using world::NetHost;
using world::NetOptions;
using world::PlanOf;
using world::check_case;
using world::expected;
using world::few;
using world::input;
using world::start;

namespace {

const std::vector<std::vector<uint32_t>> kShapes = {{1, 1},       {2, 2},          {1, 2, 1},
                                                    {1, 1, 1, 1}, {2, 1, 1, 1, 2}, {1, 1, 1, 1, 1, 1, 1, 1}};

void test_sizes() {
  for (const auto &shape : kShapes) {
    Cluster cluster(shape);
    for (uint64_t count : few({1u, 3u, 1000u, 16383u, 16384u, 16385u, 40001u, 262144u}))
      check_case(cluster, {HVD_SUM, HVD_FLOAT32, count});
    for (uint64_t count : few({1u, 65535u, 65537u, 300001u})) check_case(cluster, {HVD_SUM, HVD_UINT8, count});
  }
}

void test_dtypes_and_ops() {
  for (const auto &shape : {kShapes[1], kShapes[2]}) {
    Cluster cluster(shape);
    for (uint32_t dtype = HVD_UINT8; dtype <= HVD_BFLOAT16; ++dtype)
      for (uint32_t op : few({HVD_SUM, HVD_MIN, HVD_MAX, HVD_PRODUCT}))
        for (uint64_t count : {777u, 70001u}) check_case(cluster, {op, dtype, count}, 1);
  }
}

void test_large() {
  NetOptions options;
  options.tcp = true;
  Cluster cluster({1, 2}, options);
  check_case(cluster, {HVD_SUM, HVD_FLOAT32, 16 << 20}, 2);
}

void test_lanes() {
  for (uint32_t lanes : {1u, 3u, 7u}) {
    NetOptions options;
    options.lanes = lanes;
    Cluster cluster({1, 1, 1}, options);
    check_case(cluster, {HVD_SUM, HVD_FLOAT32, 700001});
    check_case(cluster, {HVD_SUM, HVD_FLOAT32, 9});
  }
}

// Prescale happens once at each rank, postscale once; all ranks end with the same bits also where sums are rounded.
void test_factors_and_bits() {
  for (const auto &shape : kShapes)
    for (uint64_t count : {500u, 50001u}) {
      Cluster cluster(shape);
      PlanOf plan = cluster.add(HVD_COOPERATIVE, count * 4, 2, HVD_SUM, HVD_FLOAT32, 0.5, 0.1);
      std::vector<std::vector<float>> results(cluster.n_ranks);
      cluster.run([&](uint32_t rank, NetHost &host, hvd_engine *engine) {
        std::vector<float> data(count);
        for (uint64_t i = 0; i < count; ++i) data[i] = 1.0f / static_cast<float>(i + rank + 1);
        CHECK_EQUAL(world::allreduce(engine, plan.offsets[host.index], data.data(), data.data(), count * 4), HVD_OK);
        results[rank] = data;
      });
      for (uint64_t i = 0; i < count; ++i) {
        double sum = 0;
        for (uint32_t r = 0; r < cluster.n_ranks; ++r) sum += 0.5 / static_cast<double>(i + r + 1);
        CHECK(results[0][i] > 0.0999999 * sum && results[0][i] < 0.1000001 * sum);
      }
      for (uint32_t r = 1; r < cluster.n_ranks; ++r) CHECK(results[r] == results[0]);
    }
}

void test_barrier() {
  for (const auto &shape : kShapes) {
    Cluster cluster(shape);
    PlanOf plan = cluster.add(HVD_COOPERATIVE, 0);
    cluster.run([&](uint32_t, NetHost &host, hvd_engine *engine) {
      for (int i = 0; i < 50; ++i) CHECK_EQUAL(world::allreduce(engine, plan.offsets[host.index], nullptr, nullptr, 0), HVD_OK);
    });
  }
}

// 500 small tensors of one plan each, submitted in another order on each host, with and without enough tokens.
void test_many_small_in_different_orders() {
  constexpr uint32_t kPlans = 500;
  for (uint64_t eager : {8u << 20, 512u << 10})
    for (const auto &shape : {kShapes[0], kShapes[2]}) {
      NetOptions options;
      options.eager_bytes = eager;
      Cluster cluster(shape, options);
      std::vector<PlanOf> plans;
      for (uint32_t i = 0; i < kPlans; ++i) plans.push_back(cluster.add(HVD_COOPERATIVE, 4096));
      Case what{HVD_SUM, HVD_FLOAT32, 1024};
      cluster.run([&](uint32_t rank, NetHost &host, hvd_engine *engine) {
        std::vector<std::vector<char>> data(kPlans);
        std::vector<hvd_op> ops(kPlans);
        for (uint32_t k = 0; k < kPlans; ++k) {
          uint32_t i = host.index == 0 ? k : host.index == 1 ? kPlans - 1 - k : (k * 7) % kPlans;
          data[i] = input(what, rank, i);
          ops[i] = start(host, engine, plans[i], what, &data[i]);
        }
        for (uint32_t i = 0; i < kPlans; ++i) {
          CHECK_EQUAL(world::wait_for(engine, ops[i]), HVD_OK);
          CHECK(data[i] == expected(what, cluster.n_ranks, i));
        }
      });
      hvd_net_info info{};
      CHECK_EQUAL(answer_to([&] { return hvd_net_stat(cluster.hosts[0]->net, &info); }), HVD_OK);
      CHECK_EQUAL(info.rounds_direct, kPlans);
      if (std::getenv("HVD_TEST_VERBOSE"))
        std::printf("  %zu hosts: %llu frames, %llu writes\n", shape.size(), static_cast<unsigned long long>(info.frames_sent),
                    static_cast<unsigned long long>(info.writes));
    }
}

// One host waits for the last of many rounds before it starts the others; the other has spent its tokens on these.
void test_tokens_run_out() {
  constexpr uint32_t kPlans = 60;
  NetOptions options;
  options.eager_bytes = 512 << 10;
  Cluster cluster({1, 1, 1}, options);
  std::vector<PlanOf> plans;
  for (uint32_t i = 0; i < kPlans; ++i) plans.push_back(cluster.add(HVD_COOPERATIVE, 64 << 10));
  Case what{HVD_SUM, HVD_FLOAT32, 16 << 10};
  cluster.run([&](uint32_t rank, NetHost &host, hvd_engine *engine) {
    std::vector<std::vector<char>> data(kPlans);
    std::vector<hvd_op> ops(kPlans);
    for (uint32_t k = 0; k < kPlans; ++k) {
      uint32_t i = rank == 0 ? k : (k + kPlans - rank) % kPlans;
      data[i] = input(what, rank, i);
      ops[i] = start(host, engine, plans[i], what, &data[i]);
      if (rank == 1 && k == 0) CHECK_EQUAL(world::wait_for(engine, ops[i]), HVD_OK);
    }
    for (uint32_t i = 0; i < kPlans; ++i) {
      if (rank != 1 || i != kPlans - 1) CHECK_EQUAL(world::wait_for(engine, ops[i]), HVD_OK);
      CHECK(data[i] == expected(what, cluster.n_ranks, i));
    }
  });
}

void test_many_rounds_of_one_plan() {
  for (uint32_t depth : {64u, 2u, 1u})
    for (uint64_t count : {1000u, 50000u}) {
      Cluster cluster({2, 1});
      PlanOf plan = cluster.add(HVD_COOPERATIVE, count * 4, depth);
      Case what{HVD_SUM, HVD_FLOAT32, count};
      cluster.run([&](uint32_t rank, NetHost &host, hvd_engine *engine) {
        std::vector<std::vector<char>> data;
        std::vector<hvd_op> ops(100);
        for (uint32_t i = 0; i < 100; ++i) {
          data.push_back(input(what, rank, i));
          ops[i] = start(host, engine, plan, what, &data[i]);
        }
        for (uint32_t i = 0; i < 100; ++i) {
          CHECK_EQUAL(world::wait_for(engine, ops[i]), HVD_OK);
          CHECK(data[i] == expected(what, 3, i));
        }
      });
    }
}

}  // namespace

int main() {
  RUN(test_barrier);
  RUN(test_sizes);
  RUN(test_dtypes_and_ops);
  RUN(test_lanes);
  RUN(test_factors_and_bits);
  RUN(test_many_small_in_different_orders);
  RUN(test_tokens_run_out);
  RUN(test_many_rounds_of_one_plan);
  RUN(test_large);
}
