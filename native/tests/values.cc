#include "values.h"

namespace world {
namespace {

HVD_UNWATCHED float value_of(uint32_t rank, uint64_t i, uint32_t round) {
  return static_cast<float>((i * 7 + round) % 1000 + rank * 1000);
}

HVD_UNWATCHED void fill(float *at, uint64_t count, uint32_t rank, uint32_t round) {
  for (uint64_t i = 0; i < count; ++i) at[i] = value_of(rank, i, round);
}

HVD_UNWATCHED void fill_sum(float *at, uint64_t count, uint32_t n_ranks, uint32_t round) {
  for (uint64_t i = 0; i < count; ++i) {
    at[i] = value_of(0, i, round);
    for (uint32_t rank = 1; rank < n_ranks; ++rank) at[i] += value_of(rank, i, round);
  }
}

HVD_UNWATCHED void fill_bytes(uint8_t *at, uint64_t size, uint32_t rank, uint32_t round) {
  for (uint64_t i = 0; i < size; ++i) at[i] = static_cast<uint8_t>(i * 13 + rank * 7 + round);
}

HVD_UNWATCHED void fill_with(float *at, uint64_t count, float value) {
  for (uint64_t i = 0; i < count; ++i) at[i] = value;
}

}  // namespace

std::vector<float> data_of(uint32_t rank, uint64_t count, uint32_t round) {
  std::vector<float> data(count);
  fill(data.data(), count, rank, round);
  return data;
}

std::vector<float> sum_of(uint32_t n_ranks, uint64_t count, uint32_t round) {
  std::vector<float> sum(count);
  fill_sum(sum.data(), count, n_ranks, round);
  return sum;
}

std::vector<uint8_t> bytes_of(uint32_t rank, uint64_t size, uint32_t round) {
  std::vector<uint8_t> data(size);
  fill_bytes(data.data(), size, rank, round);
  return data;
}

std::vector<float> ones(uint64_t count, float value) {
  std::vector<float> data(count);
  fill_with(data.data(), count, value);
  return data;
}

}  // namespace world
