#include "net_cases.h"

#include <cstring>

#include "check.h"
#include "values.h"

namespace world {
namespace {

// Values that every dtype holds exactly, and so do sums and products of a few.
HVD_UNWATCHED int value_of(uint32_t op, uint32_t dtype, uint32_t rank, uint64_t i, uint32_t round) {
  if (dtype == HVD_BOOL) return (i + rank * 3 + round) % 5 == 0;
  if (op == HVD_PRODUCT) return (i + rank + round) % 4 == 0 ? 2 : 1;
  return static_cast<int>((i * 7 + rank * 3 + round) % 8);
}

HVD_UNWATCHED int combine(uint32_t op, uint32_t dtype, int a, int b) {
  if (dtype == HVD_BOOL) return op == HVD_SUM || op == HVD_MAX ? (a | b) : (a & b);
  switch (op) {
    case HVD_SUM: return a + b;
    case HVD_MIN: return a < b ? a : b;
    case HVD_MAX: return a < b ? b : a;
    default: return a * b;
  }
}

template <class T>
HVD_UNWATCHED void put(char *at, T value) {
  std::memcpy(at, &value, sizeof value);
}

HVD_UNWATCHED uint16_t half_of(int value) {  // exact for what is used here
  if (value == 0) return 0;
  uint32_t exponent = 31 - static_cast<uint32_t>(__builtin_clz(static_cast<uint32_t>(value)));
  uint32_t mantissa = (static_cast<uint32_t>(value) << (10 - exponent)) & 0x3ff;
  return static_cast<uint16_t>((exponent + 15) << 10 | mantissa);
}

HVD_UNWATCHED uint16_t brain_of(int value) {
  float wide = static_cast<float>(value);
  uint32_t bits = 0;
  std::memcpy(&bits, &wide, 4);
  return static_cast<uint16_t>(bits >> 16);
}

HVD_UNWATCHED void encode(uint32_t dtype, int value, char *at) {
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

HVD_UNWATCHED void fill(char *at, const Case &what, uint32_t size, uint32_t rank, uint32_t round) {
  for (uint64_t i = 0; i < what.count; ++i) encode(what.dtype, value_of(what.op, what.dtype, rank, i, round), at + i * size);
}

HVD_UNWATCHED void fill_expected(char *at, const Case &what, uint32_t size, uint32_t n_ranks, uint32_t round) {
  for (uint64_t i = 0; i < what.count; ++i) {
    int sum = value_of(what.op, what.dtype, 0, i, round);
    for (uint32_t r = 1; r < n_ranks; ++r) sum = combine(what.op, what.dtype, sum, value_of(what.op, what.dtype, r, i, round));
    encode(what.dtype, sum, at + i * size);
  }
}

}  // namespace

std::vector<char> input(const Case &what, uint32_t rank, uint32_t round) {
  std::vector<char> data(what.bytes() + 1, 'x');
  fill(data.data(), what, hvd_dtype_bytes(static_cast<hvd_dtype>(what.dtype)), rank, round);
  return data;
}

std::vector<char> expected(const Case &what, uint32_t n_ranks, uint32_t round) {
  std::vector<char> data(what.bytes() + 1, 'x');
  fill_expected(data.data(), what, hvd_dtype_bytes(static_cast<hvd_dtype>(what.dtype)), n_ranks, round);
  return data;
}

void check_case(Cluster &cluster, const Case &what, uint32_t rounds) {
  PlanOf plan = cluster.add(HVD_COOPERATIVE, what.bytes(), 2, what.op, what.dtype);
  cluster.run([&](uint32_t rank, NetHost &host, hvd_engine *engine) {
    for (uint32_t round = 0; round < rounds; ++round) {
      auto data = input(what, rank, round);
      uint32_t flags = (rank + round) % 2 == 0 ? HVD_OP_BLOCKING : 0u;
      CHECK_EQUAL(allreduce(engine, plan.offsets[host.index], data.data(), data.data(), what.bytes(), flags), HVD_OK);
      CHECK(data == expected(what, cluster.n_ranks, round));
    }
  });
  for (auto &host : cluster.hosts) {
    CHECK_EQUAL(answer_to([&] { return hvd_net_plan_remove(host->net, plan.id); }), HVD_OK);
    CHECK_EQUAL(hvd_board_plan_remove(host->board, plan.offsets[host->index]), HVD_OK);
    CHECK_EQUAL(hvd_net_plan_remove(host->net, plan.id), HVD_E_INVALID);
  }
}

hvd_op start(NetHost &host, hvd_engine *engine, const PlanOf &plan, const Case &what, std::vector<char> *data) {
  hvd_op op = 0;
  uint64_t offset = plan.offsets[host.index];
  CHECK_EQUAL(hvd_op_reduce_bound(engine, offset, data->data(), data->data(), what.bytes(), 0, 0, &op), HVD_OK);
  return op;
}

}  // namespace world
