#include "segments.h"

#include <algorithm>
#include <cstring>

#include "copy.h"

namespace hvd {
namespace {

// Results of this size leave the caches before anybody reads all of them.
constexpr uint64_t kPastCaches = 16 << 20;

}  // namespace

bool Segments::assign(const hvd_segment *segments, uint32_t n, uint64_t align, bool needs_out) {
  clear();
  if (n != 0 && segments == nullptr) return false;
  for (uint32_t i = 0; i < n; ++i) {
    const hvd_segment &segment = segments[i];
    bool missing = segment.in == nullptr || (needs_out && segment.out == nullptr);
    uint64_t start = (bytes_ + align - 1) / align * align;
    if ((missing && segment.bytes != 0) || segment.bytes > (1ull << 40) || start > (1ull << 40)) return false;
    parts_.push_back({segment, start});
    bytes_ = start + segment.bytes;
  }
  return true;
}

size_t Segments::first_part_at(uint64_t at) const {
  auto after = std::upper_bound(parts_.begin(), parts_.end(), at,
                                [](uint64_t value, const Part &part) { return value < part.start; });
  return after == parts_.begin() ? 0 : static_cast<size_t>(after - parts_.begin()) - 1;
}

void Segments::gather(uint64_t at, uint64_t length, char *to) const {
  uint64_t end = at + length, next = at;  // next: first byte not written yet
  for (size_t i = first_part_at(at); i < parts_.size() && parts_[i].start < end; ++i) {
    const Part &part = parts_[i];
    uint64_t begin = std::max(at, part.start), stop = std::min(end, part.start + part.segment.bytes);
    if (begin >= stop) continue;
    if (begin > next) std::memset(to + (next - at), 0, begin - next);
    std::memcpy(to + (begin - at), static_cast<const char *>(part.segment.in) + (begin - part.start), stop - begin);
    next = stop;
  }
  if (next < end) std::memset(to + (next - at), 0, end - next);
}

void Segments::scatter(uint64_t at, uint64_t length, const char *from) const {
  uint64_t end = at + length;
  for (size_t i = first_part_at(at); i < parts_.size() && parts_[i].start < end; ++i) {
    const Part &part = parts_[i];
    uint64_t begin = std::max(at, part.start), stop = std::min(end, part.start + part.segment.bytes);
    if (begin >= stop) continue;
    char *to = static_cast<char *>(part.segment.out) + (begin - part.start);
    if (bytes_ >= kPastCaches)
      copy_past_caches(to, from + (begin - at), stop - begin);
    else
      std::memcpy(to, from + (begin - at), stop - begin);
  }
}

void *Segments::in_place() const {
  if (parts_.empty()) return nullptr;
  char *base = static_cast<char *>(parts_[0].segment.out);
  for (const Part &part : parts_)
    if (part.segment.in != part.segment.out || part.segment.out != base + part.start) return nullptr;
  return base;
}

}  // namespace hvd
