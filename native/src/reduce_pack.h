// Packs: as many elements as one vector register holds, widened to the type in which they are combined.
//
// Included once per instruction set (HVD_ISA names the namespace, HVD_VECTOR_BYTES the register).  Written in the compiler's
// vector types, element by element the same arithmetic for each instruction set: no contraction into fused multiply-add, no
// reassociation, and every NaN that leaves a kernel is the one quiet NaN with no payload.  So all of them give the same bits.
// Nothing here may call a library template that is not inlined: the linker would be free to keep the copy of the widest
// instruction set for everybody.
#pragma once
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#if defined(__F16C__)
#include <immintrin.h>
#endif

#define HVD_INLINE [[gnu::always_inline]] inline

namespace hvd {
namespace HVD_ISA {

struct Half {
  uint16_t bits;
};
struct Brain {
  uint16_t bits;
};
struct Truth {
  uint8_t bits;
};

// The type in which elements are combined.
template <typename T>
struct AccOf {
  using type = T;
};
template <>
struct AccOf<Half> {
  using type = float;
};
template <>
struct AccOf<Brain> {
  using type = float;
};
template <>
struct AccOf<Truth> {
  using type = uint8_t;
};
template <typename T>
using Acc = typename AccOf<T>::type;

template <typename A>
struct VectorOf {
  typedef A type __attribute__((vector_size(HVD_VECTOR_BYTES)));
};
template <typename A>
using Vector = typename VectorOf<A>::type;
template <typename T>
using Pack = Vector<Acc<T>>;
template <typename T>
constexpr uint64_t kLanes = HVD_VECTOR_BYTES / sizeof(Acc<T>);

constexpr uint64_t kFloats = HVD_VECTOR_BYTES / 4;
typedef uint16_t Shorts __attribute__((vector_size(kFloats * 2)));
using Bits = Vector<uint32_t>;
using Floats = Vector<float>;

// Half to float without passing through a subnormal float, which a process that flushes subnormals would lose: normal numbers
// get their exponent moved, subnormal ones are converted as integers and scaled exactly.
HVD_INLINE Floats widen_half(Bits half) {
  const Bits sign = (half & 0x8000u) << 16, rest = (half & 0x7fffu) << 13;
  const Bits normal = rest + 0x38000000u, special = rest | 0x7f800000u;
  const Floats small = __builtin_convertvector(reinterpret_cast<Vector<int32_t>>(half & 0x7fffu), Floats) * 0x1p-24f;
  const auto is_small = rest < 0x00800000u, is_special = rest >= 0x0f800000u;
  return reinterpret_cast<Floats>(sign | (is_small ? reinterpret_cast<Bits>(small) : is_special ? special : normal));
}

// Float (canonical when NaN) to half, to nearest even.
HVD_INLINE Bits narrow_to_half(Floats value) {
  const Bits bits = reinterpret_cast<Bits>(value), sign = (bits >> 16) & 0x8000u, rest = bits & 0x7fffffffu;
  const Bits normal = (rest - 0x38000000u + 0xfffu + ((rest >> 13) & 1u)) >> 13;
  // Below 2^-14 an addition of 0.5 rounds at the right place.
  const Bits small = reinterpret_cast<Bits>(reinterpret_cast<Floats>(rest) + 0.5f) - 0x3f000000u;
  const Bits finite = rest < 0x38800000u ? small : normal;
  const Bits infinite = rest >= 0x477ff000u ? Bits{} + 0x7c00u : finite;
  return sign | (rest > 0x7f800000u ? Bits{} + 0x7e00u : infinite);
}

// 16-bit elements to 32-bit lanes and back; the upper halves are zero.
HVD_INLINE Bits load_shorts(const void *in) {
#if HVD_VECTOR_BYTES == 64
  return reinterpret_cast<Bits>(_mm512_cvtepu16_epi32(_mm256_loadu_si256(static_cast<const __m256i *>(in))));
#elif HVD_VECTOR_BYTES == 32
  return reinterpret_cast<Bits>(_mm256_cvtepu16_epi32(_mm_loadu_si128(static_cast<const __m128i *>(in))));
#else
  Shorts raw;
  std::memcpy(&raw, in, sizeof raw);
  return __builtin_convertvector(raw, Bits);
#endif
}

HVD_INLINE void store_shorts(void *out, Bits lanes) {
#if HVD_VECTOR_BYTES == 64
  _mm256_storeu_si256(static_cast<__m256i *>(out), _mm512_cvtepi32_epi16(reinterpret_cast<__m512i>(lanes)));
#elif HVD_VECTOR_BYTES == 32
  const __m256i wide = reinterpret_cast<__m256i>(lanes);
  _mm_storeu_si128(static_cast<__m128i *>(out),
                   _mm_packus_epi32(_mm256_castsi256_si128(wide), _mm256_extracti128_si256(wide, 1)));
#else
  const Shorts raw = __builtin_convertvector(lanes, Shorts);
  std::memcpy(out, &raw, sizeof raw);
#endif
}

HVD_INLINE Floats load_half(const void *in) {
#if HVD_VECTOR_BYTES == 64
  return reinterpret_cast<Floats>(_mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i *>(in))));
#elif HVD_VECTOR_BYTES == 32
  return reinterpret_cast<Floats>(_mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i *>(in))));
#else
  return widen_half(load_shorts(in));
