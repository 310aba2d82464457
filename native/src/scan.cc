// What is going on on the board: open rounds, who is missing, who holds a claim.  Reads only.
#include <algorithm>
#include <vector>

#include "board.h"
#include "guard.h"
#include "window.h"

namespace {

constexpr auto kSeqCst = std::memory_order_seq_cst;
enum : uint32_t { kMembersMissing = 0, kBeingReduced = 1, kNotReadByAll = 2, kTravels = 3 };

// The round that entry `index` is used for now; false when it is free or its round was closed.
bool current_round(const hvd::PlanView &plan, uint32_t index, uint64_t *round, uint32_t *n_arrived) {
  uint64_t arrived = plan.entry(index).arrived.load(kSeqCst);
  if (arrived == 0) return false;
  uint64_t use = (arrived - 1) / plan.n_members;
  *round = use * plan.depth + index;
  *n_arrived = static_cast<uint32_t>(arrived - use * plan.n_members);
  return !hvd::all_read(plan, *round);
}

// All that this host can give to a round between hosts now is reduced: all of it, or as much as windows hold.
bool is_ready_here(const hvd::PlanView &plan, uint64_t round) {
  for (uint32_t c = 0; c < plan.n_claims; ++c) {
    if (plan.ready(round, c).load(kSeqCst) >> 8 == round + 1) continue;
    uint32_t slots = hvd::has_window(plan, round) ? plan.window_slots() : 0;
    return slots != 0 && c >= slots && !hvd::chunk_is_done(plan, round, c - slots);
  }
  return true;
}

uint32_t describe(const hvd::PlanView &plan, uint64_t round, hvd::Phase phase, bool all_arrived) {
  if (phase == hvd::Phase::kComplete) return kNotReadByAll;
  if (phase == hvd::Phase::kOpen && plan.ends_in_net() && is_ready_here(plan, round)) return kTravels;
  return all_arrived ? kBeingReduced : kMembersMissing;
}

void scan_plan(const hvd::PlanView &plan, uint64_t now, std::vector<hvd_round_info> *found) {
  for (uint32_t i = 0; i < plan.depth; ++i) {
    uint64_t round = 0;
    uint32_t n_arrived = 0;
    if (!current_round(plan, i, &round, &n_arrived)) continue;
    hvd::Phase phase = hvd::phase_of(plan, round);
    if (phase == hvd::Phase::kWithdrawn || phase == hvd::Phase::kCancelled) continue;
    uint64_t first = plan.entry(i).first_arrival_ns.load(std::memory_order_relaxed);
    found->push_back({plan.plan_id, plan.offset, round, now > first ? now - first : 0, plan.n_members, n_arrived,
                      describe(plan, round, phase, n_arrived == plan.n_members)});
  }
}

bool is_older(const hvd_round_info &a, const hvd_round_info &b) { return a.age_ns > b.age_ns; }

bool holds(const hvd::BoardView &board, uint32_t local, uint64_t name) {
  for (const auto &claim : board.slots[local].claims)
    if (claim.load(kSeqCst) == name) return true;
  return false;
}

}  // namespace

hvd_status hvd_board_scan(hvd_board *board, hvd_round_info *out, uint32_t capacity, uint32_t *n) {
  if (board == nullptr || n == nullptr || (out == nullptr && capacity != 0)) return HVD_E_INVALID;
  return hvd::guarded([&] {
    std::vector<hvd_round_info> found;
    uint64_t now = hvd::now_ns();
    auto plans = board->plans();
    for (const auto &plan : *plans) scan_plan(*plan, now, &found);
    std::sort(found.begin(), found.end(), is_older);
    *n = static_cast<uint32_t>(found.size());
    std::copy_n(found.begin(), std::min<size_t>(capacity, found.size()), out);
    return HVD_OK;
  });
}

hvd_status hvd_board_round_members(hvd_board *board, uint64_t offset, uint64_t round, uint8_t *arrived, uint8_t *holder) {
  if (board == nullptr || arrived == nullptr || holder == nullptr) return HVD_E_INVALID;
  return hvd::guarded([&] {
    auto plan = board->plan(offset);
    if (plan == nullptr) return HVD_E_INVALID;
    uint64_t name = hvd::claim_name(offset, round);
    for (uint32_t m = 0; m < plan->n_members; ++m) {
      arrived[m] = plan->arrivals[m].load(kSeqCst) > round ? 1 : 0;
      holder[m] = plan->is_here[m] && holds(board->view, plan->members[m], name) ? 1 : 0;
    }
    return HVD_OK;
  });
}
