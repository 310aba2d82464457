// Copying whole lines past the caches.  Included once per instruction set, see reduce_pack.h; the rules there hold here too.
#pragma once
#include <cstdint>

#include "copy.h"
#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace hvd {
namespace HVD_ISA {

#if defined(__AVX512F__)

// One store is a line.  Four at once, so that loads need not wait for stores.
inline void copy_lines(char *to, const char *from, uint64_t lines) {
  constexpr uint64_t kAtOnce = 4;
  auto load = [](const char *at) __attribute__((always_inline)) { return _mm512_loadu_si512(at); };
  auto store = [](char *at, __m512i line) __attribute__((always_inline)) { _mm512_stream_si512(reinterpret_cast<__m512i *>(at), line); };
  for (; lines >= kAtOnce; lines -= kAtOnce, to += kAtOnce * kLineBytes, from += kAtOnce * kLineBytes) {
    __m512i a = load(from), b = load(from + kLineBytes), c = load(from + 2 * kLineBytes), d = load(from + 3 * kLineBytes);
    store(to, a);
    store(to + kLineBytes, b);
    store(to + 2 * kLineBytes, c);
    store(to + 3 * kLineBytes, d);
  }
  for (; lines != 0; --lines, to += kLineBytes, from += kLineBytes) store(to, load(from));
  _mm_sfence();
}

#elif defined(__SSE2__)

HVD_INLINE void copy_line(char *to, const char *from) {
  constexpr unsigned kParts = kLineBytes / HVD_VECTOR_BYTES;
#if defined(__AVX2__)
  __m256i parts[kParts];
  for (unsigned i = 0; i < kParts; ++i) parts[i] = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(from) + i);
  for (unsigned i = 0; i < kParts; ++i) _mm256_stream_si256(reinterpret_cast<__m256i *>(to) + i, parts[i]);
#else
  __m128i parts[kParts];
  for (unsigned i = 0; i < kParts; ++i) parts[i] = _mm_loadu_si128(reinterpret_cast<const __m128i *>(from) + i);
  for (unsigned i = 0; i < kParts; ++i) _mm_stream_si128(reinterpret_cast<__m128i *>(to) + i, parts[i]);
#endif
}

// Two pages in turns: a line is stored in parts, and those of one wait while the other's are loaded.
inline void copy_lines(char *to, const char *from, uint64_t lines) {
  constexpr uint64_t kPage = 4096, kPageLines = kPage / kLineBytes;
  for (; lines >= 2 * kPageLines; lines -= 2 * kPageLines, to += 2 * kPage, from += 2 * kPage)
    for (uint64_t at = 0; at < kPage; at += kLineBytes) {
      copy_line(to + at, from + at);
      copy_line(to + kPage + at, from + kPage + at);
    }
  for (; lines != 0; --lines, to += kLineBytes, from += kLineBytes) copy_line(to, from);
  _mm_sfence();
}

#else

inline void copy_lines(char *to, const char *from, uint64_t lines) { __builtin_memcpy(to, from, lines * kLineBytes); }

#endif

}  // namespace HVD_ISA
}  // namespace hvd
