// A rank's view of one epoch: its ops, the plans it knows, and the threads that wait.
//
// One lock of this process guards the table, the plans and the staging.  It is never held while data are copied or reduced,
// nor while a thread sleeps; what is used outside of it is pinned (Op::pins, BoundPlan::refs).
//
//   submit.cc   ops are made and their data staged     bind.cc    ops get a round, arrive, leave it again
//   wait.cc     spinning, sleeping, finishing          settle.cc  what a round's end or the epoch's end means for an op
//   helping.cc  chunks of open rounds                  pull.cc    reading what the members of a pull round published
//   driving.cc  windows: chunks in, results out
#pragma once
#include <condition_variable>
#include <deque>
#include <mutex>
#include <unordered_map>

#include "arena.h"
#include "board_view.h"
#include "op.h"
#include "round.h"
#include "staging.h"

namespace hvd {

// A plan as one rank uses it.
struct BoundPlan {
  PlanView view;
  uint32_t member = 0;         // index of this rank
  uint64_t next_round = 0;     // of the next bind
  uint32_t refs = 0;           // ops and threads that use it
  std::deque<Op *> queue;      // bound but not arrived, in order of rounds
};

}  // namespace hvd

struct hvd_engine {
  hvd_engine(hvd::BoardView board, hvd_arena *arena, uint32_t local_index, hvd::ArenaMappings arenas);
  ~hvd_engine();

  hvd_status reduce_bound(uint64_t offset, const hvd_segment &segment, uint32_t flags, uint64_t tag, hvd_op *out);
  hvd_status reduce(const hvd_segment *segments, uint32_t n, uint32_t flags, uint64_t tag, hvd_op *out);
  struct Publication {  // what a pull op offers
    const hvd_segment *segments;
    uint32_t n;
    const int64_t *meta;
    uint32_t n_meta;
    const hvd_span *reads;
    uint32_t n_reads;
  };
  hvd_status pull(const Publication &what, uint64_t tag, hvd_op *out);
  hvd_status bind(hvd_op handle, uint64_t offset, uint64_t *round);
  hvd_status unbind(hvd_op handle);
  hvd_status wait(hvd_op handle, uint64_t timeout_ns);
  hvd_status tag(hvd_op handle, uint64_t tag);
  hvd_status poll(hvd_op handle);
  hvd_status fail(hvd_op handle);
  hvd_status meta(hvd_op handle, uint32_t member, int64_t *meta, uint32_t capacity, uint32_t *n, uint64_t *data_bytes);
  hvd_status pull_copy(hvd_op handle, const hvd_copy *copies, uint32_t n);
  hvd_status pull_reduce(hvd_op handle, uint64_t source_offset, void *out, uint64_t bytes);
  hvd_status done(hvd_op handle);
  uint32_t reason(char *out, uint32_t capacity) const;

  const hvd::BoardView board;

 private:
  using Lock = std::unique_lock<std::mutex>;
  struct Published {  // a pull op that is done here but perhaps still read by others
    hvd::BoundPlan *plan;
    uint64_t round;
    hvd::Staged staged;
  };
  struct Target {  // an open round to help in
    hvd::BoundPlan *plan = nullptr;
    uint64_t round = 0;
  };
  class Call;  // pins an op while a thread is inside a call on it
  class Blocked;

  hvd::RankSlot &slot() const { return board.slots[local_index_]; }
  hvd::RoundSite site(const hvd::BoundPlan &plan) const { return {board, plan.view}; }

  // engine.cc
  void give_up(Lock &lock, hvd::Op *op, uint64_t until_ns);
  void leave_or_free(Published *published);

  // submit.cc
  hvd::Op *new_op(uint64_t tag);
  bool stage_alloc(hvd::Staged *staged, uint64_t bytes);
  void stage_free(hvd::Staged *staged);
  bool stage_whole(hvd::Op *op);
  bool stage_window(hvd::Op *op, uint32_t slots, uint64_t slot_bytes);
  bool stage_reduce(hvd::Op *op);
  hvd_status submit_reduce(Call &call, const hvd_segment *segments, uint32_t n, uint32_t flags, uint64_t tag);
  hvd_status submit_pull(Call &call, const Publication &what, uint64_t tag);
  hvd_status finish_submit(Call &call, hvd_status status, hvd_op *out);

