// A rank forks while its engine is open: the child has no board, and however it exits, the rank and its peer go on.
#include <atomic>
#include <fstream>
#include <string>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include "check.h"
#include "world.h"

using world::Host;

static bool lost_threads = false;  // forked while other threads ran: their stacks are no roots any more

// Asked by the leak checker as a process ends; a child without its threads would report what only they refer to.
extern "C" int __lsan_is_turned_off() { return lost_threads ? 1 : 0; }

// Asked by the thread sanitizer as it starts: a thread that has ended but was not joined before the fork is no leak of the child.
extern "C" const char *__tsan_default_options() { return "report_thread_leaks=0"; }

namespace {

constexpr uint64_t kCount = 500000, kBytes = kCount * 4;  // enough for a window

// Proves that static destructors ran in a child that called exit().
struct Witness {
  world::Meeting ended;
  pid_t maker = getpid();
  ~Witness() {
    if (getpid() != maker) ended.arrive();
  }
} witness;

int mappings_of(const std::string &name) {
  std::ifstream maps("/proc/self/maps");
  int found = 0;
  for (std::string line; std::getline(maps, line);) found += line.find(name) != std::string::npos ? 1 : 0;
  return found;
}

void fork_child(bool by_exit, int own_arenas, bool with_threads = false) {
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    lost_threads = with_threads;
    CHECK_EQUAL(mappings_of("hvd-board"), 0);
    CHECK_EQUAL(mappings_of("hvd-arena"), own_arenas);
    if (!by_exit) _exit(0);
    exit(0);
  }
  CHECK(world::exited_well(child));
}

void check_round(hvd_engine *engine, uint64_t plan, std::vector<float> *data, uint32_t flags) {
  data->assign(kCount, 1.0f);
  CHECK_EQUAL(world::allreduce(engine, plan, data->data(), data->data(), kBytes, flags), HVD_OK);
  CHECK(*data == std::vector<float>(kCount, 2.0f));
}

void check_rounds(hvd_engine *engine, uint64_t plan, std::vector<float> *data) {
  for (uint32_t flags : {0u, HVD_OP_BLOCKING}) check_round(engine, plan, data, flags);
}

void test_rank_goes_on_after_forks() {
  Host host(2);
  uint64_t plan = host.add(HVD_COOPERATIVE, kBytes);
  auto ranks = world::processes(host, [&](uint32_t rank, hvd_engine *engine) {
    CHECK_EQUAL(mappings_of("hvd-board"), 1);
    std::vector<float> data;
    check_rounds(engine, plan, &data);
    for (bool by_exit : {false, true}) {
      if (rank == 0) fork_child(by_exit, 2);  // the test's process made both arenas: none of them is a peer's here
      check_rounds(engine, plan, &data);
    }
  });
  for (pid_t rank : ranks) CHECK(world::exited_well(rank));
  witness.ended.wait(1);
}

// An op that is open across the fork is the parent's alone.
void test_fork_with_an_open_op() {
  Host host(2);
  uint64_t plan = host.add(HVD_COOPERATIVE, kBytes);
  world::Meeting forked;
  auto ranks = world::processes(host, [&](uint32_t rank, hvd_engine *engine) {
    std::vector<float> data(kCount, 1.0f);
    hvd_op op = 0;
    if (rank == 1) forked.wait(1);
    CHECK_EQUAL(hvd_op_reduce_bound(engine, plan, data.data(), data.data(), kBytes, HVD_OP_BLOCKING, 0, &op), HVD_OK);
    if (rank == 0) {
      for (bool by_exit : {false, true}) fork_child(by_exit, 2);
      forked.arrive();
    }
    CHECK_EQUAL(world::wait_for(engine, op), HVD_OK);
    CHECK(data == std::vector<float>(kCount, 2.0f));
  });
  for (pid_t rank : ranks) CHECK(world::exited_well(rank));
}

// A thread is anywhere in the engine, perhaps with its lock or a claim, when another thread forks.
void test_fork_while_a_thread_runs_rounds() {
  Host host(2);
  uint64_t plan = host.add(HVD_COOPERATIVE, kBytes);
  constexpr uint32_t kRounds = 40;
  hvd_engine *engines[2] = {host.open(0), host.open(1)};
  std::vector<float> data[2];
  std::vector<std::thread> ranks;
  for (int rank : {0, 1})
    ranks.emplace_back([&, rank] {
      for (uint32_t round = 0; round < kRounds; ++round) check_round(engines[rank], plan, &data[rank], round % 2);
    });
  for (int i = 0; i < 10; ++i) fork_child(i % 2 != 0, 2, true);
  for (std::thread &rank : ranks) rank.join();
  for (hvd_engine *engine : engines) hvd_engine_close(engine);
}

}  // namespace

int main() {
  RUN(test_rank_goes_on_after_forks);
  RUN(test_fork_with_an_open_op);
  RUN(test_fork_while_a_thread_runs_rounds);
}
