#include "copy.h"

#include <algorithm>
#include <cstring>

#include "reduce.h"

namespace hvd {

void copy_past_caches(void *to, const void *from, uint64_t bytes) {
  char *out = static_cast<char *>(to);
  const char *in = static_cast<const char *>(from);
  uint64_t head = std::min<uint64_t>(bytes, (kLineBytes - reinterpret_cast<uintptr_t>(out) % kLineBytes) % kLineBytes);
  uint64_t lines = (bytes - head) / kLineBytes, tail = head + lines * kLineBytes;
  std::memcpy(out, in, head);
  kernels().copy_lines(out + head, in + head, lines);
  std::memcpy(out + tail, in + tail, bytes - tail);
}

}  // namespace hvd

extern "C" void hvd_copy_past_caches(void *to, const void *from, uint64_t bytes) { hvd::copy_past_caches(to, from, bytes); }
