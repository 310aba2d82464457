// The reduction kernels against a slow twin, element by element, for every dtype, op and number of members, on odd
// lengths and odd addresses, with guard bytes around every output; and every instruction set against the baseline, bit by bit.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "check.h"
#include "copy.h"
#include "hvd.h"
#include "reduce.h"

namespace {

constexpr uint64_t kGuard = 64;
constexpr uint8_t kGuardByte = 0xa5;
const hvd_dtype kDtypes[] = {HVD_UINT8, HVD_INT8,    HVD_UINT16,  HVD_INT16, HVD_INT32,   HVD_INT64,
                             HVD_FLOAT16, HVD_FLOAT32, HVD_FLOAT64, HVD_BOOL,  HVD_BFLOAT16};
const hvd_reduce_op kOps[] = {HVD_SUM, HVD_MIN, HVD_MAX, HVD_PRODUCT};
const uint64_t kCounts[] = {0, 1, 2, 3, 7, 31, 64, 127, 257, 1023, 1025};
const uint32_t kMembers[] = {1, 2, 3, 4, 5, 8};

using Bytes = std::vector<uint8_t>;

uint32_t next_random() {
  static uint64_t state = 0x9e3779b97f4a7c15u;
  state = state * 6364136223846793005u + 1442695040888963407u;
  return static_cast<uint32_t>(state >> 33);
}

bool is_float(hvd_dtype dtype) {
  return dtype == HVD_FLOAT16 || dtype == HVD_FLOAT32 || dtype == HVD_FLOAT64 || dtype == HVD_BFLOAT16;
}

// A quarter of the elements are made of random bits, so infinities, NaN and subnormal numbers occur.
double tame() { return (static_cast<int>(next_random() % 4001) - 2000) / 16.0; }

double half_value(uint16_t bits) {
  const int exponent = (bits >> 10) & 31, mantissa = bits & 1023;
  double value = exponent == 0    ? std::ldexp(mantissa, -24)
                 : exponent == 31 ? (mantissa ? std::nan("") : HUGE_VAL)
                                  : std::ldexp(1024 + mantissa, exponent - 25);
  return bits & 0x8000 ? -value : value;
}

double brain_value(uint16_t bits) {
  uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, 4);
  return value;
}

// To nearest even, by search: the twin must not share a trick with the kernels.
uint16_t nearest(float value, double (*decode)(uint16_t), uint16_t infinity, uint16_t nan) {
  if (value != value) return nan;
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const double magnitude = std::fabs(static_cast<double>(value));
  uint16_t low = 0, high = infinity;  // the greatest number that is not above the magnitude
  while (high - low > 1) {
    const auto middle = static_cast<uint16_t>((low + high) / 2);
    (decode(middle) <= magnitude ? low : high) = middle;
  }
  if (std::isinf(value)) return sign | infinity;
  const double below = decode(low);
  const auto before = static_cast<uint16_t>(low - 1);
  const double above = high == infinity ? 2 * below - decode(before) + 0 : decode(high);
  const double to_below = magnitude - below, to_above = above - magnitude;
  const bool up = to_above < to_below || (to_above == to_below && (low & 1));
  return static_cast<uint16_t>(sign | (up ? high : low));
}

uint16_t to_half(float value) { return nearest(value, half_value, 0x7c00, 0x7e00); }
uint16_t to_brain(float value) {
  // The top step of bfloat16 has the same width as the one below it, as `nearest` supposes.
  return nearest(value, brain_value, 0x7f80, 0x7fc0);
}

void fill(hvd_dtype dtype, uint8_t *at, uint64_t count) {
  const uint32_t size = hvd_dtype_bytes(dtype);
  for (uint64_t i = 0; i < count; ++i, at += size) {
    for (uint32_t byte = 0; byte < size; ++byte) at[byte] = static_cast<uint8_t>(next_random());
    if (dtype == HVD_BOOL) *at = next_random() % 3 == 0 ? 0 : *at;
    if (!is_float(dtype) || next_random() % 4 == 0) continue;
    const double value = tame();
    const auto narrow = static_cast<float>(value);
    const uint16_t half = to_half(narrow), brain = to_brain(narrow);
    std::memcpy(at, dtype == HVD_FLOAT64   ? static_cast<const void *>(&value)
                    : dtype == HVD_FLOAT32 ? static_cast<const void *>(&narrow)
                    : dtype == HVD_FLOAT16 ? static_cast<const void *>(&half)
                                           : static_cast<const void *>(&brain),
                size);
  }
}

