// Several hosts in one process: each with its board, its ranks' arenas, the agent's arena and a net; joined by socket pairs or
// by TCP over loopback.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "world.h"

namespace world {

struct NetOptions {
  uint32_t lanes = 2;
  uint64_t eager_bytes = 4 << 20;
  uint32_t ping_ms = 50, silent_ms = 20000;
  bool tcp = false;
  uint64_t spin_ns = 20000;
  uint64_t agent_arena_bytes = 1ull << 30;
  uint32_t algorithm = HVD_NET_BY_SIZE;
};

struct NetHost : Host {
  NetHost(uint32_t index, uint32_t n_ranks, uint32_t n_hosts, const NetOptions &options);
  ~NetHost();
  hvd_engine *open(uint32_t rank);
  void close_net();
  // Events so far, after waiting for one of this kind if kind != 0.
  std::vector<hvd_net_event> events(uint32_t kind = 0, double seconds = 10);
  void print(const std::vector<hvd_net_event> &some) const;

  const uint32_t index;
  hvd_arena *agent = nullptr;
  hvd_net *net = nullptr;
  std::vector<int> fds;  // of the ranks' arenas and the agent's
};

struct PlanOf {  // a plan on all hosts
  uint64_t id;
  std::vector<uint64_t> offsets;  // by host
};

struct Cluster {
  explicit Cluster(const std::vector<uint32_t> &ranks, NetOptions options = {}, bool start = true);
  // With hooks between the hosts: `join` makes the two ends of a lane.
  using Join = std::function<void(uint32_t a, uint32_t b, uint32_t lane, int ends[2])>;
  Cluster(const std::vector<uint32_t> &ranks, NetOptions options, const Join &join);

  PlanOf add(uint32_t kind, uint64_t bytes, uint32_t depth = 2, uint32_t op = HVD_SUM, uint32_t dtype = HVD_FLOAT32,
             double prescale = 1, double postscale = 1);
  // On one host, and its net unless `board_only`.
  void add_on(uint32_t host, PlanOf *plan, const hvd_plan_spec &spec, bool board_only = false);
  void net_add(uint32_t host, const PlanOf &plan);
  // body(global rank, host, engine), as threads, for all ranks.
  using Body = std::function<void(uint32_t rank, NetHost &host, hvd_engine *engine)>;
  void run(const Body &body);

  uint32_t n_ranks = 0;
  std::vector<uint32_t> host_of;   // by global rank
  std::vector<uint32_t> local_of;
  std::vector<std::unique_ptr<NetHost>> hosts;
  const NetOptions options;

 private:
  void make(const std::vector<uint32_t> &ranks, const Join &join);
  uint64_t next_id_ = 1;
  hvd_plan_spec spec_for(uint32_t host, std::vector<uint32_t> *members, uint32_t kind) const;
};

void join_by_socketpair(uint32_t, uint32_t, uint32_t, int ends[2]);
void join_by_tcp(uint32_t, uint32_t, uint32_t, int ends[2]);

// The answer of the net's thread, which says HVD_PENDING while it is too busy to give one.
template <class Question>
hvd_status answer_to(const Question &question) {
  hvd_status status = HVD_PENDING;
  while (status == HVD_PENDING) status = question();
  return status;
}

}  // namespace world
