// Where plan blocks lie on the board.  Kept in the agent's process only: a rank that scribbles on the board cannot mislead it.
#pragma once
#include <cstdint>
#include <unordered_map>
#include <vector>

namespace hvd {

class BlockAllocator {
 public:
  BlockAllocator(uint64_t begin, uint64_t end) : next_(begin), end_(end) {}
  static uint64_t size_class(uint64_t bytes);
  // Offset of a block of size_class(bytes), or 0 when the board is full.  *reused: it held another block before.
  uint64_t alloc(uint64_t bytes, bool *reused);
  void free(uint64_t offset, uint64_t bytes);

 private:
  uint64_t next_, end_;
  std::unordered_map<uint64_t, std::vector<uint64_t>> free_;  // size class -> offsets
};

}  // namespace hvd
