#include "world.h"

#include <atomic>
#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bell.h"
#include "board.h"
#include "check.h"
#include "engine.h"

namespace world {

Host::Host(uint32_t n_ranks, uint64_t spin_ns, uint64_t arena_bytes) : n(n_ranks) {
  CHECK_EQUAL(hvd_board_create(n, spin_ns, &board, &board_fd), HVD_OK);
  for (uint32_t i = 0; i < n; ++i) {
    arenas.push_back(nullptr);
    CHECK_EQUAL(hvd_arena_create(arena_bytes, &arenas.back()), HVD_OK);
    arena_fds.push_back(hvd_arena_fd(arenas.back()));
  }
}

Host::~Host() {
  for (hvd_arena *arena : arenas) hvd_arena_close(arena);
  hvd_board_close(board);
  close(board_fd);
}

uint64_t Host::add(uint32_t kind, uint64_t bytes, uint32_t depth, uint32_t op, uint32_t dtype, double postscale) {
  std::vector<uint32_t> members(n);
  for (uint32_t i = 0; i < n; ++i) members[i] = i;
  hvd_plan_spec spec{next_plan_++, kind, dtype, op, 1, postscale, bytes, depth, n, members.data(), 0};
  uint64_t offset = 0;
  CHECK_EQUAL(hvd_board_plan_add(board, &spec, &offset), HVD_OK);
  return offset;
}

uint64_t Host::add_for(const std::vector<uint32_t> &members, uint32_t kind, uint64_t bytes, uint32_t depth) {
  hvd_plan_spec spec{next_plan_++, kind,  HVD_FLOAT32, HVD_SUM, 1, 1, bytes, depth, static_cast<uint32_t>(members.size()),
                     members.data(), 0};
  uint64_t offset = 0;
  CHECK_EQUAL(hvd_board_plan_add(board, &spec, &offset), HVD_OK);
  return offset;
}

// With HVD_TEST_SHARED set all ranks use one mapping: then the thread sanitizer sees that they touch the same memory.
hvd_engine *Host::open(uint32_t rank) {
  if (std::getenv("HVD_TEST_SHARED") != nullptr) return open_shared(rank);
  hvd_engine *engine = nullptr;
  CHECK_EQUAL(hvd_engine_open(board_fd, arenas[rank], rank, arena_fds.data(), n, &engine), HVD_OK);
  return engine;
}

hvd_engine *Host::open_shared(uint32_t rank) {
  hvd::ArenaMappings mappings;
  for (hvd_arena *arena : arenas) mappings.push_back(arena->mapping);
  return new hvd_engine(board->view, arenas[rank], rank, std::move(mappings));
}

void threads(Host &host, const std::function<void(uint32_t, hvd_engine *)> &body) {
  std::vector<hvd_engine *> engines;
  for (uint32_t i = 0; i < host.n; ++i) engines.push_back(host.open(i));
  std::vector<std::thread> ranks;
  for (uint32_t i = 0; i < host.n; ++i) ranks.emplace_back(body, i, engines[i]);
  for (std::thread &rank : ranks) rank.join();
  for (hvd_engine *engine : engines) hvd_engine_close(engine);
}

std::vector<pid_t> processes(Host &host, const std::function<void(uint32_t, hvd_engine *)> &body) {
  std::vector<pid_t> children;
  for (uint32_t i = 0; i < host.n; ++i) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
      hvd_engine *engine = host.open(i);
      body(i, engine);
      hvd_engine_close(engine);
      _exit(0);
    }
    children.push_back(child);
  }
  return children;
}

bool exited_well(pid_t child) {
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

hvd_status wait_for(hvd_engine *engine, hvd_op op, double seconds) {
  uint64_t until = hvd::now_ns() + static_cast<uint64_t>(seconds * 1e9);
  hvd_status status = HVD_PENDING;
  while (status == HVD_PENDING && hvd::now_ns() < until) status = hvd_op_wait(engine, op, 100);
  return status;
}

hvd_status allreduce(hvd_engine *engine, uint64_t plan, const void *in, void *out, uint64_t bytes, uint32_t flags) {
  hvd_op op = 0;
  hvd_status status = hvd_op_reduce_bound(engine, plan, in, out, bytes, flags, 0, &op);
  return status == HVD_OK ? wait_for(engine, op) : status;
}

Meeting::Meeting()
    : shared_(mmap(nullptr, sizeof(std::atomic<uint32_t>), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) {
  CHECK(shared_ != MAP_FAILED);
}

Meeting::~Meeting() { munmap(shared_, sizeof(std::atomic<uint32_t>)); }

void Meeting::arrive() { static_cast<std::atomic<uint32_t> *>(shared_)->fetch_add(1); }

void Meeting::wait(uint32_t count) {
  uint64_t until = hvd::now_ns() + 20'000'000'000;
  while (static_cast<std::atomic<uint32_t> *>(shared_)->load() < count) {
    CHECK(hvd::now_ns() < until);
    sched_yield();
  }
}

}  // namespace world
