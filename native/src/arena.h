// A rank's shared memory for tensor data.  All bookkeeping is in this process; nobody else allocates here.
#pragma once
#include <mutex>
#include <vector>

#include "hvd.h"
#include "range_allocator.h"
#include "shm.h"

struct hvd_arena {
  explicit hvd_arena(std::shared_ptr<hvd::Mapping> memory);
  void *alloc(uint64_t bytes);
  bool free(void *pointer);
  // Blocks that a peer may still read when their engine closes; given back when the next engine opens.
  void linger(std::vector<void *> blocks);
  void free_lingering();
  hvd_arena_info stat();
  bool trim(uint64_t keep_bytes);

  const std::shared_ptr<hvd::Mapping> mapping;

 private:
  uint64_t free_touched_bytes() const;

  std::mutex mutex_;
  hvd::RangeAllocator ranges_;
  hvd::TouchedRanges touched_;
  std::vector<void *> lingering_;
};
