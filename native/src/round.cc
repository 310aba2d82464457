#include "round.h"

#include "round_times.h"

namespace hvd {
namespace {

constexpr auto kSeqCst = std::memory_order_seq_cst;

uint64_t total_after(const PlanView &plan, uint64_t round) {
  return uint64_t{plan.n_members} * (round / plan.depth + 1);
}

void write_fields(EntryMember &member, const MemberFields &fields) {
  member.data_offset.store(fields.data_offset, std::memory_order_relaxed);
  member.data_bytes.store(fields.data_bytes, std::memory_order_relaxed);
  member.meta_offset.store(fields.meta_offset, std::memory_order_relaxed);
  member.n_meta.store(fields.n_meta, std::memory_order_relaxed);
  member.flags.store(fields.flags, std::memory_order_relaxed);
  member.filled.store(0, std::memory_order_relaxed);
  member.emptied.store(0, std::memory_order_relaxed);
  member.reads_offset.store(fields.reads_offset, std::memory_order_relaxed);
  member.n_reads.store(fields.n_reads, std::memory_order_relaxed);
}

// Before the arrival, which releases it: whoever ends the round finds the time of the last one.
uint64_t note_time(const PlanView &plan, uint64_t round) {
  uint64_t now = now_ns();
  plan.entry_member(round, 0).opened_ns.store(now, std::memory_order_relaxed);
  return now;
}

void note_arrival(const RoundSite &site) {
  if (site.board.header->watch_arrivals.load(kSeqCst) == 0) return;
  Bell &bell = site.board.header->agent_bell;
  bell.word.fetch_add(1, kSeqCst);  // counted even when nobody sleeps: the agent compares words between its waits
  ring(bell);
}

// A member on another host whose data did not get here fails the round on this host.
hvd_status pull_status(const PlanView &plan, uint64_t round) {
  uint32_t flags = 0;
  for (uint32_t m = 0; m < plan.n_members; ++m)
    flags |= plan.entry_member(round, m).flags.load(std::memory_order_relaxed);
  if ((flags & kNoMemory) != 0) return HVD_E_MEMORY;
  return (flags & kBroken) != 0 ? HVD_E_INVALID : HVD_OK;
}

}  // namespace

bool entry_is_free(const PlanView &plan, uint64_t round) {
  uint64_t needed = uint64_t{plan.n_members} * (round / plan.depth);
  return plan.entry(round).reads.load(kSeqCst) >= needed;  // pairs with mark_read
}

bool all_arrived(const PlanView &plan, uint64_t round) {
  return plan.entry(round).arrived.load(kSeqCst) >= total_after(plan, round);
}

bool locals_have_arrived(const PlanView &plan, uint64_t round) {
  if (!plan.is_pull() || !plan.is_remote()) return false;
  uint32_t n = 0;
  for (uint32_t m = 0; m < plan.n_members; ++m)
    n += plan.is_here[m] && plan.arrivals[m].load(kSeqCst) > round ? 1 : 0;
  return n == plan.locals.size();
}

bool is_below_limit(const PlanView &plan, uint64_t round) { return round < plan.header->limit.load(kSeqCst); }

Arrival arrive(const RoundSite &site, uint64_t round, uint32_t member, const MemberFields &fields) {
  const PlanView &plan = site.plan;
  if (!is_below_limit(plan, round)) return Arrival::kMarked;
  if (!entry_is_free(plan, round)) return Arrival::kRingFull;
  Entry &entry = plan.entry(round);
  write_fields(plan.entry_member(round, member), fields);
  if (entry.arrived.load(std::memory_order_relaxed) == total_after(plan, round) - plan.n_members)
    entry.first_arrival_ns.store(now_ns(), std::memory_order_relaxed);
  uint64_t timed_ns = is_timed(plan, round) ? note_time(plan, round) : 0;
  plan.arrivals[member].store(round + 1, kSeqCst);
  // Releases the fields; pairs with all_arrived in open_round.
  bool is_last = entry.arrived.fetch_add(1, kSeqCst) + 1 == total_after(plan, round);
  bool marked = !is_below_limit(plan, round);
  if (!marked) open_round(site, round);
  if (timed_ns != 0 && is_last && !marked)
    count_time(site, BoardStage::kWait, entry.first_arrival_ns.load(std::memory_order_relaxed), timed_ns);
  if (plan.is_pull()) signal_net(site);  // the data travel at once, whoever is missing
  note_arrival(site);
  return marked ? Arrival::kArrivedMarked : Arrival::kArrived;
}

bool open_round(const RoundSite &site, uint64_t round) {
  const PlanView &plan = site.plan;
  Entry &entry = plan.entry(round);
  uint64_t word = entry.claim.load(kSeqCst);
  if (claim_round(word) == round) return !claim_closed(word);
  if (!all_arrived(plan, round) || !is_below_limit(plan, round)) return false;
  // `done` and `status` are zero: the last chunk of the round before reset them.
  if (!entry.claim.compare_exchange_strong(word, claim_word(round, 0), kSeqCst))
    return claim_round(word) == round && !claim_closed(word);
  ring_members(site);
  return true;
}

Phase phase_of(const PlanView &plan, uint64_t round) {
  const Entry &entry = plan.entry(round);
  if (entry.complete.load(kSeqCst) >> 8 == round + 1) return Phase::kComplete;
  uint64_t word = entry.claim.load(kSeqCst);
  if (claim_round(word) != round) return Phase::kMissing;
  if (claim_code(word) == kWithdrawn || claim_code(word) == kTakenBack) return Phase::kWithdrawn;
  if (claim_code(word) == kCancelled) return Phase::kCancelled;
  return plan.is_done_when_open() ? Phase::kComplete : Phase::kOpen;
}

hvd_status status_of(const PlanView &plan, uint64_t round) {
  uint64_t word = plan.entry(round).complete.load(std::memory_order_acquire);
  if (plan.is_pull() && plan.is_remote()) return pull_status(plan, round);
  if (plan.is_done_when_open() || word >> 8 != round + 1) return HVD_OK;
  return static_cast<hvd_status>(-static_cast<int>(word & 0xff));
}

bool is_closed(const PlanView &plan, uint64_t round) {
  uint64_t word = plan.entry(round).claim.load(kSeqCst);
  return claim_round(word) == round && claim_closed(word);
}

bool was_taken_back(const PlanView &plan, uint64_t round) {
  return plan.entry(round).claim.load(kSeqCst) == claim_word(round, kTakenBack);
}

bool close_unopened(const RoundSite &site, uint64_t round, uint32_t how) {
  std::atomic<uint64_t> &claim = site.plan.entry(round).claim;
  uint64_t word = claim.load(kSeqCst);
  while (claim_round(word) != round) {
    if (!claim.compare_exchange_weak(word, claim_word(round, how), kSeqCst)) continue;
    ring_members(site);
    return true;
  }
  return claim_closed(word);
}

void close_claims(const RoundSite &site, uint64_t round, uint32_t how) {
  std::atomic<uint64_t> &claim = site.plan.entry(round).claim;
  uint64_t word = claim.load(kSeqCst);
  // An open round that is complete stays so.
  while (!(claim_round(word) == round && (claim_closed(word) || site.plan.is_done_when_open())))
    if (claim.compare_exchange_weak(word, claim_word(round, how), kSeqCst)) return;
}

void mark_read(const RoundSite &site, uint64_t round) {
  uint64_t total = site.plan.entry(round).reads.fetch_add(1, kSeqCst) + 1;  // pairs with entry_is_free and all_read
  if (total != total_after(site.plan, round)) return;
  ring_locals(site);  // the entry is free
  if (site.plan.is_pull()) signal_net(site);  // what it keeps for readers may go
}

bool all_read(const PlanView &plan, uint64_t round) {
  return plan.entry(round).reads.load(kSeqCst) >= total_after(plan, round);
}

void ring_locals(const RoundSite &site) {
  for (uint32_t local : site.plan.locals) ring(site.board.slots[local].bell);
}

void ring_members(const RoundSite &site) {
  ring_locals(site);
  if (site.plan.n_claims != 0) ring(site.board.agent_slot().bell);  // else there is nothing for a helper
  signal_net(site);
}

void signal_net(const RoundSite &site) {
  if (!site.plan.is_remote()) return;
  NetSignal &net = site.board.header->net;
  uint32_t bit = signal_bit(site.plan.offset);
  std::atomic<uint64_t> &word = net.words[bit / 64];
  uint64_t in_word = 1ull << (bit % 64), in_summary = 1ull << (bit / 64);
  // A bit that is still set will be taken after this look, and our change seen after the taking.
  if ((word.load(kSeqCst) & in_word) == 0) word.fetch_or(in_word, kSeqCst);
  if ((net.summary.load(kSeqCst) & in_summary) == 0) net.summary.fetch_or(in_summary, kSeqCst);
  ring(net.bell);
}

uint32_t leader_of(const PlanView &plan, uint64_t round) {
  for (uint32_t m = 0; m < plan.n_members; ++m)
    if ((plan.entry_member(round, m).flags.load(std::memory_order_relaxed) & kZeros) == 0) return m;
  return plan.n_members;
}

char *find_data(const PlanView &plan, const Mapping *arena, const EntryMember &member, uint64_t skip, uint64_t length) {
  if (arena == nullptr) return nullptr;
  uint64_t start = member.data_offset.load(std::memory_order_relaxed), end = arena->bytes();
  if (start > end || skip > end - start || length > end - start - skip) return nullptr;
  uint64_t at = start + skip;
  return at % hvd_dtype_bytes(static_cast<hvd_dtype>(plan.dtype)) == 0 ? arena->base() + at : nullptr;
}

void complete_round(const PlanView &plan, uint64_t round, uint64_t negated_status) {
  Entry &entry = plan.entry(round);
  entry.status.store(0, std::memory_order_relaxed);
  entry.done.store(0, std::memory_order_relaxed);  // for the next round; all chunks of this one are counted
  entry.complete.store((round + 1) << 8 | negated_status, kSeqCst);  // releases all chunks; pairs with phase_of
}

bool round_has_holder(const RoundSite &site, uint64_t round) {
  if (site.board.has_holder(site.plan.offset, round)) return true;
  bool net_holds = site.plan.is_remote() && site.plan.entry(round).net_hold.load(kSeqCst) == round + 1;
  return net_holds && site.board.agent_slot().dead.load(kSeqCst) == 0;
}

bool take_net_hold(const RoundSite &site, uint64_t round) {
  Entry &entry = site.plan.entry(round);
  entry.net_hold.store(round + 1, kSeqCst);
  if (!is_closed(site.plan, round) && site.board.state() != HVD_E_FAILED) return true;
  end_net_hold(site, round);
  return false;
}

void end_net_hold(const RoundSite &site, uint64_t round) {
  site.plan.entry(round).net_hold.store(0, kSeqCst);
  ring_locals(site);
}

}  // namespace hvd
