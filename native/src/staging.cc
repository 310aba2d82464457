#include "staging.h"

namespace hvd {

Staging::~Staging() {
  give_back();
  arena_->linger(std::move(left_behind_));
}

uint64_t Staging::class_of(uint64_t bytes) {
  uint64_t size_class = kSmallestClass;
  while ((1ull << size_class) < bytes) ++size_class;
  return size_class;
}

void Staging::give_back() {
  for (auto &blocks : kept_) {
    for (char *block : blocks) arena_->free(block);
    blocks.clear();
  }
  kept_bytes_ = 0;
}

// Blocks that are kept must not be what an op has no room for.
char *Staging::take_new(uint64_t bytes) {
  void *block = arena_->alloc(bytes);
  if (block == nullptr && kept_bytes_ != 0) {
    give_back();
    block = arena_->alloc(bytes);
  }
  return static_cast<char *>(block);
}

char *Staging::alloc(uint64_t bytes) {
  uint64_t size_class = class_of(bytes);
  if (size_class > kLargestClass) return take_new(bytes);
  auto &blocks = kept_[size_class];
  if (blocks.empty()) return take_new(1ull << size_class);
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
