// A host in a test: one board, one arena per rank, and ranks as threads or as forked processes.
#pragma once
#include <functional>
#include <memory>
#include <sys/types.h>
#include <thread>
#include <vector>

#include "hvd.h"

namespace world {

struct Host {
  explicit Host(uint32_t n, uint64_t spin_ns = 20000, uint64_t arena_bytes = 1ull << 30);
  ~Host();
  Host(const Host &) = delete;
  Host &operator=(const Host &) = delete;

  uint64_t add(uint32_t kind, uint64_t bytes, uint32_t depth = 2, uint32_t op = HVD_SUM, uint32_t dtype = HVD_FLOAT32,
               double postscale = 1);
  uint64_t add_for(const std::vector<uint32_t> &members, uint32_t kind, uint64_t bytes, uint32_t depth = 2);
  // A rank's engine; maps board and arenas anew, or all ranks share one mapping if HVD_TEST_SHARED is set.
  hvd_engine *open(uint32_t rank);

  uint32_t n;
  hvd_board *board = nullptr;
  int board_fd = -1;
  std::vector<hvd_arena *> arenas;
  std::vector<int> arena_fds;

 private:
  hvd_engine *open_shared(uint32_t rank);
  uint64_t next_plan_ = 1;
};

// Runs `body(rank, engine)` for all ranks, as threads of this process, and waits for them.
void threads(Host &host, const std::function<void(uint32_t, hvd_engine *)> &body);
// The same with forked processes; returns their pids, the caller reaps them.
std::vector<pid_t> processes(Host &host, const std::function<void(uint32_t, hvd_engine *)> &body);
// Waits for a child; true when it exited with 0.
bool exited_well(pid_t child);
// Waits until the op ends, at most `seconds`; HVD_PENDING if it does not.
hvd_status wait_for(hvd_engine *engine, hvd_op op, double seconds = 20);
// hvd_op_reduce_bound on one buffer, then wait_for.
hvd_status allreduce(hvd_engine *engine, uint64_t plan, const void *in, void *out, uint64_t bytes,
                     uint32_t flags = HVD_OP_BLOCKING);

// Processes of a test meet here: a counter in memory that fork shares.
class Meeting {
 public:
  Meeting();
  ~Meeting();
  void arrive();
  void wait(uint32_t count);  // until that many arrived in all
 private:
  void *shared_;
};

}  // namespace world
