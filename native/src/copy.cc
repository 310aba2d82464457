#include "copy.h"

#include <algorithm>
#include <cstring>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace hvd {

#if defined(__SSE2__)

namespace {

constexpr uint64_t kLine = 64, kPart = 16;

// Four stores fill a line, which then leaves in one piece.
void store_line(char *to, const char *from) {
  __m128i parts[kLine / kPart];
  for (uint64_t i = 0; i < kLine / kPart; ++i) parts[i] = _mm_loadu_si128(reinterpret_cast<const __m128i *>(from + i * kPart));
  for (uint64_t i = 0; i < kLine / kPart; ++i) _mm_stream_si128(reinterpret_cast<__m128i *>(to + i * kPart), parts[i]);
}

}  // namespace

void copy_past_caches(void *to, const void *from, uint64_t bytes) {
  char *out = static_cast<char *>(to);
  const char *in = static_cast<const char *>(from);
  uint64_t head = std::min<uint64_t>(bytes, (kLine - reinterpret_cast<uintptr_t>(out) % kLine) % kLine);
  std::memcpy(out, in, head);
  uint64_t at = head;
  for (; bytes - at >= kLine; at += kLine) store_line(out + at, in + at);
  std::memcpy(out + at, in + at, bytes - at);
  _mm_sfence();  // such stores are not ordered by the releases that follow
}

#else

void copy_past_caches(void *to, const void *from, uint64_t bytes) { std::memcpy(to, from, bytes); }

#endif

}  // namespace hvd
