// Reading what the members of a complete pull round published.  Peers' fields are checked against their arenas.
#include <algorithm>
#include <cstring>

#include "engine_call.h"
#include "guard.h"

using hvd::Op;
using hvd::OpState;

namespace {

bool lies_within(uint64_t offset, uint64_t bytes, uint64_t end) { return offset <= end && bytes <= end - offset; }

bool is_readable(const Op *op) { return op != nullptr && op->pull && op->state == OpState::kComplete; }

}  // namespace

// Null when no agent's arena was given and the member lives on another host.
const hvd::Mapping *hvd_engine::arena_of(const hvd::PlanView &view, uint32_t member) const {
  uint32_t local = view.members[member];
  return local < arenas_.size() ? arenas_[local].get() : nullptr;
}

bool hvd_engine::source(const Op &op, uint32_t member, uint64_t offset, uint64_t bytes, const char **at) const {
  const hvd::PlanView &view = op.plan->view;
  if (member >= view.n_members) return false;
  const hvd::EntryMember &fields = view.entry_member(op.round, member);
  const hvd::Mapping *arena = arena_of(view, member);
  if (arena == nullptr) return false;
  uint64_t data = fields.data_offset.load(std::memory_order_relaxed), length = fields.data_bytes.load(std::memory_order_relaxed);
  if (!lies_within(data, length, arena->bytes()) || !lies_within(offset, bytes, length)) return false;
  *at = arena->base() + data + offset;
  return true;
}

hvd_status hvd_engine::meta(hvd_op handle, uint32_t member, int64_t *meta, uint32_t capacity, uint32_t *n,
                            uint64_t *data_bytes) {
  Call call(this, handle);
  if (!is_readable(call.op) || member >= call.op->plan->view.n_members) return HVD_E_INVALID;
  const hvd::PlanView &view = call.op->plan->view;
  const hvd::EntryMember &fields = view.entry_member(call.op->round, member);
  const hvd::Mapping *arena = arena_of(view, member);
  if (arena == nullptr) return HVD_E_INVALID;
  uint64_t offset = fields.meta_offset.load(std::memory_order_relaxed);
  uint32_t count = fields.n_meta.load(std::memory_order_relaxed);
  if (offset % sizeof(int64_t) != 0 || !lies_within(offset, count * sizeof(int64_t), arena->bytes())) return HVD_E_INVALID;
  if (n != nullptr) *n = count;
  if (data_bytes != nullptr) *data_bytes = fields.data_bytes.load(std::memory_order_relaxed);
  uint32_t copied = std::min(count, capacity);
  if (copied != 0 && meta != nullptr) std::memcpy(meta, arena->base() + offset, copied * sizeof(int64_t));
  return HVD_OK;
}

hvd_status hvd_engine::pull_copy(hvd_op handle, const hvd_copy *copies, uint32_t n) {
  Call call(this, handle);
  if (!is_readable(call.op)) return HVD_E_INVALID;
  call.lock.unlock();
  for (uint32_t i = 0; i < n; ++i) {
    const char *from = nullptr;
    const hvd_copy &copy = copies[i];
    if (!source(*call.op, copy.member, copy.source_offset, copy.bytes, &from)) return HVD_E_INVALID;
    if (copy.bytes != 0 && copy.out == nullptr) return HVD_E_INVALID;
    if (copy.bytes != 0) std::memcpy(copy.out, from, copy.bytes);
  }
  return HVD_OK;
}

hvd_status hvd_engine::pull_reduce(hvd_op handle, uint64_t source_offset, void *out, uint64_t bytes) {
  Call call(this, handle);
  if (!is_readable(call.op) || (out == nullptr && bytes != 0)) return HVD_E_INVALID;
  const hvd::PlanView &view = call.op->plan->view;
  auto dtype = static_cast<hvd_dtype>(view.dtype);
  uint32_t element = hvd_dtype_bytes(dtype);
  if (element == 0 || bytes % element != 0 || source_offset % element != 0) return HVD_E_INVALID;
  std::vector<const void *> in(view.n_members);
  std::vector<void *> outs(view.n_members, nullptr);
  outs[0] = out;
  for (uint32_t m = 0; m < view.n_members; ++m) {
    const char *from = nullptr;
    const hvd::EntryMember &fields = view.entry_member(call.op->round, m);
    // Members publish equally much here, so one with nothing has joined: it is left out.
    if (bytes != 0 && fields.data_bytes.load(std::memory_order_relaxed) == 0) continue;
    if (!source(*call.op, m, source_offset, bytes, &from)) return HVD_E_INVALID;
    if (reinterpret_cast<uintptr_t>(from) % element != 0) return HVD_E_INVALID;
    in[m] = from;
  }
  call.lock.unlock();
  return bytes == 0 ? HVD_OK
                    : hvd_reduce(dtype, static_cast<hvd_reduce_op>(view.op), view.prescale, view.postscale, in.data(),
                                 outs.data(), view.n_members, bytes / element);
}

hvd_status hvd_engine::done(hvd_op handle) {
  Call call(this, handle);
  if (!is_readable(call.op)) return HVD_E_INVALID;
  release(call.op);
  return HVD_OK;
}
