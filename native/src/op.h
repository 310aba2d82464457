// One submitted collective of this rank, and the table that turns handles into ops.
//
//   unbound --bind--> queued --entry free, below the limit--> arrived --round complete, window empty--> complete --> gone
//   any of the first three --fail, closed, failed, cancelled--> failed --> gone
//
// Fields are guarded by the engine's lock, except: `segments` and `staged` are written before the handle is known or while
// `busy`; the window counters belong to the thread that set `busy`.
#pragma once
#include <memory>
#include <vector>

#include "hvd.h"
#include "plan.h"
#include "segments.h"

namespace hvd {

struct BoundPlan;  // engine.h

enum class OpState : uint8_t { kUnbound, kQueued, kArrived, kComplete, kFailed, kGone };

struct Staged {
  char *block = nullptr;  // owned, from Staging; null: the data lie in the user's part of the arena, or there are none
  uint64_t block_bytes = 0;
  char *data = nullptr;
  uint64_t bytes = 0;
  const int64_t *meta = nullptr;
  uint32_t n_meta = 0;
  const hvd_span *reads = nullptr;  // by member of the plan: what it may read
  uint32_t n_reads = 0;
  uint32_t window = 0;  // slots; 0: all data lies at `data`
};

struct Op {
  uint32_t index = 0;
  uint64_t generation = 0;
  OpState state = OpState::kUnbound;
  bool pull = false, blocking = false;
  bool read = false;       // mark_read was called for its round
  bool delivered = false;  // the output is written (or there is none to write)
  bool waited = false;     // pull: a wait reported HVD_OK
  bool cancelled = false;  // hvd_op_fail came after the round had opened: the round goes on, the waiter gets this
  bool spent = false;      // unbound: the data at `staged` may be sums of a round that was taken back, not the input
  bool busy = false;       // a thread copies in or out, or drives the window
  uint32_t pins = 0;       // threads inside a call on this op
  hvd_status result = HVD_PENDING;
  uint64_t tag = 0, blocked_since_ns = 0;
  Segments segments;
  Staged staged;
  BoundPlan *plan = nullptr;
  uint64_t round = 0;
  uint32_t next_in = 0, next_out = 0;  // window: chunks copied in and out
  size_t active_at = 0;                // place in the engine's list of arrived ops
};

class OpTable {
 public:
  Op *create();
  // Null for a handle that is stale or never was.
  Op *find(hvd_op handle) const;
  static hvd_op handle_of(const Op &op);
  void destroy(Op *op);
  std::vector<Op *> all() const;

 private:
  std::vector<std::unique_ptr<Op>> ops_;
  std::vector<uint32_t> free_;
};

}  // namespace hvd
