#include "net_world.h"

#include <arpa/inet.h>
#include <cstdlib>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "bell.h"
#include "board.h"
#include "check.h"
#include "engine.h"
#include "net.h"

namespace world {
namespace {

bool shares_mappings() { return std::getenv("HVD_TEST_SHARED") != nullptr; }

}  // namespace

NetHost::NetHost(uint32_t host_index, uint32_t n_ranks, uint32_t n_hosts, const NetOptions &options)
    : Host(n_ranks, options.spin_ns), index(host_index) {
  CHECK_EQUAL(hvd_arena_create(options.agent_arena_bytes, &agent), HVD_OK);
  fds = arena_fds;
  fds.push_back(hvd_arena_fd(agent));
  hvd_net_spec spec{n_hosts, index, options.lanes, options.eager_bytes, options.ping_ms, options.silent_ms,
                    options.algorithm};
  if (!shares_mappings()) {
    CHECK_EQUAL(hvd_net_create(board, arena_fds.data(), n, agent, &spec, &net), HVD_OK);
    return;
  }
  hvd::ArenaMappings mappings;
  for (hvd_arena *arena : arenas) mappings.push_back(arena->mapping);
  mappings.push_back(agent->mapping);
  net = new hvd_net(board, std::move(mappings), agent, spec);
  CHECK_EQUAL(net->open(), HVD_OK);
}

NetHost::~NetHost() {
  if (net != nullptr) print(events());  // that the test did not expect
  close_net();
  hvd_arena_close(agent);
}

void NetHost::close_net() {
  hvd_net_close(net);
  net = nullptr;
}

hvd_engine *NetHost::open(uint32_t rank) {
  hvd_engine *engine = nullptr;
  if (!shares_mappings()) {
    CHECK_EQUAL(hvd_engine_open(board_fd, arenas[rank], rank, fds.data(), n + 1, &engine), HVD_OK);
    return engine;
  }
  hvd::ArenaMappings mappings;
  for (hvd_arena *arena : arenas) mappings.push_back(arena->mapping);
  mappings.push_back(agent->mapping);
  return new hvd_engine(board->view, arenas[rank], rank, std::move(mappings));
}

std::vector<hvd_net_event> NetHost::events(uint32_t kind, double seconds) {
  std::vector<hvd_net_event> found;
  uint64_t until = hvd::now_ns() + static_cast<uint64_t>(seconds * 1e9);
  for (bool there = false; !there && hvd::now_ns() < until;) {
    pollfd wait{hvd_net_event_fd(net), POLLIN, 0};
    if (kind != 0) poll(&wait, 1, 100);
    hvd_net_event some[16];
    uint32_t n_some = 0;
    CHECK_EQUAL(hvd_net_events(net, some, 16, &n_some), HVD_OK);
    found.insert(found.end(), some, some + n_some);
    there = kind == 0;
    for (const hvd_net_event &event : found) there = there || event.kind == kind;
  }
  if (kind != 0 && found.size() != 1) print(found);
  return found;
}

void NetHost::print(const std::vector<hvd_net_event> &some) const {
  for (const hvd_net_event &event : some)
    std::printf("host %u: event %u, host %u, plan %llu, %s\n", index, event.kind, event.host,
                static_cast<unsigned long long>(event.plan_id), event.text);
}

Cluster::Cluster(const std::vector<uint32_t> &ranks, NetOptions chosen, bool start) : options(chosen) {
  make(ranks, options.tcp ? join_by_tcp : join_by_socketpair);
  for (auto &host : hosts)
    if (start) CHECK_EQUAL(hvd_net_start(host->net), HVD_OK);
}

Cluster::Cluster(const std::vector<uint32_t> &ranks, NetOptions chosen, const Join &join) : options(chosen) {
  make(ranks, join);
  for (auto &host : hosts) CHECK_EQUAL(hvd_net_start(host->net), HVD_OK);
}

void Cluster::make(const std::vector<uint32_t> &ranks, const Join &join) {
  uint32_t n = static_cast<uint32_t>(ranks.size());
  for (uint32_t h = 0; h < n; ++h) {
    hosts.push_back(std::make_unique<NetHost>(h, ranks[h], n, options));
    for (uint32_t i = 0; i < ranks[h]; ++i) host_of.push_back(h), local_of.push_back(i), ++n_ranks;
  }
  for (uint32_t a = 0; a < n; ++a)
    for (uint32_t b = a + 1; b < n; ++b)
      for (uint32_t lane = 0; lane < options.lanes; ++lane) {
        int ends[2];
        join(a, b, lane, ends);
        CHECK_EQUAL(hvd_net_add_peer(hosts[a]->net, b, lane, ends[0]), HVD_OK);
        CHECK_EQUAL(hvd_net_add_peer(hosts[b]->net, a, lane, ends[1]), HVD_OK);
      }
}

hvd_plan_spec Cluster::spec_for(uint32_t host, std::vector<uint32_t> *members, uint32_t kind) const {
  for (uint32_t r = 0; r < n_ranks; ++r) {
    if (host_of[r] == host)
      members->push_back(local_of[r]);
    else if (kind == HVD_PULL)
      members->push_back(hosts[host]->n);
  }
  hvd_plan_spec spec{};
  spec.kind = kind;
  spec.n_members = static_cast<uint32_t>(members->size());
  spec.members = members->data();
  spec.flags = HVD_PLAN_REMOTE;
  return spec;
}

PlanOf Cluster::add(uint32_t kind, uint64_t bytes, uint32_t depth, uint32_t op, uint32_t dtype, double prescale,
                    double postscale) {
  PlanOf plan{next_id_++, std::vector<uint64_t>(hosts.size())};
  for (uint32_t h = 0; h < hosts.size(); ++h) {
    std::vector<uint32_t> members;
    hvd_plan_spec spec = spec_for(h, &members, kind);
    spec.plan_id = plan.id;
    spec.dtype = dtype;
    spec.op = op;
    spec.prescale = prescale;
    spec.postscale = postscale;
    spec.bytes = bytes;
    spec.depth = depth;
    add_on(h, &plan, spec);
  }
  return plan;
}

void Cluster::add_on(uint32_t host, PlanOf *plan, const hvd_plan_spec &spec, bool board_only) {
  CHECK_EQUAL(hvd_board_plan_add(hosts[host]->board, &spec, &plan->offsets[host]), HVD_OK);
  if (!board_only) net_add(host, *plan);
}

void Cluster::net_add(uint32_t host, const PlanOf &plan) {
  std::vector<uint32_t> ring;
  for (uint32_t h = 0; h < hosts.size(); ++h) ring.push_back(h);
  CHECK_EQUAL(hvd_net_plan_add(hosts[host]->net, plan.offsets[host], ring.data(), static_cast<uint32_t>(ring.size()),
                               host_of.data(), n_ranks), HVD_OK);
}

void Cluster::run(const Body &body) {
  std::vector<hvd_engine *> engines;
  for (uint32_t r = 0; r < n_ranks; ++r) engines.push_back(hosts[host_of[r]]->open(local_of[r]));
  std::vector<std::thread> threads;
  for (uint32_t r = 0; r < n_ranks; ++r) threads.emplace_back([&, r] { body(r, *hosts[host_of[r]], engines[r]); });
  for (std::thread &thread : threads) thread.join();
  for (hvd_engine *engine : engines) hvd_engine_close(engine);
}

void join_by_socketpair(uint32_t, uint32_t, uint32_t, int ends[2]) {
  CHECK_EQUAL(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
}

void join_by_tcp(uint32_t, uint32_t, uint32_t, int ends[2]) {
  int listener = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto *raw = reinterpret_cast<sockaddr *>(&address);
  CHECK(bind(listener, raw, size) == 0 && listen(listener, 1) == 0 && getsockname(listener, raw, &size) == 0);
  ends[0] = socket(AF_INET, SOCK_STREAM, 0);
  CHECK_EQUAL(connect(ends[0], raw, size), 0);
  ends[1] = accept(listener, nullptr, nullptr);
  CHECK(ends[1] >= 0);
  close(listener);
}

}  // namespace world
