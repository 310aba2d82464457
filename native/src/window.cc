#include "window.h"

namespace hvd {
namespace {

constexpr auto kSeqCst = std::memory_order_seq_cst;

bool is_carried(const PlanView &plan, uint64_t round, uint32_t chunk) {
  uint64_t word = plan.ready(round, chunk).load(kSeqCst);  // acquires the result; pairs with publish_carried
  return word >> 8 == round + 1 && (word & kCarried) != 0;
}

}  // namespace

bool is_windowed(const EntryMember &member) { return (member.flags.load(std::memory_order_relaxed) & kWindowMask) != 0; }

bool has_window(const PlanView &plan, uint64_t round) {
  for (uint32_t m = 0; m < plan.n_members; ++m)
    if (is_windowed(plan.entry_member(round, m))) return true;
  return false;
}

bool is_filled(const PlanView &plan, uint64_t round, uint32_t chunk) {
  for (uint32_t m = 0; m < plan.n_members; ++m) {
    const EntryMember &member = plan.entry_member(round, m);
    if (!is_windowed(member)) continue;
    if (member.filled.load(kSeqCst) <= chunk) return false;  // acquires the chunk; pairs with publish_filled
  }
  return true;
}

void publish_filled(const RoundSite &site, uint64_t round, uint32_t member, uint32_t count) {
  site.plan.entry_member(round, member).filled.store(count, kSeqCst);  // releases the chunk; pairs with is_filled
  if (site.plan.n_claims == 0) return signal_net(site);  // there is nothing for a helper
  ring_members(site);
}

void publish_emptied(const RoundSite &site, uint64_t round, uint32_t member, uint32_t count) {
  if (!site.plan.ends_in_net()) return;  // results are in the own window
  site.plan.entry_member(round, member).emptied.store(count, kSeqCst);  // pairs with is_taken
  uint32_t source = source_of(site.plan, round, member);
  if (source != member) ring(site.board.slots[site.plan.members[source]].bell);
}

bool chunk_is_done(const PlanView &plan, uint64_t round, uint32_t chunk) {
  if (plan.ends_in_net()) return is_carried(plan, round, chunk);
  uint64_t stamp = plan.entry(round).stamps[chunk % kStamps].load(kSeqCst);  // pairs with finish_chunk
  return stamp == claim_word(round, chunk + 1);
}

void publish_carried(const RoundSite &site, uint64_t round, uint32_t chunk, uint64_t negated_status) {
  site.plan.ready(round, chunk).store((round + 1) << 8 | kCarried | negated_status, kSeqCst);  // pairs with is_carried
  ring_locals(site);
}

char *find_chunk(const PlanView &plan, const Mapping *arena, const EntryMember &member, uint32_t chunk) {
  uint32_t window = member.flags.load(std::memory_order_relaxed) & kWindowMask;
  uint64_t place = window == 0 ? chunk : chunk % window;
  return find_data(plan, arena, member, place * plan.chunk_bytes, plan.chunk_length(chunk));
}

uint32_t source_of(const PlanView &plan, uint64_t round, uint32_t member) {
  if (!plan.ends_in_net()) return member;
  uint32_t leader = leader_of(plan, round);
  return leader < plan.n_members && is_windowed(plan.entry_member(round, leader)) ? leader : member;
}

bool is_taken(const RoundSite &site, uint64_t round, uint32_t member, uint32_t chunk) {
  const PlanView &plan = site.plan;
  for (uint32_t m = 0; plan.ends_in_net() && m < plan.n_members; ++m) {
    const EntryMember &reader = plan.entry_member(round, m);
    if (m == member || !is_windowed(reader) || reader.emptied.load(kSeqCst) > chunk) continue;
    if (source_of(plan, round, m) == member && site.board.slots[plan.members[m]].dead.load(kSeqCst) == 0) return false;
  }
  return true;
}

}  // namespace hvd