template <typename A>
A canonical(A value) {
  return value == value ? value : std::numeric_limits<A>::quiet_NaN();
}

template <typename A>
A scaled(A value, double factor) {
  if (factor == 1.0) return value;
  if constexpr (std::is_floating_point_v<A>) {
    return static_cast<A>(value * static_cast<A>(factor));
  } else {
    const double wide = std::trunc(static_cast<double>(value) * factor);
    if (wide >= static_cast<double>(std::numeric_limits<A>::max())) return std::numeric_limits<A>::max();
    if (wide <= static_cast<double>(std::numeric_limits<A>::min())) return std::numeric_limits<A>::min();
    return static_cast<A>(wide);
  }
}

template <typename A>
A combined(hvd_reduce_op op, A a, A b) {
  if (a != a || b != b) return std::numeric_limits<A>::quiet_NaN();
  switch (op) {
    case HVD_SUM:
      if constexpr (std::is_floating_point_v<A>) return a + b;
      else return static_cast<A>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
    case HVD_PRODUCT:
      if constexpr (std::is_floating_point_v<A>) return a * b;
      else return static_cast<A>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
    case HVD_MIN: return a < b ? a : b;
    default: return a > b ? a : b;
  }
}

struct Case {
  hvd_dtype dtype;
  hvd_reduce_op op;
  double pre, post;
  uint64_t count;
  std::vector<const uint8_t *> in;
};

template <typename A, typename Load>
A twin_element(const Case &test, uint64_t i, Load load) {
  A value{};
  for (size_t m = 0; m < test.in.size(); ++m) {
    const A next = scaled<A>(test.in[m] ? load(test.in[m], i) : A{}, test.pre);
    value = m == 0 ? next : combined<A>(test.op, value, next);
  }
  return canonical<A>(scaled<A>(value, test.post));
}

template <typename A>
A load_plain(const uint8_t *from, uint64_t i) {
  A value;
  std::memcpy(&value, from + i * sizeof(A), sizeof(A));
  return value;
}

template <typename A>
void twin_plain(const Case &test, uint8_t *out) {
  for (uint64_t i = 0; i < test.count; ++i) {
    const A value = twin_element<A>(test, i, load_plain<A>);
    std::memcpy(out + i * sizeof(A), &value, sizeof(A));
  }
}

void twin_small(const Case &test, uint8_t *out, double (*decode)(uint16_t), uint16_t (*encode)(float)) {
  for (uint64_t i = 0; i < test.count; ++i) {
    const uint16_t bits = encode(twin_element<float>(test, i, [decode](const uint8_t *from, uint64_t at) {
      return static_cast<float>(decode(load_plain<uint16_t>(from, at)));
    }));
    std::memcpy(out + 2 * i, &bits, 2);
  }
}

void twin_bool(const Case &test, uint8_t *out) {
  const bool any = test.op == HVD_SUM || test.op == HVD_MAX;
  for (uint64_t i = 0; i < test.count; ++i) {
    bool value = !any;
    for (const uint8_t *in : test.in) value = any ? value || (in && in[i]) : value && in && in[i];
    out[i] = value;
  }
}

Bytes twin(const Case &test) {
  Bytes out(test.count * hvd_dtype_bytes(test.dtype));
  switch (test.dtype) {
    case HVD_UINT8: twin_plain<uint8_t>(test, out.data()); break;
    case HVD_INT8: twin_plain<int8_t>(test, out.data()); break;
    case HVD_UINT16: twin_plain<uint16_t>(test, out.data()); break;
    case HVD_INT16: twin_plain<int16_t>(test, out.data()); break;
    case HVD_INT32: twin_plain<int32_t>(test, out.data()); break;
    case HVD_INT64: twin_plain<int64_t>(test, out.data()); break;
    case HVD_FLOAT32: twin_plain<float>(test, out.data()); break;
    case HVD_FLOAT64: twin_plain<double>(test, out.data()); break;
    case HVD_FLOAT16: twin_small(test, out.data(), half_value, to_half); break;
    case HVD_BFLOAT16: twin_small(test, out.data(), brain_value, to_brain); break;
    case HVD_BOOL: twin_bool(test, out.data()); break;
  }
  return out;
}

std::vector<hvd::Kernels> all_kernels() {
  std::vector<hvd::Kernels> found;
  for (const char *name : {"baseline", "avx2", "avx512"}) {
    const hvd::Kernels kernels = hvd::choose_kernels(name);
    if (!std::strcmp(kernels.name, name)) found.push_back(kernels);
  }
  return found;
}

