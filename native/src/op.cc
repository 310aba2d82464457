#include "op.h"

namespace hvd {
namespace {

constexpr int kIndexBits = 24;
constexpr uint64_t kIndexMask = (1ull << kIndexBits) - 1;
constexpr uint64_t kGenerationMask = (1ull << (63 - kIndexBits)) - 1;

}  // namespace

Op *OpTable::create() {
  if (free_.empty()) {
    if (ops_.size() > kIndexMask) return nullptr;
    ops_.push_back(std::make_unique<Op>());
    ops_.back()->index = static_cast<uint32_t>(ops_.size() - 1);
    free_.reserve(ops_.size());
    free_.push_back(ops_.back()->index);
  }
  uint32_t index = free_.back();
  Op *op = ops_[index].get();
  free_.pop_back();
  uint64_t generation = (op->generation + 1) & kGenerationMask;
  Segments segments = std::move(op->segments);  // keeps its memory
  segments.clear();
  *op = Op{};
  op->segments = std::move(segments);
  op->index = index;
  op->generation = generation == 0 ? 1 : generation;
  return op;
}

Op *OpTable::find(hvd_op handle) const {
  if (handle <= 0) return nullptr;
  uint64_t index = static_cast<uint64_t>(handle) & kIndexMask, generation = static_cast<uint64_t>(handle) >> kIndexBits;
  if (index >= ops_.size()) return nullptr;
  Op *op = ops_[index].get();
  return op->generation == generation && op->state != OpState::kGone ? op : nullptr;
}

hvd_op OpTable::handle_of(const Op &op) { return static_cast<hvd_op>(op.generation << kIndexBits | op.index); }

void OpTable::destroy(Op *op) {
  op->state = OpState::kGone;
  free_.push_back(op->index);
}

std::vector<Op *> OpTable::all() const {
  std::vector<Op *> found;
  for (const auto &op : ops_)
    if (op->state != OpState::kGone) found.push_back(op.get());
  return found;
}

}  // namespace hvd
