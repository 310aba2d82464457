// The C face of the engine: checks pointers, catches exceptions, forwards.
#include <sys/mman.h>

#include "engine.h"
#include "guard.h"

namespace {

using hvd::guarded;

bool map_arenas(const int *fds, uint32_t n, uint32_t own_index, const hvd_arena &own, hvd::ArenaMappings *out) {
  for (uint32_t i = 0; i < n; ++i) {
    out->push_back(i == own_index ? own.mapping : hvd::Mapping::open(fds[i], i + 1));
    if (out->back() == nullptr) return false;
    if (i != own_index) out->back()->advise_all(MADV_DONTFORK), out->back()->advise_all(MADV_DONTDUMP);
  }
  return true;
}

constexpr uint64_t kNsPerMs = 1'000'000;

}  // namespace

uint32_t hvd_abi_version(void) { return HVD_ABI_VERSION; }

hvd_status hvd_engine_open(int board_fd, hvd_arena *own, uint32_t local_index, const int *arena_fds, uint32_t n,
                           hvd_engine **out) {
  if (own == nullptr || arena_fds == nullptr || out == nullptr) return HVD_E_INVALID;
  return guarded([&] {
    auto mapping = hvd::Mapping::open(board_fd, 0);
    if (mapping == nullptr) return HVD_E_MEMORY;
    mapping->advise_all(MADV_DONTFORK);
    hvd::BoardView board;
    if (!hvd::BoardView::load(std::move(mapping), &board)) return HVD_E_INVALID;
    bool with_agent = n == board.local_size + 1;
    if ((n != board.local_size && !with_agent) || local_index >= board.local_size) return HVD_E_INVALID;
    hvd::ArenaMappings arenas;
    if (!map_arenas(arena_fds, n, local_index, *own, &arenas)) return HVD_E_MEMORY;
    *out = new hvd_engine(std::move(board), own, local_index, std::move(arenas));
    return HVD_OK;
  });
}

void hvd_engine_close(hvd_engine *engine) { delete engine; }

hvd_status hvd_engine_agent_dead(hvd_engine *engine) {
  if (engine == nullptr) return HVD_E_INVALID;
  engine->board.agent_dead();
  return HVD_OK;
}

uint32_t hvd_engine_reason(hvd_engine *engine, char *out, uint32_t capacity) {
  return engine == nullptr ? 0 : engine->reason(out, capacity);
}

hvd_status hvd_engine_state(hvd_engine *engine) { return engine == nullptr ? HVD_E_INVALID : engine->board.state(); }

hvd_status hvd_op_reduce(hvd_engine *engine, const hvd_segment *segments, uint32_t n, uint32_t flags, uint64_t tag,
                         hvd_op *out) {
  if (engine == nullptr || out == nullptr) return HVD_E_INVALID;
  return guarded([&] { return engine->reduce(segments, n, flags, tag, out); });
}

hvd_status hvd_op_pull(hvd_engine *engine, const hvd_segment *segments, uint32_t n, const int64_t *meta, uint32_t n_meta,
                       const hvd_span *reads, uint32_t n_reads, uint64_t tag, hvd_op *out) {
  if (engine == nullptr || out == nullptr) return HVD_E_INVALID;
  return guarded([&] { return engine->pull({segments, n, meta, n_meta, reads, n_reads}, tag, out); });
}

hvd_status hvd_op_bind(hvd_engine *engine, hvd_op op, uint64_t offset, uint64_t *round) {
  if (engine == nullptr) return HVD_E_INVALID;
  return guarded([&] { return engine->bind(op, offset, round); });
}

hvd_status hvd_op_unbind(hvd_engine *engine, hvd_op op) {
  if (engine == nullptr) return HVD_E_INVALID;
  return guarded([&] { return engine->unbind(op); });
}

hvd_status hvd_op_reduce_bound(hvd_engine *engine, uint64_t offset, const void *in, void *out_buffer, uint64_t bytes,
                               uint32_t flags, uint64_t tag, hvd_op *out) {
  if (engine == nullptr || out == nullptr) return HVD_E_INVALID;
  return guarded([&] { return engine->reduce_bound(offset, {in, out_buffer, bytes}, flags, tag, out); });
}

hvd_status hvd_op_wait(hvd_engine *engine, hvd_op op, uint32_t timeout_ms) {
  if (engine == nullptr) return HVD_E_INVALID;
  return guarded([&] { return engine->wait(op, timeout_ms * kNsPerMs); });
}

hvd_status hvd_op_tag(hvd_engine *engine, hvd_op op, uint64_t tag) {
  if (engine == nullptr) return HVD_E_INVALID;
  return guarded([&] { return engine->tag(op, tag); });
}

hvd_status hvd_op_poll(hvd_engine *engine, hvd_op op) {
  if (engine == nullptr) return HVD_E_INVALID;
  return guarded([&] { return engine->poll(op); });
}

hvd_status hvd_op_fail(hvd_engine *engine, hvd_op op) {
  if (engine == nullptr) return HVD_E_INVALID;
  return guarded([&] { return engine->fail(op); });
}

hvd_status hvd_op_meta(hvd_engine *engine, hvd_op op, uint32_t member, int64_t *meta, uint32_t capacity, uint32_t *n,
                       uint64_t *data_bytes) {
  if (engine == nullptr) return HVD_E_INVALID;
  return guarded([&] { return engine->meta(op, member, meta, capacity, n, data_bytes); });
}

hvd_status hvd_op_pull_copy(hvd_engine *engine, hvd_op op, const hvd_copy *copies, uint32_t n) {
  if (engine == nullptr || (copies == nullptr && n != 0)) return HVD_E_INVALID;
  return guarded([&] { return engine->pull_copy(op, copies, n); });
}

hvd_status hvd_op_pull_reduce(hvd_engine *engine, hvd_op op, uint64_t source_offset, void *out, uint64_t bytes) {
  if (engine == nullptr) return HVD_E_INVALID;
  return guarded([&] { return engine->pull_reduce(op, source_offset, out, bytes); });
}

hvd_status hvd_op_done(hvd_engine *engine, hvd_op op) {
  if (engine == nullptr) return HVD_E_INVALID;
  return guarded([&] { return engine->done(op); });
}
