#include "board.h"

#include <algorithm>
#include <cstring>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "guard.h"

using hvd::PlanView;
using hvd::RoundSite;

namespace {

constexpr auto kSeqCst = std::memory_order_seq_cst;

bool member_is_dead(const hvd::BoardView &board, uint32_t local) {
  return board.slots[local].dead.load(kSeqCst) != 0;
}

// A live member may still read the other members' data in a complete pull round.  Members that read are not told apart,
// so a dead one only excuses itself.
bool has_open_pull(const hvd::BoardView &board, const PlanView &plan) {
  if (!plan.is_pull()) return false;
  uint64_t live = 0;
  for (uint32_t local : plan.members) live += member_is_dead(board, local) ? 0 : 1;
  for (uint32_t i = 0; i < plan.depth; ++i) {
    const hvd::Entry &entry = plan.entry(i);
    uint64_t arrived = entry.arrived.load(kSeqCst) / plan.n_members * plan.n_members, reads = entry.reads.load(kSeqCst);
    uint64_t word = entry.claim.load(kSeqCst);
    bool open = word != hvd::kNeverOpened && !hvd::claim_closed(word);
    if (open && arrived > reads && arrived - reads > plan.n_members - live) return true;
  }
  return false;
}

// The net should have forgotten the plan before; this is the last check.
bool net_holds(const PlanView &plan) {
  for (uint32_t i = 0; i < plan.depth && plan.is_remote(); ++i)
    if (plan.entry(i).net_hold.load(kSeqCst) != 0) return true;
  return false;
}

}  // namespace

hvd_board::hvd_board(hvd::BoardView board)
    : view(std::move(board)),
      blocks_(view.header->blocks_offset, view.mapping->bytes()),
      claim_slots_(&view.agent_slot()) {}

hvd_status hvd_board::plan_add(const hvd_plan_spec &spec, uint64_t *offset) {
  if (!hvd::spec_is_valid(spec, view.local_size)) return HVD_E_INVALID;
  uint64_t bytes = hvd::block_bytes(spec);
  std::lock_guard lock(mutex_);
  bool reused = false;
  uint64_t at = blocks_.alloc(bytes, &reused);
  if (at == 0) return HVD_E_MEMORY;
  if (reused) std::memset(view.mapping->base() + at, 0, bytes);
  plans_[at] = std::make_shared<PlanView>(hvd::format_plan(view, at, spec));
  listed_.reset();
  *offset = at;
  return HVD_OK;
}

hvd_status hvd_board::plan_remove(uint64_t offset) {
  std::lock_guard lock(mutex_);
  auto found = plans_.find(offset);
  if (found == plans_.end()) return HVD_E_INVALID;
  const PlanView &plan = *found->second;
  plan.header->limit.store(0, kSeqCst);
  if (view.block_has_holder(offset) || has_open_pull(view, plan) || net_holds(plan)) return HVD_PENDING;
  // A holder publishes, then looks at the id; here the id goes, then the holders are looked at: no claim is missed.
  plan.header->plan_id.store(0, kSeqCst);
  if (view.block_has_holder(offset)) {
    plan.header->plan_id.store(plan.plan_id, kSeqCst);
    return HVD_PENDING;
  }
  plan.header->magic.store(0, std::memory_order_release);
  blocks_.free(offset, plan.block_bytes);
  plans_.erase(found);
  listed_.reset();
  return HVD_OK;
}

std::shared_ptr<const PlanView> hvd_board::plan(uint64_t offset) {
  std::lock_guard lock(mutex_);
  auto found = plans_.find(offset);
  return found == plans_.end() ? nullptr : found->second;
}

std::shared_ptr<const hvd_board::Plans> hvd_board::plans() {
  std::lock_guard lock(mutex_);
  if (listed_ != nullptr) return listed_;
  auto all = std::make_shared<Plans>();
  all->reserve(plans_.size());
  for (const auto &plan : plans_) all->push_back(plan.second);
  return listed_ = std::move(all);
}

