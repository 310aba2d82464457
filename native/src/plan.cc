#include "plan.h"

#include <algorithm>
#include <new>

namespace hvd {
namespace {

constexpr uint64_t kSmallestChunk = 32 << 10;
constexpr uint64_t kLargestChunk = 128 << 10;
constexpr uint64_t kMaxPayload = 1ull << 40;

uint64_t align64(uint64_t bytes) { return (bytes + 63) / 64 * 64; }
uint64_t arrivals_offset(uint32_t n) { return align64(sizeof(PlanHeader) + n * sizeof(uint32_t)); }
uint64_t entries_offset(uint32_t n) { return align64(arrivals_offset(n) + n * sizeof(uint64_t)); }
uint64_t stride_of(uint32_t n) { return sizeof(Entry) + n * sizeof(EntryMember); }

void cut_in_chunks(PlanView *plan) {
  bool whole = plan->op == HVD_ADASUM;
  plan->chunk_bytes = whole ? plan->bytes : chunk_bytes_of(plan->bytes);
  if (plan->is_pull() || plan->bytes == 0)
    plan->n_chunks = 0;
  else
    plan->n_chunks = whole ? 1 : chunks_of(plan->bytes);
}

void find_parts(const BoardView &board, PlanView *plan) {
  char *block = board.mapping->base() + plan->offset;
  plan->header = reinterpret_cast<PlanHeader *>(block);
  plan->arrivals = reinterpret_cast<std::atomic<uint64_t> *>(block + arrivals_offset(plan->n_members));
  plan->entries = block + entries_offset(plan->n_members);
  plan->entry_stride = stride_of(plan->n_members);
}

hvd_plan_spec spec_from(const PlanHeader &header, const uint32_t *members) {
  hvd_plan_spec spec{};
  spec.plan_id = header.plan_id.load(std::memory_order_relaxed);
  spec.kind = header.kind;
  spec.dtype = header.dtype;
  spec.op = header.op;
  spec.prescale = header.prescale;
  spec.postscale = header.postscale;
  spec.bytes = header.bytes;
  spec.depth = header.depth;
  spec.n_members = header.n_members;
  spec.members = members;
  return spec;
}

PlanView view_of(const hvd_plan_spec &spec, uint64_t offset) {
  PlanView plan;
  plan.offset = offset;
  plan.plan_id = spec.plan_id;
  plan.bytes = spec.bytes;
  plan.kind = spec.kind;
  plan.dtype = spec.dtype;
  plan.op = spec.op;
  plan.depth = spec.depth;
  plan.n_members = spec.n_members;
  plan.prescale = spec.prescale;
  plan.postscale = spec.postscale;
  plan.members.assign(spec.members, spec.members + spec.n_members);
  cut_in_chunks(&plan);
  return plan;
}

bool members_are_valid(const uint32_t *members, uint32_t n, uint32_t local_size) {
  uint64_t seen[kMaxLocalRanks / 64] = {};
  for (uint32_t i = 0; i < n; ++i) {
    if (members[i] >= local_size) return false;
    uint64_t bit = 1ull << (members[i] % 64);
    if (seen[members[i] / 64] & bit) return false;
    seen[members[i] / 64] |= bit;
  }
  return true;
}

bool reduction_is_valid(const hvd_plan_spec &spec) {
  uint32_t element = hvd_dtype_bytes(static_cast<hvd_dtype>(spec.dtype));
  bool op_known = spec.op >= HVD_SUM && spec.op <= HVD_PRODUCT;
  return op_known && element != 0 && spec.bytes % element == 0;
}

}  // namespace

uint64_t chunk_bytes_of(uint64_t payload_bytes) {
  uint64_t eighth = payload_bytes / 8 / 4096 * 4096;
  uint64_t least = (payload_bytes / kMaxChunks + 4096) / 4096 * 4096;
  return std::max(std::clamp(eighth, kSmallestChunk, kLargestChunk), least);
}

uint32_t chunks_of(uint64_t payload_bytes) {
  uint64_t chunk = chunk_bytes_of(payload_bytes);
  return static_cast<uint32_t>((payload_bytes + chunk - 1) / chunk);
}

uint64_t PlanView::chunk_length(uint32_t chunk) const { return std::min(chunk_bytes, bytes - chunk * chunk_bytes); }

uint32_t PlanView::member_of(uint32_t local_index) const {
  return static_cast<uint32_t>(std::find(members.begin(), members.end(), local_index) - members.begin());
}

bool spec_is_valid(const hvd_plan_spec &spec, uint32_t local_size) {
  if (spec.kind > HVD_PULL || spec.depth == 0 || spec.depth > kMaxDepth) return false;
  if (spec.plan_id == 0 || spec.bytes > kMaxPayload) return false;
  if (spec.n_members == 0 || spec.n_members > local_size || spec.members == nullptr) return false;
  if (!members_are_valid(spec.members, spec.n_members, local_size)) return false;
  return spec.kind == HVD_PULL || spec.bytes == 0 || reduction_is_valid(spec);
}

uint64_t block_bytes(uint32_t n_members, uint32_t depth) {
  return entries_offset(n_members) + depth * stride_of(n_members);
}

PlanView format_plan(const BoardView &board, uint64_t offset, const hvd_plan_spec &spec) {
  PlanView plan = view_of(spec, offset);
  find_parts(board, &plan);
  auto *header = new (plan.header) PlanHeader{};
  header->kind = spec.kind;
  header->dtype = spec.dtype;
  header->op = spec.op;
  header->depth = spec.depth;
  header->n_members = spec.n_members;
  header->bytes = spec.bytes;
  header->prescale = spec.prescale;
  header->postscale = spec.postscale;
  header->limit.store(kNoLimit, std::memory_order_relaxed);
  std::copy(plan.members.begin(), plan.members.end(), reinterpret_cast<uint32_t *>(header + 1));
  for (uint32_t i = 0; i < spec.depth; ++i) plan.entry(i).claim.store(kNeverOpened, std::memory_order_relaxed);
  header->plan_id.store(spec.plan_id, std::memory_order_release);
  header->magic.store(kPlanMagic, std::memory_order_release);
  return plan;
}

bool load_plan(const BoardView &board, uint64_t offset, PlanView *out) {
  uint64_t end = board.mapping->bytes();
  if (offset % kBlockAlign != 0 || offset < board.header->blocks_offset || offset > end - sizeof(PlanHeader)) return false;
  auto *header = reinterpret_cast<PlanHeader *>(board.mapping->base() + offset);
  if (header->magic.load(std::memory_order_acquire) != kPlanMagic) return false;
  uint32_t members[kMaxLocalRanks];
  hvd_plan_spec spec = spec_from(*header, members);
  if (spec.n_members > board.local_size || spec.depth > kMaxDepth) return false;
  if (block_bytes(spec.n_members, spec.depth) > end - offset) return false;
  std::copy_n(reinterpret_cast<uint32_t *>(header + 1), spec.n_members, members);
  if (!spec_is_valid(spec, board.local_size)) return false;
  *out = view_of(spec, offset);
  find_parts(board, out);
  return true;
}

}  // namespace hvd
