// Helper threads of the agent: they reduce what is open, as any rank would.
#include <sys/stat.h>

#include "board.h"
#include "guard.h"

bool hvd_board::map_arenas(const int *arena_fds, uint32_t n, hvd::ArenaMappings *out) {
  std::lock_guard lock(mutex_);
  for (uint32_t i = 0; i < n; ++i) {
    struct stat status {};
    if (fstat(arena_fds[i], &status) != 0) return false;
    auto &mapping = arenas_[{status.st_dev, status.st_ino}];
    if (mapping == nullptr) mapping = hvd::Mapping::open(arena_fds[i], i + 1);
    if (mapping == nullptr) return false;
    out->push_back(mapping);
  }
  return true;
}

bool hvd_board::help_once(const hvd::ArenaMappings &arenas) {
  bool helped = false;
  auto all = plans();
  for (const auto &plan : *all)
    for (uint32_t i = 0; i < plan->depth && plan->n_claims != 0; ++i) {
      uint64_t round = hvd::claim_round(plan->entry(i).claim.load(std::memory_order_seq_cst));
      if (round % plan->depth != i) continue;
      while (hvd::help_round({view, *plan}, arenas, claim_slots_, round, hvd::End::kLow)) helped = true;
    }
  return helped;
}

hvd_status hvd_board::help(const int *arena_fds, uint32_t n, uint64_t timeout_ns) {
  hvd::ArenaMappings arenas;
  if (n < view.local_size || !map_arenas(arena_fds, n, &arenas)) return HVD_E_INVALID;
  uint64_t until = hvd::now_ns() + timeout_ns;
  for (uint64_t now = hvd::now_ns(); now < until; now = hvd::now_ns()) {
    if (view.state() == HVD_E_FAILED) return HVD_E_FAILED;
    if (help_once(arenas)) continue;
    hvd::BellSleep sleeper(view.agent_slot().bell);
    if (!help_once(arenas) && view.state() != HVD_E_FAILED) sleeper.sleep(until - now);
  }
  return HVD_OK;
}

hvd_status hvd_board_help(hvd_board *board, const int *arena_fds, uint32_t n, uint32_t timeout_ms) {
  if (board == nullptr || arena_fds == nullptr) return HVD_E_INVALID;
  return hvd::guarded([&] { return board->help(arena_fds, n, uint64_t{timeout_ms} * 1000000); });
}
