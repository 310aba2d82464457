// Blocks of payloads, kept by the thread that used them, by powers of two.
#include "net_lane.h"

namespace hvd {
namespace {

constexpr uint32_t kSmallest = 8, kLargest = 16;  // powers of two
constexpr uint64_t kKeptBytes = 1 << 20;          // of each

uint32_t power_of(uint64_t size) {
  uint32_t power = kSmallest;
  while (power <= kLargest && (uint64_t{1} << power) < size) ++power;
  return power;
}

struct Kept {
  std::vector<std::unique_ptr<char[]>> blocks[kLargest + 1];
};
thread_local Kept kept;

}  // namespace

Bytes::Bytes(uint64_t size) : size_(size) {
  uint32_t power = power_of(size);
  if (power > kLargest) {
    at_.reset(new char[size]);
    return;
  }
  auto &blocks = kept.blocks[power];
  if (blocks.capacity() == 0) blocks.reserve(kKeptBytes >> power);  // giving back must not need memory
  if (blocks.empty()) {
    at_.reset(new char[uint64_t{1} << power]);
    return;
  }
  at_ = std::move(blocks.back());
  blocks.pop_back();
}

Bytes::~Bytes() {
  uint32_t power = power_of(size_);
  if (power > kLargest) return;
  auto &blocks = kept.blocks[power];
  if (blocks.size() < blocks.capacity()) blocks.push_back(std::move(at_));
}

}  // namespace hvd
