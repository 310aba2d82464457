// Blocks of the own arena that ops stage their data in.  Small blocks are kept for the next op: their pages are touched
// and their lines are in cache.  Not locked: the engine's lock covers it.
#pragma once
#include <vector>

#include "arena.h"

namespace hvd {

class Staging {
 public:
  explicit Staging(hvd_arena *arena) : arena_(arena) {}
  ~Staging();
  Staging(const Staging &) = delete;
  Staging &operator=(const Staging &) = delete;
  char *alloc(uint64_t bytes);
  void free(char *block, uint64_t bytes);
  // Peers may read these until the next engine opens on this arena.
  void leave_behind(char *block) { left_behind_.push_back(block); }

 private:
  static constexpr uint64_t kSmallestClass = 8, kLargestClass = 20;  // 256 bytes to 1 MiB, powers of two
  static constexpr uint64_t kMaxKept = 8 << 20;
  static uint64_t class_of(uint64_t bytes);
  char *take_new(uint64_t bytes);
  void give_back();

  hvd_arena *arena_;
  uint64_t kept_bytes_ = 0;
  std::vector<char *> kept_[kLargestClass + 1];
  std::vector<void *> left_behind_;
};

}  // namespace hvd
