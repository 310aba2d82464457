// Making ops and staging their data.
#include <algorithm>
#include <cstring>

#include "engine_call.h"

using hvd::Op;
using hvd::OpState;
using hvd::Staged;

namespace {

constexpr uint64_t kSegmentAlign = 64;

// The meta integers come first in a pull op's block, then the spans, then the data.
uint64_t aligned(uint64_t bytes) { return (bytes + kSegmentAlign - 1) / kSegmentAlign * kSegmentAlign; }

}  // namespace

Op *hvd_engine::new_op(uint64_t tag) {
  Op *op = closing_ ? nullptr : ops_.create();
  if (op == nullptr) return nullptr;
  op->tag = tag;
  slot().submits.fetch_add(1, std::memory_order_relaxed);
  return op;
}

bool hvd_engine::stage_alloc(Staged *staged, uint64_t bytes) {
  staged->block = staging_.alloc(bytes);
  staged->block_bytes = bytes;
  staged->data = staged->block;
  return staged->block != nullptr;
}

void hvd_engine::stage_free(Staged *staged) {
  if (staged->block != nullptr) staging_.free(staged->block, staged->block_bytes);
  *staged = Staged{};
}

// The payload where all of it lies at once; gather() must follow outside of the lock.
bool hvd_engine::stage_whole(Op *op) {
  op->staged.window = 0;
  return op->staged.bytes == 0 || stage_alloc(&op->staged, op->staged.bytes);
}

bool hvd_engine::stage_window(Op *op, uint32_t slots, uint64_t slot_bytes) {
  op->staged.window = slots;
  return stage_alloc(&op->staged, slots * slot_bytes);
}

bool hvd_engine::stage_reduce(Op *op) {
  op->staged.bytes = op->segments.bytes();
  void *in_place = op->segments.in_place();
  if (in_place != nullptr && arena_->mapping->contains(in_place, op->staged.bytes)) {
    op->staged.data = static_cast<char *>(in_place);
    return true;
  }
  uint32_t chunks = hvd::chunks_of(op->staged.bytes);
  if (!op->blocking || chunks <= hvd::kWindowSlots) return stage_whole(op);  // what fits the window needs no turns
  return stage_window(op, hvd::kWindowSlots, hvd::chunk_bytes_of(op->staged.bytes));
}

hvd_status hvd_engine::submit_reduce(Call &call, const hvd_segment *segments, uint32_t n, uint32_t flags, uint64_t tag) {
  Op *op = new_op(tag);
  if (op == nullptr) return closing_ ? HVD_E_CANCELLED : HVD_E_MEMORY;
  call.adopt(op);
  op->blocking = (flags & HVD_OP_BLOCKING) != 0;
  if (!op->segments.assign(segments, n, kSegmentAlign, true)) return HVD_E_INVALID;
  if (!stage_reduce(op)) return HVD_E_MEMORY;
  if (op->staged.block == nullptr || op->staged.window != 0) return HVD_OK;
  call.lock.unlock();
  op->segments.gather(0, op->staged.bytes, op->staged.data);
  call.lock.lock();
  return HVD_OK;
}

hvd_status hvd_engine::submit_pull(Call &call, const Publication &what, uint64_t tag) {
  Op *op = new_op(tag);
  if (op == nullptr) return closing_ ? HVD_E_CANCELLED : HVD_E_MEMORY;
  call.adopt(op);
  op->pull = true;
  if (what.n_meta > hvd::kMaxMeta || (what.n_meta != 0 && what.meta == nullptr)) return HVD_E_INVALID;
  if (what.n_reads > hvd::kMaxMembers || (what.n_reads != 0 && what.reads == nullptr)) return HVD_E_INVALID;
  if (!op->segments.assign(what.segments, what.n, 1, false)) return HVD_E_INVALID;
  Staged &staged = op->staged;
  uint64_t meta_bytes = what.n_meta * sizeof(int64_t), reads_bytes = what.n_reads * sizeof(hvd_span);
  uint64_t before = aligned(meta_bytes) + aligned(reads_bytes);
  if (!stage_alloc(&staged, before + op->segments.bytes())) return HVD_E_MEMORY;
  char *reads_at = staged.block + aligned(meta_bytes);
  staged.bytes = op->segments.bytes();
  staged.data = staged.block + before;
  staged.meta = reinterpret_cast<int64_t *>(staged.block);
  staged.n_meta = what.n_meta;
  staged.reads = reinterpret_cast<hvd_span *>(reads_at);
  staged.n_reads = what.n_reads;
  call.lock.unlock();
  if (what.n_meta != 0) std::memcpy(staged.block, what.meta, meta_bytes);
  if (what.n_reads != 0) std::memcpy(reads_at, what.reads, reads_bytes);
  op->segments.gather(0, staged.bytes, staged.data);
  call.lock.lock();
  return HVD_OK;
}

hvd_status hvd_engine::reduce(const hvd_segment *segments, uint32_t n, uint32_t flags, uint64_t tag, hvd_op *out) {
  Call call(this);
  hvd_status status = submit_reduce(call, segments, n, flags, tag);
  return finish_submit(call, status, out);
}

hvd_status hvd_engine::pull(const Publication &what, uint64_t tag, hvd_op *out) {
  Call call(this);
  hvd_status status = submit_pull(call, what, tag);
  return finish_submit(call, status, out);
}

hvd_status hvd_engine::reduce_bound(uint64_t offset, const hvd_segment &segment, uint32_t flags, uint64_t tag, hvd_op *out) {
  Call call(this);
  hvd_status status = submit_reduce(call, &segment, segment.bytes == 0 ? 0 : 1, flags, tag);
  if (status == HVD_OK) status = bind_op(call.lock, call.op, offset);
  return finish_submit(call, status, out);
}

// An op whose submit failed never had a handle: it goes at once.
hvd_status hvd_engine::finish_submit(Call &call, hvd_status status, hvd_op *out) {
  *out = status >= 0 ? hvd::OpTable::handle_of(*call.op) : 0;
  if (status < 0 && call.op != nullptr) release(call.op);
  drive_others(call.lock, call.op);  // the op's own thread waits next, or comes back
  return status;
}
