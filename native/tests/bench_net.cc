// Prints what rounds between two hosts cost: bench_net [lanes] [spin_us] [bytes] [ranks] [plain].  Each host is an agent's process with
// the net and a process for each rank, joined over loopback TCP; buffers lie in the arena, with `plain` outside of it.  "raw" is the
// same bytes both ways at once over one connection.  Medians, and the processor time of all processes of one host, which others on
// the machine disturb less.  With `bytes` only that size is measured.  Not a test: relative numbers, on an otherwise idle machine.
#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

#include "bell.h"
#include "check.h"
#include "net_world.h"

using world::NetHost;
using world::NetOptions;

namespace {

const std::vector<uint64_t> kAllSizes = {0, 4 << 10, 64 << 10, 256 << 10, 1 << 20, 8 << 20, 64 << 20};
std::vector<uint64_t> sizes = kAllSizes;
uint32_t ranks_per_host = 1;
bool is_plain = false;
constexpr uint32_t kSmall = 500;

int repeats_for(uint64_t bytes) {
  uint64_t fewest = sizes.size() == 1 ? 31 : 9;
  return static_cast<int>(std::clamp<uint64_t>((1u << 29) / (bytes + 1), fewest, 1000));
}

template <class Body>
double median_us(int repeats, Body body) {
  std::vector<uint64_t> times;
  for (int i = 0; i < repeats; ++i) {
    uint64_t start = hvd::now_ns();
    body();
    times.push_back(hvd::now_ns() - start);
  }
  std::nth_element(times.begin(), times.begin() + repeats / 2, times.end());
  return static_cast<double>(times[static_cast<size_t>(repeats / 2)]) / 1000;
}

double cpu_us(int who) {
  rusage used{};
  getrusage(who, &used);
  auto us = [](const timeval &time) { return static_cast<double>(time.tv_sec) * 1e6 + static_cast<double>(time.tv_usec); };
  return us(used.ru_utime) + us(used.ru_stime);
}

void print(const char *what, uint64_t bytes, double us) {
  double speed = static_cast<double>(bytes) / us / 1000;
  std::printf("%10llu bytes: %s  %10.1f us  %7.2f GB/s each way\n", static_cast<unsigned long long>(bytes), what, us, speed);
  std::fflush(stdout);
}

// Sends and receives `bytes` at once.
void exchange(int fd, std::vector<char> &out, std::vector<char> &in, uint64_t bytes) {
  for (uint64_t sent = 0, got = 0; sent < bytes || got < bytes;) {
    pollfd wait{fd, static_cast<short>((got < bytes ? POLLIN : 0) | (sent < bytes ? POLLOUT : 0)), 0};
    poll(&wait, 1, -1);
    if (wait.revents & POLLOUT) {
      ssize_t n = send(fd, out.data() + sent, bytes - sent, MSG_DONTWAIT | MSG_NOSIGNAL);
      if (n > 0) sent += static_cast<uint64_t>(n);
    }
    if (wait.revents & POLLIN) {
      ssize_t n = recv(fd, in.data() + got, bytes - got, MSG_DONTWAIT);
      if (n > 0) got += static_cast<uint64_t>(n);
    }
  }
}

void run_raw(int fd, bool first) {
  int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  std::vector<char> out(kAllSizes.back(), 1), in(kAllSizes.back());
  for (uint64_t bytes : sizes) {
    if (bytes == 0) continue;
    double before = cpu_us(RUSAGE_SELF);
    double us = median_us(repeats_for(bytes), [&] { exchange(fd, out, in, bytes); });
    if (!first) continue;
    print("raw", bytes, us);
    std::printf("%41.1f us of processor time each\n", (cpu_us(RUSAGE_SELF) - before) / repeats_for(bytes));
    std::fflush(stdout);
  }
}

void run_rank(NetHost &host, uint32_t rank, const std::vector<uint64_t> &plans, const std::vector<uint64_t> &small) {
  hvd_engine *engine = host.open(rank);
  bool tells = host.index == 0 && rank == 0;
  std::vector<char> own(is_plain ? kAllSizes.back() : 0);
  char *data = is_plain ? own.data() : static_cast<char *>(hvd_arena_alloc(host.arenas[rank], kAllSizes.back()));
  std::memset(data, 0, kAllSizes.back());
  for (size_t i = 0; i < plans.size(); ++i) {
    uint64_t bytes = sizes[i];
    auto round = [&] { CHECK_EQUAL(world::allreduce(engine, plans[i], data, data, bytes), HVD_OK); };
    round();
    double us = median_us(repeats_for(bytes), round);
    if (tells) print("sum", bytes, us);
  }
  if (sizes.size() == 1) return hvd_engine_close(engine);
  auto rested = [&] {
    usleep(1000);
    uint64_t start = hvd::now_ns();
    CHECK_EQUAL(world::allreduce(engine, plans[1], data, data, kAllSizes[1], 0), HVD_OK);
    return static_cast<double>(hvd::now_ns() - start) / 1000;
  };
  std::vector<double> times;
  for (int i = 0; i < 501; ++i) times.push_back(rested());
  std::nth_element(times.begin(), times.begin() + 250, times.end());
  if (tells) print("rested sum", kAllSizes[1], times[250]);
  std::vector<hvd_op> ops(kSmall);
  double us = median_us(21, [&] {
    for (uint32_t i = 0; i < kSmall; ++i)
      CHECK_EQUAL(hvd_op_reduce_bound(engine, small[i], data + i * 4096, data + i * 4096, 4096, 0, 0, &ops[i]), HVD_OK);
    for (hvd_op op : ops) CHECK_EQUAL(world::wait_for(engine, op), HVD_OK);
  });
  if (tells) std::printf("%u async sums of 4096 bytes: %10.1f us\n", kSmall, us);
  std::fflush(stdout);
  hvd_engine_close(engine);
}

uint64_t add(NetHost &host, uint64_t id, uint64_t bytes) {
  std::vector<uint32_t> members;
  for (uint32_t rank = 0; rank < ranks_per_host; ++rank) members.push_back(rank);
  uint32_t ring[] = {0, 1};
  hvd_plan_spec spec{id, HVD_COOPERATIVE, HVD_FLOAT32, HVD_SUM, 1, 1, bytes, 2, ranks_per_host, members.data(), HVD_PLAN_REMOTE};
  uint64_t offset = 0;
  CHECK_EQUAL(hvd_board_plan_add(host.board, &spec, &offset), HVD_OK);
  CHECK_EQUAL(hvd_net_plan_add(host.net, offset, ring, 2, nullptr, 0), HVD_OK);
  return offset;
}

void run_host(uint32_t index, const std::vector<int> &lanes, const NetOptions &options) {
  NetHost host(index, ranks_per_host, 2, options);
  for (uint32_t lane = 0; lane < lanes.size(); ++lane)
    CHECK_EQUAL(hvd_net_add_peer(host.net, 1 - index, lane, lanes[lane]), HVD_OK);
  std::vector<uint64_t> plans, small;
  for (uint64_t bytes : sizes) plans.push_back(add(host, plans.size() + 1, bytes));
  for (uint32_t i = 0; i < kSmall; ++i) small.push_back(add(host, 100 + i, 4096));
  std::vector<pid_t> ranks;
  for (uint32_t rank = 0; rank < ranks_per_host; ++rank) {
    ranks.push_back(fork());
    if (ranks.back() != 0) continue;
    run_rank(host, rank, plans, small);
    _exit(0);
  }
  double before = cpu_us(RUSAGE_SELF);
  CHECK_EQUAL(hvd_net_start(host.net), HVD_OK);
  for (pid_t rank : ranks) CHECK(world::exited_well(rank));
  int repeats = repeats_for(sizes[0]);
  if (index == 0 && sizes.size() == 1)
    std::printf("%41.1f us of processor time each: ranks %.1f, agent %.1f\n",
                (cpu_us(RUSAGE_CHILDREN) + cpu_us(RUSAGE_SELF) - before) / repeats, cpu_us(RUSAGE_CHILDREN) / repeats,
                (cpu_us(RUSAGE_SELF) - before) / repeats);
  hvd_net_info info{};
  CHECK_EQUAL(hvd_net_stat(host.net, &info), HVD_OK);
  if (index == 0)
    std::printf("frames %llu, writes %llu, reads %llu, sleeps %llu\n", static_cast<unsigned long long>(info.frames_sent),
                static_cast<unsigned long long>(info.writes), static_cast<unsigned long long>(info.reads),
                static_cast<unsigned long long>(info.sleeps));
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char **argv) {
  NetOptions options;
  options.lanes = argc > 1 ? static_cast<uint32_t>(std::atoi(argv[1])) : 2;
  options.spin_ns = (argc > 2 ? static_cast<uint64_t>(std::atoi(argv[2])) : 20) * 1000;
  options.ping_ms = 1000;
  if (argc > 4) ranks_per_host = static_cast<uint32_t>(std::atoi(argv[4]));
  is_plain = argc > 5 && std::strcmp(argv[5], "plain") == 0;
  if (argc > 3) sizes = {std::strtoull(argv[3], nullptr, 10)};
  int raw[2];
  world::join_by_tcp(0, 0, 0, raw);
  std::vector<int> lanes[2];
  for (uint32_t i = 0; i < options.lanes; ++i) {
    int ends[2];
    world::join_by_tcp(0, 0, 0, ends);
    for (int side : {0, 1}) lanes[side].push_back(ends[side]);
  }
  pid_t hosts[2];
  for (uint32_t side : {0u, 1u}) {
    hosts[side] = fork();
    if (hosts[side] != 0) continue;
    for (int fd : lanes[1 - side]) close(fd);  // or the other agent would never see an end
    run_raw(raw[side], side == 0);
    run_host(side, lanes[side], options);
    _exit(0);
  }
  for (pid_t host : hosts) CHECK(world::exited_well(host));
}
