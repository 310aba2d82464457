#include "neutral.h"

#include <cstring>
#include <limits>

namespace hvd {
namespace {

struct Patterns {
  uint16_t one, infinity;
};
constexpr Patterns kHalf{0x3c00, 0x7c00}, kBrain{0x3f80, 0x7f80};
constexpr uint16_t kSign = 0x8000;

template <typename T>
T neutral_of(hvd_reduce_op op) {
  using Limits = std::numeric_limits<T>;
  switch (op) {
    case HVD_PRODUCT: return T{1};
    case HVD_MIN: return Limits::has_infinity ? Limits::infinity() : Limits::max();
    case HVD_MAX: return Limits::has_infinity ? -Limits::infinity() : Limits::lowest();
    default: return Limits::has_infinity ? -T{0} : T{0};  // adding -0 keeps the sign of a zero
  }
}

uint16_t neutral_of(hvd_reduce_op op, Patterns patterns) {
  switch (op) {
    case HVD_PRODUCT: return patterns.one;
    case HVD_MIN: return patterns.infinity;
    case HVD_MAX: return patterns.infinity | kSign;
    default: return kSign;
  }
}

template <typename T>
void fill(char *out, uint64_t bytes, T value) {
  for (uint64_t at = 0; at < bytes; at += sizeof(T)) std::memcpy(out + at, &value, sizeof(T));
}

void fill(char *out, uint64_t bytes, hvd_dtype dtype, hvd_reduce_op op) {
  switch (dtype) {
    case HVD_UINT8: return fill(out, bytes, neutral_of<uint8_t>(op));
    case HVD_INT8: return fill(out, bytes, neutral_of<int8_t>(op));
    case HVD_UINT16: return fill(out, bytes, neutral_of<uint16_t>(op));
    case HVD_INT16: return fill(out, bytes, neutral_of<int16_t>(op));
    case HVD_INT32: return fill(out, bytes, neutral_of<int32_t>(op));
    case HVD_INT64: return fill(out, bytes, neutral_of<int64_t>(op));
    case HVD_FLOAT16: return fill(out, bytes, neutral_of(op, kHalf));
    case HVD_BFLOAT16: return fill(out, bytes, neutral_of(op, kBrain));
    case HVD_FLOAT32: return fill(out, bytes, neutral_of<float>(op));
    case HVD_FLOAT64: return fill(out, bytes, neutral_of<double>(op));
    case HVD_BOOL: return fill(out, bytes, static_cast<uint8_t>(op == HVD_MIN || op == HVD_PRODUCT));
  }
}

bool is_absent(const PlanView &plan, uint64_t round) {
  uint32_t flags = plan.entry_member(round, 0).flags.load(std::memory_order_relaxed);
  return (flags & kAbsent) != 0;
}

}  // namespace

void fill_neutral(const PlanView &plan, uint64_t round, char *out) {
  if (is_absent(plan, round))
    fill(out, plan.bytes, static_cast<hvd_dtype>(plan.dtype), static_cast<hvd_reduce_op>(plan.op));
  else
    std::memset(out, 0, plan.bytes);
}

}  // namespace hvd
