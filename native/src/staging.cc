#include "staging.h"

namespace hvd {

Staging::~Staging() {
  for (auto &blocks : kept_)
    for (char *block : blocks) arena_->free(block);
  arena_->linger(std::move(left_behind_));
}

uint64_t Staging::class_of(uint64_t bytes) {
  uint64_t size_class = kSmallestClass;
  while ((1ull << size_class) < bytes) ++size_class;
  return size_class;
}

char *Staging::alloc(uint64_t bytes) {
  uint64_t size_class = class_of(bytes);
  if (size_class > kLargestClass) return static_cast<char *>(arena_->alloc(bytes));
  auto &blocks = kept_[size_class];
  if (blocks.empty()) return static_cast<char *>(arena_->alloc(1ull << size_class));
  char *block = blocks.back();
  blocks.pop_back();
  kept_bytes_ -= 1ull << size_class;
  return block;
}

void Staging::free(char *block, uint64_t bytes) {
  uint64_t size_class = class_of(bytes);
  bool keep = size_class <= kLargestClass && kept_bytes_ + (1ull << size_class) <= kMaxKept;
  if (!keep) {
    arena_->free(block);
    return;
  }
  kept_[size_class].push_back(block);
  kept_bytes_ += 1ull << size_class;
}

}  // namespace hvd
