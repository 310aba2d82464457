#include "block_allocator.h"

#include "layout.h"

namespace hvd {

// Four classes for each power of two: at most a quarter is wasted.
uint64_t BlockAllocator::size_class(uint64_t bytes) {
  uint64_t step = kBlockAlign;
  while (step * 8 < bytes) step *= 2;
  return (bytes + step - 1) / step * step;
}

uint64_t BlockAllocator::alloc(uint64_t bytes, bool *reused) {
  uint64_t size = size_class(bytes);
  auto &blocks = free_[size];
  *reused = !blocks.empty();
  if (*reused) {
    uint64_t offset = blocks.back();
    blocks.pop_back();
    return offset;
  }
  if (size > end_ - next_) return 0;
  uint64_t offset = next_;
  next_ += size;
  return offset;
}

void BlockAllocator::free(uint64_t offset, uint64_t bytes) { free_[size_class(bytes)].push_back(offset); }

}  // namespace hvd
