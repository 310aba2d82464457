#include "range_allocator.h"

#include <algorithm>

namespace hvd {

void RangeAllocator::insert_free(uint64_t offset, uint64_t bytes) {
  if (bytes == 0) return;
  free_.emplace(offset, bytes);
  by_size_.emplace(bytes, offset);
}

void RangeAllocator::erase_free(uint64_t offset, uint64_t bytes) {
  free_.erase(offset);
  by_size_.erase({bytes, offset});
}

uint64_t RangeAllocator::alloc(uint64_t bytes) {
  if (bytes > UINT64_MAX - align_) return kNone;
  uint64_t rounded = (std::max<uint64_t>(bytes, 1) + align_ - 1) / align_ * align_;
  auto fit = by_size_.lower_bound({rounded, 0});
  if (fit == by_size_.end()) return kNone;
  auto [size, offset] = *fit;
  erase_free(offset, size);
  insert_free(offset + rounded, size - rounded);
  used_.emplace(offset, rounded);
  used_bytes_ += rounded;
  return offset;
}

bool RangeAllocator::free(uint64_t offset) {
  auto used = used_.find(offset);
  if (used == used_.end()) return false;
  uint64_t begin = offset, end = offset + used->second;
  used_bytes_ -= used->second;
  used_.erase(used);
  auto next = free_.lower_bound(begin);
  if (next != free_.end() && next->first == end) {
    end += next->second;
    erase_free(next->first, next->second);
  }
  auto before = free_.lower_bound(begin);
  if (before != free_.begin() && (--before)->first + before->second == begin) {
    begin = before->first;
    erase_free(before->first, before->second);
  }
  insert_free(begin, end - begin);
  return true;
}

void TouchedRanges::add(uint64_t begin, uint64_t end) {
  auto at = ranges_.upper_bound(begin);
  if (at != ranges_.begin() && std::prev(at)->second >= begin) --at;
  while (at != ranges_.end() && at->first <= end) {
    begin = std::min(begin, at->first);
    end = std::max(end, at->second);
    at = ranges_.erase(at);
  }
  if (begin < end) ranges_.emplace(begin, end);
}

void TouchedRanges::remove(uint64_t begin, uint64_t end) {
  auto at = ranges_.upper_bound(begin);
  if (at != ranges_.begin() && std::prev(at)->second > begin) --at;
  while (at != ranges_.end() && at->first < end) {
    auto [first, last] = *at;
    at = ranges_.erase(at);
    if (first < begin) ranges_.emplace(first, begin);
    if (last > end) ranges_.emplace(end, last);
  }
}

uint64_t TouchedRanges::bytes_within(uint64_t begin, uint64_t end) const {
  auto at = ranges_.upper_bound(begin);
  if (at != ranges_.begin()) --at;
  uint64_t total = 0;
  for (; at != ranges_.end() && at->first < end; ++at) {
    uint64_t first = std::max(begin, at->first), last = std::min(end, at->second);
    if (first < last) total += last - first;
  }
  return total;
}

}  // namespace hvd