// `bytes` of memory at an address that is aligned to `size` and to nothing more, with guards on both sides.
struct Guarded {
  Bytes memory;
  uint64_t start, bytes;
  Guarded(uint64_t bytes, uint32_t size) : memory(bytes + 2 * kGuard + 64 + size, kGuardByte), start(0), bytes(bytes) {
    const auto address = reinterpret_cast<uintptr_t>(memory.data()) + kGuard;
    start = kGuard + (64 - address % 64) % 64 + size;
  }
  uint8_t *data() { return memory.data() + start; }
  void check(const Bytes &expected, const char *what) const {
    for (uint64_t i = 0; i < memory.size(); ++i) {
      const bool inside = i >= start && i < start + bytes;
      if (memory[i] == (inside ? expected[i - start] : kGuardByte)) continue;
      std::fprintf(stderr, "%s: byte %lld is wrong\n", what, static_cast<long long>(i) - static_cast<long long>(start));
      CHECK(false);
    }
  }
};

enum class Place { kInPlace, kApart, kHoles };  // holes: some inputs and outputs are null

void run_case(const hvd::Kernels &kernels, hvd_dtype dtype, hvd_reduce_op op, uint64_t count, uint32_t n, double pre,
              double post, Place place) {
  const uint32_t size = hvd_dtype_bytes(dtype);
  std::vector<Guarded> inputs(n, Guarded(count * size, size)), outputs(n, Guarded(count * size, size));
  std::vector<const void *> in(n);
  std::vector<void *> out(n);
  Case test{dtype, op, pre, post, count, {}};
  for (uint32_t m = 0; m < n; ++m) {
    fill(dtype, inputs[m].data(), count);
    in[m] = place == Place::kHoles && m % 2 == 1 ? nullptr : inputs[m].data();
    out[m] = place == Place::kInPlace ? inputs[m].data() : outputs[m].data();
    if (place == Place::kHoles && m % 3 == 1) out[m] = nullptr;
    test.in.push_back(static_cast<const uint8_t *>(in[m]));
  }
  const Bytes expected = twin(test);
  CHECK(kernels.reduce({dtype, op, pre, post, in.data(), out.data(), n, count, nullptr}));
  char what[160];
  std::snprintf(what, sizeof what, "%s dtype %d op %d count %llu n %u pre %g post %g place %d", kernels.name, dtype, op,
                static_cast<unsigned long long>(count), n, pre, post, static_cast<int>(place));
  for (uint32_t m = 0; m < n; ++m)
    if (out[m]) (place == Place::kInPlace ? inputs[m] : outputs[m]).check(expected, what);
}

void test_everything() {
  for (const hvd::Kernels &kernels : all_kernels())
    for (hvd_dtype dtype : kDtypes)
      for (hvd_reduce_op op : kOps)
        for (uint32_t n : kMembers)
          for (uint64_t count : kCounts) {
            run_case(kernels, dtype, op, count, n, 1.0, 1.0, Place::kInPlace);
            run_case(kernels, dtype, op, count, n, 1.0, 1.0 / n, Place::kApart);
            run_case(kernels, dtype, op, count, n, 0.75, 1.0, Place::kHoles);
          }
}

void test_extreme_factors() {
  const double factors[] = {1e30, -1e30, HUGE_VAL, std::nan(""), 0.0, -0.5};
  for (const hvd::Kernels &kernels : all_kernels())
    for (hvd_dtype dtype : kDtypes)
      for (double factor : factors) {
        if (!std::isfinite(factor) && !is_float(dtype)) continue;  // see test_nan_factor
        run_case(kernels, dtype, HVD_SUM, 257, 2, factor, 1.0, Place::kApart);
        run_case(kernels, dtype, HVD_MAX, 257, 3, 1.0, factor, Place::kApart);
      }
}

template <typename T>
T reduced(const hvd::Kernels &kernels, hvd_dtype dtype, T a, T b, double pre, double post) {
  const void *in[] = {&a, &b};
  void *out[] = {&a, nullptr};
  CHECK(kernels.reduce({dtype, HVD_SUM, pre, post, in, out, 2, 1, nullptr}));
  return a;
}

