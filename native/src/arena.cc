#include "arena.h"

#include <algorithm>
#include <sys/mman.h>

#include "guard.h"

namespace {

constexpr uint64_t kAlign = 256, kPage = 4096;

uint64_t page_floor(uint64_t at) { return at / kPage * kPage; }
uint64_t page_ceil(uint64_t at) { return (at + kPage - 1) / kPage * kPage; }

}  // namespace

hvd_arena::hvd_arena(std::shared_ptr<hvd::Mapping> memory)
    : mapping(std::move(memory)), ranges_(0, mapping->bytes() / kAlign * kAlign, kAlign) {}

void *hvd_arena::alloc(uint64_t bytes) {
  std::lock_guard lock(mutex_);
  uint64_t offset = ranges_.alloc(bytes);
  if (offset == hvd::RangeAllocator::kNone) return nullptr;
  touched_.add(page_floor(offset), page_ceil(offset + bytes));
  return mapping->base() + offset;
}

bool hvd_arena::free(void *pointer) {
  std::lock_guard lock(mutex_);
  return mapping->contains(pointer, 0) && ranges_.free(mapping->offset_of(pointer));
}

void hvd_arena::linger(std::vector<void *> blocks) {
  std::lock_guard lock(mutex_);
  lingering_.insert(lingering_.end(), blocks.begin(), blocks.end());
}

void hvd_arena::free_lingering() {
  std::lock_guard lock(mutex_);
  for (void *block : lingering_) ranges_.free(mapping->offset_of(block));
  lingering_.clear();
}

uint64_t hvd_arena::free_touched_bytes() const {
  uint64_t total = 0;
  for (auto [offset, bytes] : ranges_.free_ranges())
    total += touched_.bytes_within(page_ceil(offset), page_floor(offset + bytes));
  return total;
}

hvd_arena_info hvd_arena::stat() {
  std::lock_guard lock(mutex_);
  return {ranges_.used_bytes(), free_touched_bytes(), mapping->resident_bytes()};
}

bool hvd_arena::trim(uint64_t keep_bytes) {
  std::lock_guard lock(mutex_);
  uint64_t left = free_touched_bytes();
  const auto &free = ranges_.free_ranges();
  for (auto range = free.rbegin(); range != free.rend() && left > keep_bytes; ++range) {
    uint64_t begin = page_ceil(range->first), end = page_floor(range->first + range->second);
    uint64_t touched = begin < end ? touched_.bytes_within(begin, end) : 0;
    if (touched == 0) continue;
    if (!mapping->punch(begin, end - begin)) return false;
    touched_.remove(begin, end);
    left -= touched;
  }
  return true;
}

hvd_status hvd_arena_create(uint64_t bytes, hvd_arena **out) {
  if (out == nullptr || bytes == 0 || bytes > 1ull << 46) return HVD_E_INVALID;
  return hvd::guarded([&] {
    auto mapping = hvd::Mapping::create("hvd-arena", (bytes + kPage - 1) / kPage * kPage);
    if (mapping == nullptr) return HVD_E_MEMORY;
    mapping->advise_all(MADV_DONTDUMP);
    *out = new hvd_arena(std::move(mapping));
    return HVD_OK;
  });
}

int hvd_arena_fd(const hvd_arena *arena) { return arena == nullptr ? -1 : arena->mapping->fd(); }

void *hvd_arena_base(const hvd_arena *arena) { return arena == nullptr ? nullptr : arena->mapping->base(); }

void *hvd_arena_alloc(hvd_arena *arena, uint64_t bytes) {
  void *block = nullptr;
  if (arena != nullptr) hvd::guarded([&] { return (block = arena->alloc(bytes)) ? HVD_OK : HVD_E_MEMORY; });
  return block;
}

hvd_status hvd_arena_free(hvd_arena *arena, void *pointer) {
  if (arena == nullptr) return HVD_E_INVALID;
  return hvd::guarded([&] { return arena->free(pointer) ? HVD_OK : HVD_E_INVALID; });
}

hvd_status hvd_arena_stat(hvd_arena *arena, hvd_arena_info *out) {
  if (arena == nullptr || out == nullptr) return HVD_E_INVALID;
  return hvd::guarded([&] { return *out = arena->stat(), HVD_OK; });
}

hvd_status hvd_arena_trim(hvd_arena *arena, uint64_t keep_bytes) {
  if (arena == nullptr) return HVD_E_INVALID;
  return hvd::guarded([&] { return arena->trim(keep_bytes) ? HVD_OK : HVD_E_MEMORY; });
}

void hvd_arena_close(hvd_arena *arena) { delete arena; }
