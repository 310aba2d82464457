// Cooperative rounds between hosts: direct exchange and ring, against sums made by hand.
#include <cstring>
#include <vector>

#include "check.h"
#include "net_world.h"

using world::Cluster;
using world::NetHost;
using world::NetOptions;
using world::PlanOf;

namespace {

// Values that every dtype holds exactly, and so do sums and products of a few.
int value_of(uint32_t op, uint32_t dtype, uint32_t rank, uint64_t i, uint32_t round) {
  if (dtype == HVD_BOOL) return (i + rank * 3 + round) % 5 == 0;
  if (op == HVD_PRODUCT) return (i + rank + round) % 4 == 0 ? 2 : 1;
  return static_cast<int>((i * 7 + rank * 3 + round) % 8);
}

int combine(uint32_t op, uint32_t dtype, int a, int b) {
  if (dtype == HVD_BOOL) return op == HVD_SUM || op == HVD_MAX ? (a | b) : (a & b);
  switch (op) {
    case HVD_SUM: return a + b;
    case HVD_MIN: return a < b ? a : b;
    case HVD_MAX: return a < b ? b : a;
    default: return a * b;
  }
}

template <class T>
void put(char *at, T value) {
  std::memcpy(at, &value, sizeof value);
}

uint16_t half_of(int value) {  // exact for what is used here
  if (value == 0) return 0;
  uint32_t exponent = 31 - static_cast<uint32_t>(__builtin_clz(static_cast<uint32_t>(value)));
  uint32_t mantissa = (static_cast<uint32_t>(value) << (10 - exponent)) & 0x3ff;
  return static_cast<uint16_t>((exponent + 15) << 10 | mantissa);
}

uint16_t brain_of(int value) {
  float wide = static_cast<float>(value);
  uint32_t bits = 0;
  std::memcpy(&bits, &wide, 4);
  return static_cast<uint16_t>(bits >> 16);
}

void encode(uint32_t dtype, int value, char *at) {
  switch (dtype) {
    case HVD_UINT8: case HVD_INT8: case HVD_BOOL: return put(at, static_cast<uint8_t>(value));
    case HVD_UINT16: case HVD_INT16: return put(at, static_cast<uint16_t>(value));
    case HVD_INT32: return put(at, static_cast<int32_t>(value));
    case HVD_INT64: return put(at, static_cast<int64_t>(value));
    case HVD_FLOAT16: return put(at, half_of(value));
    case HVD_BFLOAT16: return put(at, brain_of(value));
    case HVD_FLOAT32: return put(at, static_cast<float>(value));
    default: return put(at, static_cast<double>(value));
  }
}

struct Case {
  uint32_t op = HVD_SUM, dtype = HVD_FLOAT32;
  uint64_t count = 1;
  uint64_t bytes() const { return count * hvd_dtype_bytes(static_cast<hvd_dtype>(dtype)); }
};

std::vector<char> input(const Case &what, uint32_t rank, uint32_t round) {
  std::vector<char> data(what.bytes() + 1, 'x');
  uint32_t size = hvd_dtype_bytes(static_cast<hvd_dtype>(what.dtype));
  for (uint64_t i = 0; i < what.count; ++i) encode(what.dtype, value_of(what.op, what.dtype, rank, i, round), &data[i * size]);
  return data;
}

std::vector<char> expected(const Case &what, uint32_t n_ranks, uint32_t round) {
  std::vector<char> data(what.bytes() + 1, 'x');
  uint32_t size = hvd_dtype_bytes(static_cast<hvd_dtype>(what.dtype));
  for (uint64_t i = 0; i < what.count; ++i) {
    int sum = value_of(what.op, what.dtype, 0, i, round);
    for (uint32_t r = 1; r < n_ranks; ++r) sum = combine(what.op, what.dtype, sum, value_of(what.op, what.dtype, r, i, round));
    encode(what.dtype, sum, &data[i * size]);
  }
  return data;
}

void check_case(Cluster &cluster, const Case &what, uint32_t rounds = 3) {
  PlanOf plan = cluster.add(HVD_COOPERATIVE, what.bytes(), 2, what.op, what.dtype);
  cluster.run([&](uint32_t rank, NetHost &host, hvd_engine *engine) {
    for (uint32_t round = 0; round < rounds; ++round) {
      auto data = input(what, rank, round);
      uint32_t flags = (rank + round) % 2 == 0 ? HVD_OP_BLOCKING : 0u;
      CHECK_EQUAL(world::allreduce(engine, plan.offsets[host.index], data.data(), data.data(), what.bytes(), flags), HVD_OK);
      CHECK(data == expected(what, cluster.n_ranks, round));
    }
  });
  for (auto &host : cluster.hosts) {
    CHECK_EQUAL(hvd_net_plan_remove(host->net, plan.id), HVD_OK);
    CHECK_EQUAL(hvd_board_plan_remove(host->board, plan.offsets[host->index]), HVD_OK);
    CHECK_EQUAL(hvd_net_plan_remove(host->net, plan.id), HVD_E_INVALID);
  }
}

const std::vector<std::vector<uint32_t>> kShapes = {{1, 1},       {2, 2},          {1, 2, 1},
                                                    {1, 1, 1, 1}, {2, 1, 1, 1, 2}, {1, 1, 1, 1, 1, 1, 1, 1}};

// Asynchronous, in place, with `what`'s input for this rank and round.
hvd_op start(NetHost &host, hvd_engine *engine, const PlanOf &plan, const Case &what, std::vector<char> *data) {
  hvd_op op = 0;
  uint64_t offset = plan.offsets[host.index];
  CHECK_EQUAL(hvd_op_reduce_bound(engine, offset, data->data(), data->data(), what.bytes(), 0, 0, &op), HVD_OK);
  return op;
}

void test_sizes() {
  for (const auto &shape : kShapes) {
    Cluster cluster(shape);
    for (uint64_t count : {1u, 3u, 1000u, 16383u, 16384u, 16385u, 40001u, 262144u})
      check_case(cluster, {HVD_SUM, HVD_FLOAT32, count});
    for (uint64_t count : {1u, 65535u, 65537u, 300001u}) check_case(cluster, {HVD_SUM, HVD_UINT8, count});
  }
}

void test_dtypes_and_ops() {
  for (const auto &shape : {kShapes[1], kShapes[2]}) {
    Cluster cluster(shape);
    for (uint32_t dtype = HVD_UINT8; dtype <= HVD_BFLOAT16; ++dtype)
      for (uint32_t op : {HVD_SUM, HVD_MIN, HVD_MAX, HVD_PRODUCT})
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
      CHECK_EQUAL(hvd_net_stat(cluster.hosts[0]->net, &info), HVD_OK);
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