hvd_status hvd_board::fail(hvd_status code, const char *reason) {
  if (code != HVD_E_CLOSED && code != HVD_E_FAILED) return HVD_E_INVALID;
  std::lock_guard lock(mutex_);
  auto &header = *view.header;
  if (header.state.load(kSeqCst) == 0) {
    size_t bytes = reason == nullptr ? 0 : strnlen(reason, hvd::kReasonBytes);
    std::memcpy(header.reason, reason == nullptr ? "" : reason, bytes);
    header.reason_bytes.store(static_cast<uint32_t>(bytes), std::memory_order_release);
  }
  // A closed epoch can still fail; a failed one stays failed.
  if (view.state() != HVD_E_FAILED) header.state.store(static_cast<uint32_t>(-code), kSeqCst);
  view.ring_everyone();
  return HVD_OK;
}

uint64_t hvd_board::arrive_for(const PlanView &plan, uint32_t member, uint32_t flags) {
  std::lock_guard lock(mutex_);
  uint64_t first = plan.arrivals[member].load(kSeqCst), most = first, count = 0;
  for (uint32_t m = 0; m < plan.n_members; ++m) most = std::max(most, plan.arrivals[m].load(kSeqCst));
  most = std::max(most, plan.header->wanted.load(kSeqCst));
  most = std::min(most, first + plan.depth);  // no more can be open, whatever the counters say
  for (uint64_t round = first; round < most; ++round, ++count) {
    RoundSite site{view, plan};
    hvd::MemberFields fields{0, plan.is_pull() ? 0 : plan.bytes, 0, 0, flags};
    hvd::Arrival arrival = hvd::arrive(site, round, member, fields);
    if (arrival == hvd::Arrival::kMarked || arrival == hvd::Arrival::kRingFull) break;
    // Zeros need nothing of the entry, so it is free when all others have read.  Between hosts there may be no other here: there
    // the net reads for zeros when it completes the round.
    if (!plan.ends_in_net()) hvd::mark_read(site, round);
  }
  return count;
}

hvd_status hvd_board::wait_bell(uint64_t timeout_ns) {
  hvd::Bell &bell = view.header->agent_bell;
  {
    hvd::BellSleep sleeper(bell);
    if (bell.word.load(kSeqCst) == bell_seen_) sleeper.sleep(timeout_ns);
  }
  uint32_t word = bell.word.load(kSeqCst);
  bool rang = word != bell_seen_;
  bell_seen_ = word;
  return rang ? HVD_OK : HVD_PENDING;
}

hvd_status hvd_board_create(uint32_t local_size, uint64_t spin_ns, hvd_board **out, int *fd) {
  if (out == nullptr || fd == nullptr || local_size == 0 || local_size > hvd::kMaxLocalRanks) return HVD_E_INVALID;
  return hvd::guarded([&] {
    auto mapping = hvd::Mapping::create("hvd-board", hvd::kBoardBytes);
    if (mapping == nullptr) return HVD_E_MEMORY;
    mapping->advise_all(MADV_DONTFORK);
    int copy = fcntl(mapping->fd(), F_DUPFD_CLOEXEC, 0);
    if (copy < 0) return HVD_E_MEMORY;
    *fd = copy;
    *out = new hvd_board(hvd::BoardView::format(std::move(mapping), local_size, spin_ns));
    return HVD_OK;
  });
}

void hvd_board_close(hvd_board *board) { delete board; }

hvd_status hvd_board_plan_add(hvd_board *board, const hvd_plan_spec *spec, uint64_t *offset) {
  if (board == nullptr || spec == nullptr || offset == nullptr) return HVD_E_INVALID;
  return hvd::guarded([&] { return board->plan_add(*spec, offset); });
}

hvd_status hvd_board_plan_remove(hvd_board *board, uint64_t offset) {
  if (board == nullptr) return HVD_E_INVALID;
  return hvd::guarded([&] { return board->plan_remove(offset); });
}

