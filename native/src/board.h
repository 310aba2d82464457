// The agent's side of the board: plans are added and removed here, rounds are watched, the epoch is ended.
#pragma once
#include <map>
#include <mutex>

#include "block_allocator.h"
#include "board_view.h"
#include "plan.h"
#include "round.h"

struct hvd_board {
  explicit hvd_board(hvd::BoardView board);

  hvd_status plan_add(const hvd_plan_spec &spec, uint64_t *offset);
  hvd_status plan_remove(uint64_t offset);
  // The plan at this offset, null if there is none.  Stays valid while the caller holds the pointer, removed or not.
  std::shared_ptr<const hvd::PlanView> plan(uint64_t offset);
  using Plans = std::vector<std::shared_ptr<const hvd::PlanView>>;
  std::shared_ptr<const Plans> plans();
  hvd_status fail(hvd_status code, const char *reason);
  // For a member that has joined; `flags` are kZeros, and kAbsent or not.
  uint64_t arrive_for(const hvd::PlanView &plan, uint32_t member, uint32_t flags);
  hvd_status wait_bell(uint64_t timeout_ns);
  hvd_status help(const int *arena_fds, uint32_t n, uint64_t timeout_ns);

  bool map_arenas(const int *arena_fds, uint32_t n, hvd::ArenaMappings *out);

  hvd::ClaimSlots &claim_slots() { return claim_slots_; }  // of the agent's threads

  const hvd::BoardView view;

 private:
  bool help_once(const hvd::ArenaMappings &arenas);

  std::mutex mutex_;  // of this process; ranks never take it
  hvd::BlockAllocator blocks_;
  std::map<uint64_t, std::shared_ptr<const hvd::PlanView>> plans_;
  std::shared_ptr<const Plans> listed_;  // what plans() returned last; null after a change
  hvd::ClaimSlots claim_slots_;
  uint32_t bell_seen_ = 0;
  std::map<std::pair<uint64_t, uint64_t>, std::shared_ptr<hvd::Mapping>> arenas_;  // by device and inode
};