// The examples and limits that hvd.h gives for scaled integers.
void test_scaled_integers_as_documented() {
  constexpr int64_t wide = (int64_t{1} << 53) + 1;
  for (const hvd::Kernels &kernels : all_kernels()) {
    CHECK_EQUAL(reduced<int32_t>(kernels, HVD_INT32, 1, 1, 0.5, 1), 0);
    CHECK_EQUAL(reduced<int32_t>(kernels, HVD_INT32, -7, 0, 0.5, 1), -3);
    CHECK_EQUAL(reduced<int32_t>(kernels, HVD_INT32, 3, 4, 1, 0.5), 3);
    CHECK_EQUAL(reduced<int8_t>(kernels, HVD_INT8, 100, 0, 2, 1), 127);
    CHECK_EQUAL(reduced<int8_t>(kernels, HVD_INT8, -100, 0, 2, 1), -128);
    CHECK_EQUAL(reduced<uint8_t>(kernels, HVD_UINT8, 5, 0, 1, -1), 0);
    CHECK_EQUAL(reduced<int8_t>(kernels, HVD_INT8, 100, 100, 1, 0.5), -28);  // 200 wraps to -56 before
    CHECK_EQUAL(reduced<int64_t>(kernels, HVD_INT64, wide, 0, 1, 1), wide);
    CHECK_EQUAL(reduced<int64_t>(kernels, HVD_INT64, wide, 0, 2, 0.5), wide - 1);
    CHECK_EQUAL(reduced<uint8_t>(kernels, HVD_BOOL, 1, 0, 0.0, 0.0), 1);
  }
}

void test_nan_factor() {
  for (const hvd::Kernels &kernels : all_kernels()) {
    int32_t value = 7;
    const void *in[] = {&value};
    void *out[] = {&value};
    CHECK(kernels.reduce({HVD_INT32, HVD_SUM, std::nan(""), 1.0, in, out, 1, 1, nullptr}));
    CHECK_EQUAL(value, 0);
  }
}

// All 65,536 halves through a copy, and every float between two of them: rounding is to nearest even.
void test_every_small_float() {
  std::vector<uint16_t> all(65536), copy(65536), none(65536, 0);
  for (uint32_t i = 0; i < 65536; ++i) all[i] = static_cast<uint16_t>(i);
  for (const hvd::Kernels &kernels : all_kernels())
    for (hvd_dtype dtype : {HVD_FLOAT16, HVD_BFLOAT16}) {
      const auto *raw = reinterpret_cast<const uint8_t *>(all.data());
      for (double post : {1.0, 1.0 / 3.0, 0x1p-9, 0x1.8p+3}) {
        const void *in[] = {all.data()};
        void *out[] = {copy.data()};
        CHECK(kernels.reduce({dtype, HVD_SUM, 1.0, post, in, out, 1, 65536, nullptr}));
        const Bytes expected = twin({dtype, HVD_SUM, 1.0, post, 65536, {raw}});
        CHECK(!std::memcmp(copy.data(), expected.data(), expected.size()));
      }
    }
}

// Adasum has no simple twin for many members, but it has properties, and all instruction sets must agree.
template <typename A>
std::vector<A> adasum(const hvd::Kernels &kernels, hvd_dtype dtype, std::vector<std::vector<A>> vectors) {
  std::vector<const void *> in;
  std::vector<void *> out;
  for (auto &vector : vectors) in.push_back(vector.data()), out.push_back(vector.data());
  const auto n = static_cast<uint32_t>(vectors.size());
  const uint64_t count = vectors[0].size();
  Bytes scratch(hvd::adasum_scratch_bytes(dtype, n, count) + 1);
  CHECK(kernels.reduce({dtype, HVD_ADASUM, 1.0, 1.0, in.data(), out.data(), n, count, scratch.data()}));
  for (auto &vector : vectors) CHECK(vector == vectors[0]);
  return vectors[0];
}

void test_adasum() {
  for (const hvd::Kernels &kernels : all_kernels()) {
    using Floats = std::vector<float>;
    CHECK((adasum<float>(kernels, HVD_FLOAT32, {{1, 0, 0}, {0, 2, 0}}) == Floats{1, 2, 0}));          // orthogonal: sum
    CHECK((adasum<float>(kernels, HVD_FLOAT32, {{1, 2, 4}, {1, 2, 4}}) == Floats{1, 2, 4}));          // equal: average
    CHECK((adasum<float>(kernels, HVD_FLOAT32, {{0, 0, 0}, {1, 2, 4}}) == Floats{1, 2, 4}));          // zeros: nothing
    CHECK((adasum<float>(kernels, HVD_FLOAT32, {{1, 0}, {1, 0}, {0, 2}, {0, 2}}) == Floats{1, 2}));   // pairs (0,1) (2,3)
    CHECK((adasum<float>(kernels, HVD_FLOAT32, {{1, 0}, {0, 2}, {1, 0}}) == Floats{1, 2}));           // pair (0,2), then 1
    CHECK((adasum<uint16_t>(kernels, HVD_FLOAT16, {{0x3c00, 0}, {0, 0x4000}}) == std::vector<uint16_t>{0x3c00, 0x4000}));
  }
}

