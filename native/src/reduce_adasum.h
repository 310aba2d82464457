// Adasum (arXiv 2006.02924): pairs by distance doubling, each made into a (1 - a.b / 2|a|^2) + b (1 - a.b / 2|b|^2).
// Where n is no power of two, member p + i is first combined into member i, p being the largest power of two below n.
// Vectors lie widened in the job's scratch memory.  A vector of zeros has coefficient 1, so that it changes nothing.
#pragma once
#include "reduce.h"
#include "reduce_pack.h"

namespace hvd {
namespace HVD_ISA {

typedef double Eight __attribute__((vector_size(64)));

HVD_INLINE double total(Eight lanes) {
  return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) + ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
}

struct Products {
  double dot, aa, bb;
};

// Eight partial sums for every instruction set: the order of additions must not depend on it.
template <typename A>
Products products(const A *a, const A *b, uint64_t count) {
  Eight dot{}, aa{}, bb{};
  for (uint64_t start = 0; start < count; start += 8) {
    const uint64_t lanes = count - start < 8 ? count - start : 8;
    Eight x{}, y{};
    for (uint64_t i = 0; i < lanes; ++i) {
      x[i] = static_cast<double>(a[start + i]);
      y[i] = static_cast<double>(b[start + i]);
    }
    dot += x * y;
    aa += x * x;
    bb += y * y;
  }
  return {total(dot), total(aa), total(bb)};
}

template <typename A>
void combine_pair(A *__restrict a, const A *__restrict b, uint64_t count) {
  const Products p = products(a, b, count);
  const double ca = p.aa > 0 ? 1 - p.dot / (2 * p.aa) : 1, cb = p.bb > 0 ? 1 - p.dot / (2 * p.bb) : 1;
  for (uint64_t i = 0; i < count; ++i)
    a[i] = static_cast<A>(ca * static_cast<double>(a[i]) + cb * static_cast<double>(b[i]));
}

template <typename T>
void widen_all(Acc<T> *to, const T *from, uint64_t count, double factor, bool scaled) {
  for (uint64_t i = 0; i < count; i += kLanes<T>) {
    const uint64_t lanes = count - i < kLanes<T> ? count - i : kLanes<T>;
    Pack<T> pack = from ? load_some<T>(from + i, lanes) : Pack<T>{};
    if (scaled) pack = scale<T>(pack, factor);
    store_some<Acc<T>>(to + i, pack, lanes);
  }
}

template <typename T>
void write_all(const Job &job, const Acc<T> *from) {
  for (uint64_t i = 0; i < job.count; i += kLanes<T>) {
    const uint64_t lanes = job.count - i < kLanes<T> ? job.count - i : kLanes<T>;
    Pack<T> pack = load_some<Acc<T>>(from + i, lanes);
    if (job.post != 1.0) pack = scale<T>(pack, job.post);
    pack = canonical<Acc<T>>(pack);
    for (uint32_t m = 0; m < job.n; ++m)
      if (job.out[m]) store_some<T>(static_cast<T *>(job.out[m]) + i, pack, lanes);
  }
}

template <typename T>
bool adasum(const Job &job) {
  uint32_t power = 1;
  while (power <= job.n / 2) power *= 2;
  auto *vectors = static_cast<Acc<T> *>(job.scratch);
  for (uint32_t m = 0; m < job.n; ++m)
    widen_all<T>(vectors + m * job.count, static_cast<const T *>(job.in[m]), job.count, job.pre, job.pre != 1.0);
  for (uint32_t m = power; m < job.n; ++m)
    combine_pair(vectors + (m - power) * job.count, vectors + m * job.count, job.count);
  for (uint32_t distance = 1; distance < power; distance *= 2)
    for (uint32_t m = 0; m < power; m += 2 * distance)
      combine_pair(vectors + m * job.count, vectors + (m + distance) * job.count, job.count);
  write_all<T>(job, vectors);
  return true;
}

}  // namespace HVD_ISA
}  // namespace hvd