  // bind.cc
  bool fits(const hvd::Op &op, const hvd::BoundPlan &plan) const;
  hvd::BoundPlan *find_plan(uint64_t offset);
  void sweep_plans();
  hvd_status bind_op(Lock &lock, hvd::Op *op, uint64_t offset);
  hvd_status prepare(Lock &lock, hvd::Op *op);
  hvd_status gather_whole(Lock &lock, hvd::Op *op);
  static bool is_lost(const hvd::Op &op);
  void enqueue(hvd::Op *op);
  hvd_status bind_result(const hvd::Op &op) const;
  void pump(hvd::BoundPlan *plan);
  void pump_all();
  void add_active(hvd::Op *op);
  void drop_active(hvd::Op *op);
  void drop_queued(hvd::Op *op);
  bool take_off(hvd::Op *op, uint32_t how);
  bool take_off_soon(Lock &lock, hvd::Op *op);
  bool may_be_withdrawn(const hvd::Op &op) const;
  void forget_round(hvd::Op *op);

  // settle.cc
  void settle(hvd::Op *op);
  void settle_arrived(hvd::Op *op, hvd_status epoch);
  void settle_complete(hvd::Op *op);
  void leave_round(hvd::Op *op, hvd_status epoch);
  void set_failed(hvd::Op *op, hvd_status status);
  void mark_read(hvd::Op *op);
  void release(hvd::Op *op);
  void collect_published();

  // wait.cc
  hvd_status attempt(Lock &lock, hvd::Op *op, uint32_t most_chunks, bool *progress);
  hvd_status deliver(Lock &lock, hvd::Op *op);
  hvd_status sleep(Lock &lock, hvd::Op *op, uint64_t at_most_ns, bool *progress);
  void spin(Lock &lock, const hvd::Op *op);
  uint64_t spin_ns(uint64_t now) const;
  hvd_status finish(hvd::Op *op, hvd_status status);
  void show_blocked();

  // driving.cc
  bool can_copy_in(const hvd::Op &op) const;
  bool can_copy_out(const hvd::Op &op) const;
  bool copy_in(hvd::Op *op);
  bool copy_out(hvd::Op *op);
  bool scatter_result(hvd::Op *op, uint32_t source);
  bool drive_window(Lock &lock, hvd::Op *op);
  bool drive_others(Lock &lock, const hvd::Op *own);
  void empty_unseen(const hvd::Op &op);

  // helping.cc
  uint32_t find_targets(hvd::Op *first, Target *targets);
  uint32_t help_with(const Target &target, uint32_t most_chunks);
  bool help_some(Lock &lock, hvd::Op *first, uint32_t most_chunks);

  // pull.cc
  const hvd::Mapping *arena_of(const hvd::PlanView &view, uint32_t member) const;
  bool source(const hvd::Op &op, uint32_t member, uint64_t offset, uint64_t bytes, const char **at) const;

  hvd_arena *arena_;
  const uint32_t local_index_;
  const hvd::ArenaMappings arenas_;
  hvd::ClaimSlots claim_slots_;

  std::mutex mutex_;
  std::condition_variable idle_;  // calls_ became zero
  bool closing_ = false;
  uint32_t calls_ = 0;
  hvd::OpTable ops_;
  hvd::Staging staging_;
  std::unordered_map<uint64_t, std::unique_ptr<hvd::BoundPlan>> plans_;  // by block offset
  std::vector<std::unique_ptr<hvd::BoundPlan>> old_plans_;               // block was reused, ops still refer
  uint64_t crowded_until_ns_ = 0;
  size_t sweep_at_ = 64;
  std::vector<hvd::Op *> active_;             // arrived
  size_t windowed_ = 0;                       // of these, with a window
  std::vector<hvd::BoundPlan *> backlog_;     // plans with a queue
  std::deque<Published> published_;
  std::vector<hvd::Op *> blocked_;            // of the threads that sleep, longest first
};