void test_adasum_bits() {
  const auto kernels = all_kernels();
  for (uint32_t n : {1u, 2u, 3u, 4u, 7u, 8u})
    for (uint64_t count : {0u, 1u, 7u, 1025u}) {
      std::vector<std::vector<float>> vectors(n, std::vector<float>(count));
      for (auto &vector : vectors)
        for (float &value : vector) value = static_cast<float>(tame() / 3);
      const auto expected = adasum<float>(kernels[0], HVD_FLOAT32, vectors);
      for (const auto &other : kernels) {
        const auto found = adasum<float>(other, HVD_FLOAT32, vectors);
        CHECK(count == 0 || !std::memcmp(found.data(), expected.data(), count * sizeof(float)));
      }
    }
}

void test_refusals() {
  float value = 1;
  const void *in[3] = {&value, &value, &value};
  void *out[3] = {&value, &value, &value};
  CHECK_EQUAL(hvd_reduce(static_cast<hvd_dtype>(99), HVD_SUM, 1, 1, in, out, 1, 1), HVD_E_INVALID);
  CHECK_EQUAL(hvd_reduce(HVD_FLOAT32, static_cast<hvd_reduce_op>(0), 1, 1, in, out, 1, 1), HVD_E_INVALID);
  CHECK_EQUAL(hvd_reduce(HVD_FLOAT32, HVD_SUM, 1, 1, nullptr, out, 1, 1), HVD_E_INVALID);
  CHECK_EQUAL(hvd_reduce(HVD_FLOAT32, HVD_SUM, 1, 1, in, nullptr, 1, 1), HVD_E_INVALID);
  CHECK_EQUAL(hvd_reduce(HVD_FLOAT32, HVD_SUM, 1, 1, in, out, 0, 1), HVD_E_INVALID);
  CHECK_EQUAL(hvd_reduce(HVD_INT32, HVD_ADASUM, 1, 1, in, out, 2, 1), HVD_E_INVALID);
  CHECK_EQUAL(hvd_reduce(HVD_FLOAT32, HVD_ADASUM, 1, 1, in, out, 2, UINT64_MAX / 4), HVD_E_MEMORY);
}

Bytes random_bytes(uint64_t count) {
  Bytes found(count);
  for (uint8_t &byte : found) byte = static_cast<uint8_t>(next_random());
  return found;
}

void test_copies_of_whole_lines() {
  for (const hvd::Kernels &kernels : all_kernels())
    for (uint64_t lines : {0, 1, 3, 4, 5, 127, 128, 129, 259}) {
      const Bytes from = random_bytes(lines * hvd::kLineBytes + 3);
      const Bytes expected(from.begin() + 3, from.end());
      Guarded to(expected.size(), 64);
      kernels.copy_lines(reinterpret_cast<char *>(to.data()), reinterpret_cast<const char *>(from.data()) + 3, lines);
      to.check(expected, kernels.name);
    }
}

void test_copies_of_any_bytes() {
  for (uint32_t aligned : {1, 2, 8, 32, 64})
    for (uint64_t count : {0, 1, 62, 63, 64, 65, 127, 8191, 8193, 70001}) {
      const Bytes from = random_bytes(count);
      Guarded to(count, aligned);
      hvd_copy_past_caches(to.data(), from.data(), count);
      to.check(from, "a copy past the caches");
    }
}

void test_choice() {
  CHECK(std::string(hvd::choose_kernels("baseline").name) == "baseline");
  const std::string best = hvd::choose_kernels(nullptr).name;
  CHECK(hvd::choose_kernels("").name == best);
  CHECK(hvd::choose_kernels("avx512").name == best);
}

}  // namespace

int main() {
  RUN(test_everything);
  RUN(test_extreme_factors);
  RUN(test_scaled_integers_as_documented);
  RUN(test_nan_factor);
  RUN(test_every_small_float);
  RUN(test_adasum);
  RUN(test_adasum_bits);
  RUN(test_refusals);
  RUN(test_copies_of_whole_lines);
  RUN(test_copies_of_any_bytes);
  RUN(test_choice);
}
