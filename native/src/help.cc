// Claiming and reducing chunks: the part of a round that anyone may do.
#include "round_times.h"
#include "window.h"

namespace hvd {
namespace {

constexpr auto kSeqCst = std::memory_order_seq_cst;

struct ChunkPointers {
  const void *in[kMaxLocalRanks];
  void *out[kMaxLocalRanks];
};

// A chunk that may be claimed, and what to add to the claim word for it.
struct Choice {
  uint32_t chunk, step;
};

// False when there is nothing to claim now in this round, or it is not this round any more.
bool choose(const PlanView &plan, uint64_t round, uint64_t word, End end, Choice *out) {
  uint32_t low = claim_low(word), high = claim_high(word);
  if (claim_round(word) != round || claim_closed(word) || low + high >= plan.n_claims) return false;
  bool windowed = has_window(plan, round);
  *out = windowed || end == End::kLow ? Choice{low, kOneLow} : Choice{plan.n_chunks - 1 - high, kOneHigh};
  return !windowed || is_filled(plan, round, low);
}

bool find_chunks(const RoundSite &site, const ArenaMappings &arenas, uint64_t round, uint32_t chunk, ChunkPointers *at) {
  const PlanView &plan = site.plan;
  for (uint32_t m = 0; m < plan.n_members; ++m) {
    const EntryMember &member = plan.entry_member(round, m);
    bool zeros = (member.flags.load(std::memory_order_relaxed) & kZeros) != 0;
    at->out[m] = zeros ? nullptr : find_chunk(plan, arenas[plan.members[m]].get(), member, chunk);
    if (at->out[m] == nullptr && !zeros) return false;
    at->in[m] = at->out[m];
  }
  return true;
}

bool is_absent(const EntryMember &member) { return (member.flags.load(std::memory_order_relaxed) & kAbsent) != 0; }

// Closes the gaps of members that have no part in the round; how many are left.
uint32_t leave_out_absent(const PlanView &plan, uint64_t round, ChunkPointers *at) {
  uint32_t n = 0;
  for (uint32_t m = 0; m < plan.n_members; ++m) {
    if (is_absent(plan.entry_member(round, m))) continue;
    at->in[n] = at->in[m];
    at->out[n++] = at->out[m];
  }
  return n;
}

// Between hosts the sum is not final: one member's buffer takes it, and the post-scale comes at the end.
hvd_status reduce_into_leader(const PlanView &plan, uint64_t round, ChunkPointers *at, uint32_t chunk) {
  uint32_t leader = leader_of(plan, round);
  if (leader == plan.n_members) return HVD_OK;
  for (uint32_t m = 0; m < plan.n_members; ++m)
    if (m != leader) at->out[m] = nullptr;
  uint32_t n = leave_out_absent(plan, round, at);
  uint64_t count = plan.chunk_length(chunk) / hvd_dtype_bytes(static_cast<hvd_dtype>(plan.dtype));
  return hvd_reduce(static_cast<hvd_dtype>(plan.dtype), static_cast<hvd_reduce_op>(plan.op), plan.prescale, 1, at->in,
                    at->out, n, count);
}

hvd_status reduce_chunk(const RoundSite &site, const ArenaMappings &arenas, uint64_t round, uint32_t chunk) {
  const PlanView &plan = site.plan;
  ChunkPointers at;
  if (!find_chunks(site, arenas, round, chunk, &at)) return HVD_E_INVALID;
  if (plan.ends_in_net()) return reduce_into_leader(plan, round, &at, chunk);
  if (plan.n_members == 1 && plan.prescale == 1 && plan.postscale == 1) return HVD_OK;
  uint32_t n = leave_out_absent(plan, round, &at);
  uint64_t count = plan.chunk_length(chunk) / hvd_dtype_bytes(static_cast<hvd_dtype>(plan.dtype));
  return hvd_reduce(static_cast<hvd_dtype>(plan.dtype), static_cast<hvd_reduce_op>(plan.op), plan.prescale,
                    plan.postscale, at.in, at.out, n, count);
}

// With the last chunk; what is read here is the next round's as soon as this one is complete.
void end_round(const RoundSite &site, uint64_t round) {
  const Entry &entry = site.plan.entry(round);
  bool timed = is_timed(site.plan, round);
  uint64_t since = timed ? site.plan.entry_member(round, 0).opened_ns.load(std::memory_order_relaxed) : 0;
  complete_round(site.plan, round, entry.status.load(std::memory_order_relaxed));
  if (timed) count_time(site, BoardStage::kReduce, since, now_ns());
}

void finish_chunk(const RoundSite &site, uint64_t round, uint32_t chunk, hvd_status status) {
  Entry &entry = site.plan.entry(round);
  uint64_t negated = static_cast<uint64_t>(-static_cast<int>(status));
  if (site.plan.ends_in_net()) {
    site.plan.ready(round, chunk).store((round + 1) << 8 | negated, kSeqCst);  // releases the chunk; pairs with the net's look
    return signal_net(site);
  }
  if (status != HVD_OK) entry.status.store(negated, std::memory_order_relaxed);
  entry.stamps[chunk % kStamps].store(claim_word(round, chunk + 1), kSeqCst);  // pairs with chunk_is_done
  // Every holder releases its chunk here and the last one acquires them all.
  if (entry.done.fetch_add(1, std::memory_order_acq_rel) + 1 == site.plan.n_chunks) end_round(site, round);
  ring_members(site);
}

// Takes a chunk that `word` leaves; the slot is published before the claim, so that who closes the round sees the holder.
// The block may have been given to another plan since this thread looked the plan up, and that plan's words look the same:
// a published slot keeps the plan where it is, so a plan that is still there after publishing is the one that was meant.
bool claim(const RoundSite &site, std::atomic<uint64_t> *slot, uint64_t round, uint64_t word, uint32_t step) {
  slot->store(claim_name(site.plan.offset, round), kSeqCst);
  return site.plan.is_current() && site.plan.entry(round).claim.compare_exchange_strong(word, word + step, kSeqCst);
}

// A member that leaves a failed round may sleep until this slot is free.
void end_claim(const RoundSite &site, std::atomic<uint64_t> *slot) {
  slot->store(0, kSeqCst);
  if (site.board.state() != HVD_OK) ring_members(site);
}

}  // namespace

bool is_claimable(const PlanView &plan, uint64_t round) {
  Choice choice;
  return choose(plan, round, plan.entry(round).claim.load(kSeqCst), End::kLow, &choice);
}

bool help_round(const RoundSite &site, const ArenaMappings &arenas, ClaimSlots &slots, uint64_t round, End end) {
  uint64_t word = site.plan.entry(round).claim.load(kSeqCst);
  Choice choice;
  if (!choose(site.plan, round, word, end, &choice) || site.board.state() == HVD_E_FAILED) return false;
  std::atomic<uint64_t> *slot = slots.acquire();
  if (slot == nullptr) return false;
  bool won = claim(site, slot, round, word, choice.step);
  if (won) finish_chunk(site, round, choice.chunk, reduce_chunk(site, arenas, round, choice.chunk));
  end_claim(site, slot);
  slots.release(slot);
  return won;
}

}  // namespace hvd