#endif
}

HVD_INLINE void store_half(void *out, Floats value) {
#if HVD_VECTOR_BYTES == 64
  _mm256_storeu_si256(static_cast<__m256i *>(out), _mm512_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#elif HVD_VECTOR_BYTES == 32
  _mm_storeu_si128(static_cast<__m128i *>(out), _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#else
  store_shorts(out, narrow_to_half(value));
#endif
}

HVD_INLINE Floats load_brain(const void *in) { return reinterpret_cast<Floats>(load_shorts(in) << 16); }

// The value is canonical when NaN, so rounding cannot turn it into infinity.
HVD_INLINE void store_brain(void *out, Floats value) {
  const Bits bits = reinterpret_cast<Bits>(value);
  store_shorts(out, (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

template <typename T>
HVD_INLINE Pack<T> load(const T *in) {
  if constexpr (std::is_same_v<T, Half>) {
    return load_half(in);
  } else if constexpr (std::is_same_v<T, Brain>) {
    return load_brain(in);
  } else {
    Pack<T> pack;
    std::memcpy(&pack, in, sizeof pack);
    if constexpr (std::is_same_v<T, Truth>) pack = reinterpret_cast<Pack<T>>(pack != 0) & 1;
    return pack;
  }
}

template <typename T>
HVD_INLINE void store(T *out, Pack<T> pack) {
  if constexpr (std::is_same_v<T, Half>) {
    store_half(out, pack);
  } else if constexpr (std::is_same_v<T, Brain>) {
    store_brain(out, pack);
  } else {
    std::memcpy(static_cast<void *>(out), &pack, sizeof pack);
  }
}

// The first `lanes` elements, the others zero.
template <typename T>
HVD_INLINE Pack<T> load_some(const T *in, uint64_t lanes) {
  T raw[kLanes<T>] = {};
  std::memcpy(static_cast<void *>(raw), in, lanes * sizeof(T));
  return load<T>(raw);
}

template <typename T>
HVD_INLINE void store_some(T *out, Pack<T> pack, uint64_t lanes) {
  T raw[kLanes<T>];
  store<T>(raw, pack);
  std::memcpy(static_cast<void *>(out), raw, lanes * sizeof(T));
}

template <typename A>
HVD_INLINE Vector<A> canonical(Vector<A> pack) {
  if constexpr (std::is_floating_point_v<A>)
    return pack == pack ? pack : Vector<A>{} + std::numeric_limits<A>::quiet_NaN();
  else
    return pack;
}

// Truncated toward zero; what does not fit is clamped to the nearest end of the range, NaN gives 0.
template <typename A>
HVD_INLINE A scale_integer(A value, double factor) {
  using Limits = std::numeric_limits<A>;
  const double top = static_cast<double>(Limits::max()), bottom = static_cast<double>(Limits::min());
  const double scaled = static_cast<double>(value) * factor;
  if (scaled >= top) return Limits::max();
  if (scaled <= bottom) return Limits::min();
  return scaled == scaled ? static_cast<A>(scaled) : A(0);
}

// bool is never scaled: True stays True.
template <typename T>
HVD_INLINE Pack<T> scale(Pack<T> pack, double factor) {
  using A = Acc<T>;
  if constexpr (std::is_same_v<T, Truth>) {
    return pack;
  } else if constexpr (std::is_floating_point_v<A>) {
    return pack * static_cast<A>(factor);
  } else {
    for (uint64_t i = 0; i < kLanes<T>; ++i) pack[i] = scale_integer<A>(pack[i], factor);
    return pack;
  }
}

// Integers wrap: the sum and the product are made of unsigned numbers.
template <typename A, bool = std::is_integral_v<A>>
struct WrappingOf {
  using type = std::make_unsigned_t<A>;
};
template <typename A>
struct WrappingOf<A, false> {
  using type = A;
};
template <typename A>
using Wrapping = Vector<typename WrappingOf<A>::type>;

struct SumOf {
  template <typename A>
  HVD_INLINE static Vector<A> combine(Vector<A> a, Vector<A> b) {
    return reinterpret_cast<Vector<A>>(reinterpret_cast<Wrapping<A>>(a) + reinterpret_cast<Wrapping<A>>(b));
  }
};
struct ProductOf {
  template <typename A>
  HVD_INLINE static Vector<A> combine(Vector<A> a, Vector<A> b) {
    return reinterpret_cast<Vector<A>>(reinterpret_cast<Wrapping<A>>(a) * reinterpret_cast<Wrapping<A>>(b));
  }
};
// A NaN on either side wins: the comparison is false when b is NaN, and a is kept when it is NaN itself.  Of equal numbers, +0.0
// and -0.0 too, the one of the later member stays.
struct MinOf {
  template <typename A>
  HVD_INLINE static Vector<A> combine(Vector<A> a, Vector<A> b) {
    if constexpr (std::is_floating_point_v<A>) return ((a < b) | (a != a)) ? a : b;
    else return a < b ? a : b;
  }
};
struct MaxOf {
  template <typename A>
  HVD_INLINE static Vector<A> combine(Vector<A> a, Vector<A> b) {
    if constexpr (std::is_floating_point_v<A>) return ((a > b) | (a != a)) ? a : b;
    else return a > b ? a : b;
  }
};

}  // namespace HVD_ISA
}  // namespace hvd
