#include "plan.h"

#include <algorithm>
#include <new>

namespace hvd {
namespace {

constexpr uint64_t kSmallestChunk = 32 << 10;
constexpr uint64_t kLargestChunk = 128 << 10;
constexpr uint64_t kSmallestRemoteChunk = 128 << 10;
// Between hosts a chunk costs frames, credits and looks at sockets; what large ones cost is the way of the last one around the ring.
constexpr uint64_t kLargestRemoteChunk = 1 << 20;
// A window on its way between hosts: small enough for a core's cache, and slots enough that filling, travelling and emptying overlap.
constexpr uint64_t kTravellingWindow = 4 << 20;
constexpr uint64_t kFewestSlots = 4, kMostSlots = 8;
constexpr uint64_t kLargestWhole = 16 << 20;  // of all members here; what is less is copied at once, without turns
constexpr uint64_t kMaxPayload = 1ull << 40;

uint64_t align64(uint64_t bytes) { return (bytes + 63) / 64 * 64; }
uint64_t arrivals_offset(uint32_t n) { return align64(sizeof(PlanHeader) + n * sizeof(uint32_t)); }
uint64_t entries_offset(uint32_t n) { return align64(arrivals_offset(n) + n * sizeof(uint64_t)); }

uint64_t at_most_max_chunks(uint64_t payload_bytes, uint64_t chunk) {
  return std::max(chunk, (payload_bytes / kMaxChunks + 4096) / 4096 * 4096);
}

void cut_in_chunks(PlanView *plan) {
  bool whole = plan->op == HVD_ADASUM;
  plan->chunk_bytes = plan->is_remote() ? remote_chunk_bytes_of(plan->bytes) : chunk_bytes_of(plan->bytes);
  if (whole) plan->chunk_bytes = plan->bytes;
  bool has_chunks = !plan->is_pull() && plan->bytes != 0;
  plan->n_chunks = has_chunks ? static_cast<uint32_t>((plan->bytes + plan->chunk_bytes - 1) / plan->chunk_bytes) : 0;
  bool is_lone = plan->is_remote() && plan->n_members == 1 && plan->prescale == 1;
  plan->n_claims = is_lone ? 0 : plan->n_chunks;
}

uint64_t stride_of(const PlanView &plan) {
  uint32_t n_ready = plan.ends_in_net() ? plan.n_chunks : 0;
  return sizeof(Entry) + plan.n_members * sizeof(EntryMember) + align64(n_ready * sizeof(uint64_t));
}

void find_parts(const BoardView &board, PlanView *plan) {
  char *block = board.mapping->base() + plan->offset;
  plan->header = reinterpret_cast<PlanHeader *>(block);
  plan->arrivals = reinterpret_cast<std::atomic<uint64_t> *>(block + arrivals_offset(plan->n_members));
  plan->entries = block + entries_offset(plan->n_members);
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
  spec.flags = header.flags;
  return spec;
}

PlanView view_of(const hvd_plan_spec &spec, uint64_t offset, uint32_t local_size) {
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
  plan.flags = spec.flags;
  plan.members.assign(spec.members, spec.members + spec.n_members);
  for (uint32_t local : plan.members) {
    plan.is_here.push_back(local < local_size);
    if (local < local_size) plan.locals.push_back(local);
  }
  cut_in_chunks(&plan);
  plan.entry_stride = stride_of(plan);
  plan.block_bytes = block_bytes(spec);
  return plan;
}

bool may_have_remote_members(const hvd_plan_spec &spec) {
  return spec.kind == HVD_PULL && (spec.flags & HVD_PLAN_REMOTE) != 0;
}

bool members_are_valid(const hvd_plan_spec &spec, uint32_t local_size) {
  uint64_t seen[kMaxLocalRanks / 64] = {};
  uint32_t n_local = 0;
  for (uint32_t i = 0; i < spec.n_members; ++i) {
    uint32_t local = spec.members[i];
    if (local == local_size && may_have_remote_members(spec)) continue;
    if (local >= local_size) return false;
    uint64_t bit = 1ull << (local % 64);
    if (seen[local / 64] & bit) return false;
    seen[local / 64] |= bit;
    ++n_local;
  }
  return n_local != 0;
}

// What must hold before the size of the block can be computed.
bool sizes_are_valid(const hvd_plan_spec &spec, uint32_t local_size) {
  if (spec.kind > HVD_PULL || (spec.flags & ~HVD_PLAN_REMOTE) != 0) return false;
  if (spec.depth == 0 || spec.depth > kMaxDepth || spec.bytes > kMaxPayload) return false;
  return spec.n_members != 0 && spec.n_members <= (may_have_remote_members(spec) ? kMaxMembers : local_size);
}

bool reduction_is_valid(const hvd_plan_spec &spec) {
  uint32_t element = hvd_dtype_bytes(static_cast<hvd_dtype>(spec.dtype));
  bool op_known = spec.op >= HVD_SUM && spec.op <= HVD_PRODUCT;
  return op_known && element != 0 && spec.bytes % element == 0;
}

}  // namespace

uint64_t chunk_bytes_of(uint64_t payload_bytes) {
  uint64_t eighth = payload_bytes / 8 / 4096 * 4096;
  return at_most_max_chunks(payload_bytes, std::clamp(eighth, kSmallestChunk, kLargestChunk));
}

uint64_t remote_chunk_bytes_of(uint64_t payload_bytes) {
  uint64_t eighth = payload_bytes / 8 / 4096 * 4096;
  return at_most_max_chunks(payload_bytes, std::clamp(eighth, kSmallestRemoteChunk, kLargestRemoteChunk));
}

uint32_t chunks_of(uint64_t payload_bytes) {
  uint64_t chunk = chunk_bytes_of(payload_bytes);
  return static_cast<uint32_t>((payload_bytes + chunk - 1) / chunk);
}

uint32_t PlanView::window_slots() const {
  if (!is_remote()) return n_chunks > 1 ? kWindowSlots : 0;
  bool fits_caches = bytes < kSmallestWindowed || bytes * locals.size() < kLargestWhole;
  if (is_pull() || n_chunks < 2 || fits_caches) return 0;
  return static_cast<uint32_t>(std::min<uint64_t>(n_chunks, std::clamp(kTravellingWindow / chunk_bytes, kFewestSlots, kMostSlots)));
}

uint64_t PlanView::chunk_length(uint32_t chunk) const { return std::min(chunk_bytes, bytes - chunk * chunk_bytes); }

uint32_t PlanView::member_of(uint32_t local_index) const {
  return static_cast<uint32_t>(std::find(members.begin(), members.end(), local_index) - members.begin());
}

bool spec_is_valid(const hvd_plan_spec &spec, uint32_t local_size) {
  if (!sizes_are_valid(spec, local_size) || spec.plan_id == 0 || spec.members == nullptr) return false;
  if (!members_are_valid(spec, local_size)) return false;
  return spec.kind == HVD_PULL || spec.bytes == 0 || reduction_is_valid(spec);
}

uint64_t block_bytes(const hvd_plan_spec &spec) {
  PlanView plan;
  plan.bytes = spec.bytes;
  plan.kind = spec.kind;
  plan.op = spec.op;
  plan.flags = spec.flags;
  plan.n_members = spec.n_members;
  cut_in_chunks(&plan);
  return entries_offset(spec.n_members) + spec.depth * stride_of(plan);
}

PlanView format_plan(const BoardView &board, uint64_t offset, const hvd_plan_spec &spec) {
  PlanView plan = view_of(spec, offset, board.local_size);
  find_parts(board, &plan);
  auto *header = new (plan.header) PlanHeader{};
  header->kind = spec.kind;
  header->dtype = spec.dtype;
  header->op = spec.op;
  header->depth = spec.depth;
  header->n_members = spec.n_members;
  header->flags = spec.flags;
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
  hvd_plan_spec spec = spec_from(*header, nullptr);
  if (!sizes_are_valid(spec, board.local_size) || block_bytes(spec) > end - offset) return false;
  // Copied before it is checked: whoever scribbles on the board may do so at any time.
  const auto *shared = reinterpret_cast<uint32_t *>(header + 1);
  std::vector<uint32_t> members(shared, shared + spec.n_members);
  spec.members = members.data();
  if (!spec_is_valid(spec, board.local_size)) return false;
  *out = view_of(spec, offset, board.local_size);
  find_parts(board, out);
  return true;
}

}  // namespace hvd
