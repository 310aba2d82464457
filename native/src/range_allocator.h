// Hands out ranges of an address space: offsets only, no memory behind it, no locks.  Best fit, lowest address first,
// neighbours join when freed.
#pragma once
#include <cstdint>
#include <map>
#include <set>
#include <unordered_map>
#include <utility>

namespace hvd {

class RangeAllocator {
 public:
  RangeAllocator(uint64_t begin, uint64_t end, uint64_t align) : align_(align) { insert_free(begin, end - begin); }
  // Offset of a range of at least `bytes` (zero counts as one), or kNone.
  uint64_t alloc(uint64_t bytes);
  bool free(uint64_t offset);
  uint64_t used_bytes() const { return used_bytes_; }
  const std::map<uint64_t, uint64_t> &free_ranges() const { return free_; }  // offset -> bytes
  static constexpr uint64_t kNone = UINT64_MAX;

 private:
  void insert_free(uint64_t offset, uint64_t bytes);
  void erase_free(uint64_t offset, uint64_t bytes);

  uint64_t align_, used_bytes_ = 0;
  std::map<uint64_t, uint64_t> free_;
  std::set<std::pair<uint64_t, uint64_t>> by_size_;  // (bytes, offset) of each free range
  std::unordered_map<uint64_t, uint64_t> used_;
};

// The parts of an address space that have memory behind them, as far as we know: what was handed out and not punched.
class TouchedRanges {
 public:
  void add(uint64_t begin, uint64_t end);
  void remove(uint64_t begin, uint64_t end);
  uint64_t bytes_within(uint64_t begin, uint64_t end) const;

 private:
  std::map<uint64_t, uint64_t> ranges_;  // begin -> end, disjoint, not adjacent
};

}  // namespace hvd
