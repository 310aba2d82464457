// Reduction over members in one pass: a few packs of every member are read and combined in registers, in the order of members,
// then written to every output.  All inputs of an element are read before any output of it is written, so that outputs may be
// inputs.  Included once per instruction set, see reduce_pack.h.
#pragma once
#include "reduce.h"
#include "reduce_adasum.h"
#include "reduce_pack.h"

namespace hvd {
namespace HVD_ISA {

struct Factors {
  double pre, post;
  bool has_pre, has_post;
};

template <typename T>
struct Buffers {
  const T *const *in;
  T *const *out;
  uint32_t n;
};

constexpr unsigned kUnroll = 4;

template <typename T>
HVD_INLINE Pack<T> scaled_input(Pack<T> pack, const Factors &factors) {
  return factors.has_pre ? scale<T>(pack, factors.pre) : pack;
}

template <typename T>
HVD_INLINE Pack<T> result(Pack<T> pack, const Factors &factors) {
  return canonical<Acc<T>>(factors.has_post ? scale<T>(pack, factors.post) : pack);
}

// kUnroll packs at element `at`.  Members == 0: any number of members, and null pointers are looked for.
template <typename T, typename Op, uint32_t Members>
HVD_INLINE void step(const Buffers<T> &buffers, const Factors &factors, uint64_t at) {
  const uint32_t n = Members ? Members : buffers.n;
  auto input = [&](uint32_t m, unsigned u) __attribute__((always_inline)) {
    const T *in = buffers.in[m];
    return scaled_input<T>(Members || in ? load<T>(in + at + u * kLanes<T>) : Pack<T>{}, factors);
  };
  Pack<T> packs[kUnroll];
  for (unsigned u = 0; u < kUnroll; ++u) packs[u] = input(0, u);
  for (uint32_t m = 1; m < n; ++m)
    for (unsigned u = 0; u < kUnroll; ++u) packs[u] = Op::template combine<Acc<T>>(packs[u], input(m, u));
  for (unsigned u = 0; u < kUnroll; ++u) packs[u] = result<T>(packs[u], factors);
  for (uint32_t m = 0; m < n; ++m) {
    T *out = buffers.out[m];
    if (Members || out)
      for (unsigned u = 0; u < kUnroll; ++u) store<T>(out + at + u * kLanes<T>, packs[u]);
  }
}

// At most one pack.
template <typename T, typename Op>
void step_some(const Buffers<T> &buffers, const Factors &factors, uint64_t at, uint64_t lanes) {
  auto input = [&](uint32_t m) __attribute__((always_inline)) {
    return scaled_input<T>(buffers.in[m] ? load_some<T>(buffers.in[m] + at, lanes) : Pack<T>{}, factors);
  };
  Pack<T> pack = input(0);
  for (uint32_t m = 1; m < buffers.n; ++m) pack = Op::template combine<Acc<T>>(pack, input(m));
  pack = result<T>(pack, factors);
  for (uint32_t m = 0; m < buffers.n; ++m)
    if (buffers.out[m]) store_some<T>(buffers.out[m] + at, pack, lanes);
}

// Returns the first element that is left.  With a fixed number of members the pointers stay in registers.
template <typename T, typename Op, uint32_t Members>
uint64_t steps(const Buffers<T> &buffers, const Factors &factors, uint64_t count) {
  constexpr uint64_t stride = kUnroll * kLanes<T>;
  uint64_t at = 0;
  if constexpr (Members > 0) {
    const T *in[Members];
    T *out[Members];
    for (uint32_t m = 0; m < Members; ++m) in[m] = buffers.in[m], out[m] = buffers.out[m];
    const Factors own = factors;
    for (; at + stride <= count; at += stride) step<T, Op, Members>({in, out, Members}, own, at);
  } else {
    for (; at + stride <= count; at += stride) step<T, Op, 0>(buffers, factors, at);
  }
  return at;
}

template <typename T>
bool has_null(const Buffers<T> &buffers) {
  for (uint32_t m = 0; m < buffers.n; ++m)
    if (!buffers.in[m] || !buffers.out[m]) return true;
  return false;
}

template <typename T, typename Op>
bool reduce_with(const Job &job) {
  const Buffers<T> buffers{reinterpret_cast<const T *const *>(job.in), reinterpret_cast<T *const *>(job.out), job.n};
  const Factors factors{job.pre, job.post, job.pre != 1.0, job.post != 1.0};
  uint64_t at = 0;
  if (job.n == 2 && !has_null(buffers)) at = steps<T, Op, 2>(buffers, factors, job.count);
  else at = steps<T, Op, 0>(buffers, factors, job.count);
  for (; at < job.count; at += kLanes<T>)
    step_some<T, Op>(buffers, factors, at, job.count - at < kLanes<T> ? job.count - at : kLanes<T>);
  return true;
}

// bool: Sum and Max are OR, Product and Min are AND, of elements that are 0 or 1 once loaded.
template <typename T>
bool reduce_as(const Job &job) {
  constexpr bool truth = std::is_same_v<T, Truth>;
  switch (job.op) {
    case HVD_SUM: return reduce_with<T, std::conditional_t<truth, MaxOf, SumOf>>(job);
    case HVD_PRODUCT: return reduce_with<T, std::conditional_t<truth, MinOf, ProductOf>>(job);
    case HVD_MIN: return reduce_with<T, MinOf>(job);
    case HVD_MAX: return reduce_with<T, MaxOf>(job);
    case HVD_ADASUM:
      if constexpr (std::is_floating_point_v<Acc<T>>) return adasum<T>(job);
      return false;
  }
  return false;
}

bool reduce(const Job &job) {
  switch (job.dtype) {
    case HVD_UINT8: return reduce_as<uint8_t>(job);
    case HVD_INT8: return reduce_as<int8_t>(job);
    case HVD_UINT16: return reduce_as<uint16_t>(job);
    case HVD_INT16: return reduce_as<int16_t>(job);
    case HVD_INT32: return reduce_as<int32_t>(job);
    case HVD_INT64: return reduce_as<int64_t>(job);
    case HVD_FLOAT16: return reduce_as<Half>(job);
    case HVD_FLOAT32: return reduce_as<float>(job);
    case HVD_FLOAT64: return reduce_as<double>(job);
    case HVD_BOOL: return reduce_as<Truth>(job);
    case HVD_BFLOAT16: return reduce_as<Brain>(job);
  }
  return false;
}

}  // namespace HVD_ISA
}  // namespace hvd
