// Reduction over members, one block that fits the first-level cache at a time: load member 0, combine the others, scale, store.
// Included once per instruction set, with HVD_ISA naming the namespace; the compiler vectorises the loops.  The accumulator is a
// local array, so that no loop needs to know whether inputs and outputs are the same memory.  Contraction into fused
// multiply-add is off, so all instruction sets give the same bits.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>
#if defined(__F16C__)
#include <immintrin.h>
#endif

#include "hvd.h"
#include "reduce.h"

namespace hvd {
namespace HVD_ISA {

constexpr uint64_t kBlock = 2048;

struct Half {
  uint16_t bits;
};
struct Brain {
  uint16_t bits;
};
struct Truth {
  uint8_t bits;
};

inline float as_float(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}
inline uint32_t as_bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return bits;
}

// Half to float: shift the exponent into place; the multiplication by 2^112 re-biases and normalises subnormals exactly.
inline float widen(Half half) {
  uint32_t rest = static_cast<uint32_t>(half.bits & 0x7fffu) << 13;
  float magnitude = as_float(rest) * as_float(0x77800000u);
  uint32_t bits = as_bits(magnitude) | ((half.bits & 0x7c00u) == 0x7c00u ? 0x7f800000u | (rest & 0x7fffffu) : 0u);
  return as_float(bits | (static_cast<uint32_t>(half.bits & 0x8000u) << 16));
}
inline float widen(Brain brain) { return as_float(static_cast<uint32_t>(brain.bits) << 16); }

inline void narrow(float value, Half &out) {
  uint32_t bits = as_bits(value), sign = (bits >> 16) & 0x8000u, rest = bits & 0x7fffffffu;
  uint32_t normal = (rest - 0x38000000u + 0xfffu + ((rest >> 13) & 1u)) >> 13;
  // Below 2^-14 the addition of 0.5 rounds to the right place, to nearest even.
  uint32_t subnormal = as_bits(as_float(rest) + 0.5f) - 0x3f000000u;
  uint32_t result = rest < 0x38800000u ? subnormal : normal;
  result = rest >= 0x477ff000u ? 0x7c00u : result;
  result = rest > 0x7f800000u ? 0x7e00u : result;
  out.bits = static_cast<uint16_t>(sign | result);
}
inline void narrow(float value, Brain &out) {
  uint32_t bits = as_bits(value);
  uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  out.bits = static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? (bits >> 16) | 0x40u : rounded);
}

template <typename T>
struct Traits {
  using Acc = T;
};
template <>
struct Traits<Half> {
  using Acc = float;
};
template <>
struct Traits<Brain> {
  using Acc = float;
};
template <>
struct Traits<Truth> {
  using Acc = uint8_t;
};

template <typename T>
void load(typename Traits<T>::Acc *__restrict acc, const T *in, uint64_t n) {
  if constexpr (std::is_same_v<T, Half>) {
    uint64_t i = 0;
#if defined(__F16C__)
    for (; i + 8 <= n; i += 8)
      _mm256_storeu_ps(acc + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i *>(in + i))));
#endif
    for (; i < n; ++i) acc[i] = widen(in[i]);
  } else if constexpr (std::is_same_v<T, Brain>) {
    for (uint64_t i = 0; i < n; ++i) acc[i] = widen(in[i]);
  } else if constexpr (std::is_same_v<T, Truth>) {
    for (uint64_t i = 0; i < n; ++i) acc[i] = in[i].bits != 0;
  } else {
    std::memcpy(acc, in, n * sizeof(T));
  }
}