hvd_status hvd_board_plan_limit(hvd_board *board, uint64_t offset, uint64_t limit) {
  if (board == nullptr) return HVD_E_INVALID;
  return hvd::guarded([&] {
    auto plan = board->plan(offset);
    if (plan == nullptr) return HVD_E_INVALID;
    plan->header->limit.store(limit, kSeqCst);
    hvd::ring_members({board->view, *plan});  // parked ops below the new limit may go on
    return HVD_OK;
  });
}

hvd_status hvd_board_plan_arrivals(hvd_board *board, uint64_t offset, uint64_t *arrivals) {
  if (board == nullptr || arrivals == nullptr) return HVD_E_INVALID;
  return hvd::guarded([&] {
    auto plan = board->plan(offset);
    if (plan == nullptr) return HVD_E_INVALID;
    for (uint32_t m = 0; m < plan->n_members; ++m) arrivals[m] = plan->arrivals[m].load(kSeqCst);
    return HVD_OK;
  });
}

hvd_status hvd_board_plan_arrive_for(hvd_board *board, uint64_t offset, uint32_t local_index, int absent, uint64_t *rounds) {
  if (board == nullptr || rounds == nullptr) return HVD_E_INVALID;
  return hvd::guarded([&] {
    auto plan = board->plan(offset);
    if (plan == nullptr || (plan->is_pull() && absent == 0)) return HVD_E_INVALID;
    uint32_t member = plan->member_of(local_index);
    if (member == plan->n_members) return HVD_E_INVALID;
    *rounds = board->arrive_for(*plan, member, absent != 0 ? hvd::kZeros | hvd::kAbsent : hvd::kZeros);
    return HVD_OK;
  });
}

hvd_status hvd_board_watch_arrivals(hvd_board *board, int on) {
  if (board == nullptr) return HVD_E_INVALID;
  board->view.header->watch_arrivals.store(on != 0 ? 1 : 0, kSeqCst);
  return HVD_OK;
}

hvd_status hvd_board_wait_bell(hvd_board *board, uint32_t timeout_ms) {
  if (board == nullptr) return HVD_E_INVALID;
  return board->wait_bell(uint64_t{timeout_ms} * 1000000);
}

void hvd_board_ring_agent(hvd_board *board) {
  if (board != nullptr) hvd::wake_sleepers(board->view.header->agent_bell);
}

hvd_status hvd_board_fail(hvd_board *board, hvd_status code, const char *reason) {
  if (board == nullptr) return HVD_E_INVALID;
  return hvd::guarded([&] { return board->fail(code, reason); });
}

hvd_status hvd_board_rank_dead(hvd_board *board, uint32_t local_index) {
  if (board == nullptr || local_index >= board->view.local_size) return HVD_E_INVALID;
  board->view.slots[local_index].dead.store(1, kSeqCst);
  board->view.ring_everyone();
  return HVD_OK;
}

hvd_status hvd_board_time_stat(hvd_board *board, hvd_board_times *out) {
  if (board == nullptr || out == nullptr) return HVD_E_INVALID;
  const hvd::BoardTimes &times = board->view.header->times;
  for (uint32_t stage = 0; stage < hvd::kTimedStages; ++stage) {
    out->sum_ns[stage] = times.sum_ns[stage].load(std::memory_order_relaxed);
    for (uint32_t bucket = 0; bucket < hvd::kTimeBuckets; ++bucket)
      out->counts[stage][bucket] = times.counts[stage][bucket].load(std::memory_order_relaxed);
  }
  return HVD_OK;
}

hvd_status hvd_board_rank_info(hvd_board *board, uint32_t local_index, hvd_rank_info *out) {
  if (board == nullptr || out == nullptr || local_index >= board->view.local_size) return HVD_E_INVALID;
  const hvd::RankSlot &slot = board->view.slots[local_index];
  *out = {slot.submits.load(kSeqCst), slot.blocked.load(kSeqCst), slot.blocked_tag.load(kSeqCst),
          slot.blocked_ns.load(kSeqCst), 0};
  for (const auto &claim : slot.claims) out->claims += claim.load(kSeqCst) != 0 ? 1 : 0;
  return HVD_OK;
}