template <typename T>
void store(T *out, const typename Traits<T>::Acc *__restrict acc, uint64_t n) {
  if constexpr (std::is_same_v<T, Half>) {
    uint64_t i = 0;
#if defined(__F16C__)
    for (; i + 8 <= n; i += 8)
      _mm_storeu_si128(reinterpret_cast<__m128i *>(out + i),
                       _mm256_cvtps_ph(_mm256_loadu_ps(acc + i), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#endif
    for (; i < n; ++i) narrow(acc[i], out[i]);
  } else if constexpr (std::is_same_v<T, Brain>) {
    for (uint64_t i = 0; i < n; ++i) narrow(acc[i], out[i]);
  } else {
    std::memcpy(static_cast<void *>(out), acc, n * sizeof(T));
  }
}

// NaN: the half conversions of different instruction sets keep different payloads; one canonical NaN makes them agree.
template <typename T>
void canonical(typename Traits<T>::Acc *acc, uint64_t n) {
  if constexpr (std::is_same_v<T, Half>)
    for (uint64_t i = 0; i < n; ++i) acc[i] = acc[i] != acc[i] ? as_float(0x7fc00000u) : acc[i];
}

template <typename T>
void scale(T *__restrict acc, uint64_t n, double factor) {
  if (factor == 1.0) return;
  if constexpr (std::is_same_v<T, float>) {
    auto narrow_factor = static_cast<float>(factor);
    for (uint64_t i = 0; i < n; ++i) acc[i] *= narrow_factor;
  } else if constexpr (std::is_same_v<T, double>) {
    for (uint64_t i = 0; i < n; ++i) acc[i] *= factor;
  } else {
    // Truncated toward zero; what does not fit is clamped, NaN gives 0.
    using Limits = std::numeric_limits<T>;
    const auto top = static_cast<double>(Limits::max()), bottom = static_cast<double>(Limits::min());
    for (uint64_t i = 0; i < n; ++i) {
      double value = std::trunc(static_cast<double>(acc[i]) * factor);
      T inside = value > bottom && value < top ? static_cast<T>(value) : T(0);
      acc[i] = value >= top ? Limits::max() : value <= bottom ? Limits::min() : inside;
    }
  }
}

struct SumOf {
  template <typename T>
  T operator()(T a, T b) const {
    if constexpr (std::is_integral_v<T>) {
      using U = std::make_unsigned_t<T>;
      return static_cast<T>(static_cast<U>(static_cast<U>(a) + static_cast<U>(b)));
    } else {
      return a + b;
    }
  }
};
struct ProductOf {
  template <typename T>
  T operator()(T a, T b) const {
    if constexpr (std::is_integral_v<T>) {
      return static_cast<T>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
    } else {
      return a * b;
    }
  }
};
// A NaN on either side wins: the comparison is false when b is NaN, and a is kept when it is NaN itself.
struct MinOf {
  template <typename T>
  T operator()(T a, T b) const {
    return (a < b || a != a) ? a : b;
  }
};
struct MaxOf {
  template <typename T>
  T operator()(T a, T b) const {
    return (a > b || a != a) ? a : b;
  }
};

template <typename T, typename Combine>
void reduce_blocks(const Job &job, Combine combine) {
  using Acc = typename Traits<T>::Acc;
  alignas(64) Acc acc[kBlock];
  alignas(64) Acc next[kBlock];
  const bool plain = std::is_same_v<T, Acc> && job.pre == 1.0;
  for (uint64_t start = 0; start < job.count; start += kBlock) {
    uint64_t n = std::min(kBlock, job.count - start);
    for (uint32_t m = 0; m < job.n; ++m) {
      const T *in = static_cast<const T *>(job.in[m]);
      Acc *into = m == 0 ? acc : next;
      if (in && plain && m > 0) {
        if constexpr (std::is_same_v<T, Acc>)
          for (uint64_t i = 0; i < n; ++i) acc[i] = combine(acc[i], in[start + i]);
        continue;
      }
      if (in) load<T>(into, in + start, n);
      else std::fill_n(into, n, Acc(0));
      if constexpr (!std::is_same_v<T, Truth>) scale(into, n, job.pre);
      if (m > 0)
        for (uint64_t i = 0; i < n; ++i) acc[i] = combine(acc[i], next[i]);
    }
    if constexpr (!std::is_same_v<T, Truth>) scale(acc, n, job.post);
    canonical<T>(acc, n);
    for (uint32_t m = 0; m < job.n; ++m)
      if (job.out[m]) store<T>(static_cast<T *>(job.out[m]) + start, acc, n);
  }
}

// Pairs by distance doubling, arXiv 2006.02924: a (1 - a.b / 2|a|^2) + b (1 - a.b / 2|b|^2), a zero vector has coefficient 1.
template <typename Acc>
void combine_pair(std::vector<Acc> &a, const std::vector<Acc> &b) {
  double dot = 0, aa = 0, bb = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    double x = static_cast<double>(a[i]), y = static_cast<double>(b[i]);
    dot += x * y;
    aa += x * x;
    bb += y * y;
  }
  double ca = aa > 0 ? 1 - dot / (2 * aa) : 1, cb = bb > 0 ? 1 - dot / (2 * bb) : 1;
  for (size_t i = 0; i < a.size(); ++i)
    a[i] = static_cast<Acc>(ca * static_cast<double>(a[i]) + cb * static_cast<double>(b[i]));
}

template <typename T>
bool adasum(const Job &job) {
  using Acc = typename Traits<T>::Acc;
  if (job.n & (job.n - 1)) return false;
  std::vector<std::vector<Acc>> vectors(job.n, std::vector<Acc>(job.count));
  for (uint32_t m = 0; m < job.n; ++m) {
    if (job.in[m]) load<T>(vectors[m].data(), static_cast<const T *>(job.in[m]), job.count);
    scale(vectors[m].data(), job.count, job.pre);
  }
  for (uint32_t distance = 1; distance < job.n; distance *= 2)
    for (uint32_t m = 0; m + distance < job.n; m += 2 * distance) combine_pair(vectors[m], vectors[m + distance]);
  scale(vectors[0].data(), job.count, job.post);
  canonical<T>(vectors[0].data(), job.count);
  for (uint32_t m = 0; m < job.n; ++m)
    if (job.out[m]) store<T>(static_cast<T *>(job.out[m]), vectors[0].data(), job.count);
  return true;
}

template <typename T>
bool reduce_as(const Job &job) {
  switch (job.op) {
    case HVD_SUM:
      if constexpr (std::is_same_v<T, Truth>) reduce_blocks<T>(job, MaxOf{});
      else reduce_blocks<T>(job, SumOf{});
      return true;
    case HVD_PRODUCT:
      if constexpr (std::is_same_v<T, Truth>) reduce_blocks<T>(job, MinOf{});
      else reduce_blocks<T>(job, ProductOf{});
      return true;
    case HVD_MIN:
      reduce_blocks<T>(job, MinOf{});
      return true;
    case HVD_MAX:
      reduce_blocks<T>(job, MaxOf{});
      return true;
    case HVD_ADASUM:
      if constexpr (std::is_floating_point_v<typename Traits<T>::Acc>) return adasum<T>(job);
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
