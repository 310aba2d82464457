// Sums by recursive doubling among any number of hosts, with the bits that doubling.h promises.
#include <algorithm>
#include <map>
#include <random>
#include <sys/socket.h>
#include <unistd.h>

#include "board.h"
#include "check.h"
#include "net_cases.h"
#include "net_trouble.h"

using world::Case;
using world::Cluster;
using world::Gate;
using world::NetHost;
using world::NetOptions;
using world::PlanOf;
using world::few;
using world::ones;
using world::same;

namespace {

NetOptions doubling() {
  NetOptions options;
  options.lanes = 1;
  options.agent_arena_bytes = 1 << 26;
  options.algorithm = HVD_NET_DOUBLING;
  return options;
}

std::vector<uint32_t> lone(uint32_t n) { return std::vector<uint32_t>(n, 1); }

// ---- sums

void test_sizes() {
  for (const auto &shape : {lone(2), lone(3), {1, 2, 1, 1, 2}, lone(6), lone(7), {2, 1, 1, 1, 1, 1, 1, 1, 1}, lone(12), lone(16)}) {
    Cluster cluster(shape, doubling());
    uint64_t sums = 0;
    for (uint64_t count : few({1u, 3u, 777u, 16385u, 65536u})) check_case(cluster, {HVD_SUM, HVD_FLOAT32, count}), sums += 3;
    for (uint64_t count : {1u, 70001u}) check_case(cluster, {HVD_SUM, HVD_UINT8, count}), sums += 3;
    for (auto &host : cluster.hosts) CHECK_EQUAL(info_of(*host).rounds_doubling, sums);
    check_case(cluster, {HVD_SUM, HVD_FLOAT32, 65537}, 1);  // larger than what is sent whole
    for (auto &host : cluster.hosts) CHECK_EQUAL(info_of(*host).rounds_ring, 1u);
  }
}

void test_dtypes_and_ops() {
  Cluster cluster({1, 2, 1, 1, 1, 1, 1, 1, 1}, doubling());
  for (uint32_t dtype = HVD_UINT8; dtype <= HVD_BFLOAT16; ++dtype)
    for (uint32_t op : {HVD_SUM, HVD_MIN, HVD_MAX, HVD_PRODUCT}) check_case(cluster, {op, dtype, 777}, 1);
}

void test_barrier() {
  for (uint32_t n : {2u, 3u, 9u, 16u}) {
    Cluster cluster(lone(n), doubling());
    PlanOf plan = cluster.add(HVD_COOPERATIVE, 0);
    std::vector<std::atomic<uint32_t>> come(20);
    cluster.run([&](uint32_t, NetHost &host, hvd_engine *engine) {
      for (auto &here : come) {
        ++here;
        CHECK_EQUAL(world::allreduce(engine, plan.offsets[host.index], nullptr, nullptr, 0), HVD_OK);
        CHECK_EQUAL(here.load(), n);
      }
    });
  }
}

// ---- bits

std::vector<char> noise(const Case &what, std::mt19937_64 *random) {
  std::vector<char> bytes(what.bytes());
  for (char &byte : bytes) byte = static_cast<char>(what.dtype == HVD_BOOL ? (*random)() % 2 : (*random)());
  return bytes;
}

std::vector<char> added(const Case &what, const std::vector<char> &lower, const std::vector<char> &upper, double post) {
  std::vector<char> sum(lower.size());
  const void *in[] = {lower.data(), upper.data()};
  void *out[] = {sum.data(), nullptr};
  CHECK_EQUAL(hvd_reduce(static_cast<hvd_dtype>(what.dtype), static_cast<hvd_reduce_op>(what.op), 1, post, in, out, 2, what.count),
              HVD_OK);
  return sum;
}

// What is left of the hosts' parts after each level of the tree, until it is one.
std::vector<char> tree(const Case &what, std::vector<std::vector<char>> parts, double post) {
  auto join = [&](size_t at, double factor) {
    parts[at] = added(what, parts[at], parts[at + 1], factor);
    parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(at) + 1);
  };
  size_t power = 1;
  while (power * 2 <= parts.size()) power *= 2;
  for (size_t at = 0; parts.size() > power; ++at) join(at, 1);
  while (parts.size() > 1) {
    bool is_last = parts.size() == 2;
    for (size_t at = 0; at < parts.size(); ++at) join(at, is_last ? post : 1);
  }
  return parts[0];
}

// Any bits, NaN and infinities among them: hosts agree with each other and with the tree, byte by byte.
void test_bits() {
  std::mt19937_64 random(20261130);
  for (uint32_t n : few({2u, 3u, 5u, 6u, 7u, 9u, 12u, 16u})) {
    Cluster cluster(lone(n), doubling());
    for (uint32_t dtype = HVD_UINT8; dtype <= HVD_BFLOAT16; ++dtype)
      for (uint32_t op : few({HVD_SUM, HVD_MIN, HVD_MAX, HVD_PRODUCT})) {
        Case what{op, dtype, 311};
        double post = op == HVD_SUM && dtype != HVD_BOOL ? 1.0 / n : 1;
        PlanOf plan = cluster.add(HVD_COOPERATIVE, what.bytes(), 2, op, dtype, 1, post);
        std::vector<std::vector<char>> parts;
        for (uint32_t rank = 0; rank < n; ++rank) parts.push_back(noise(what, &random));
        std::vector<char> wanted = tree(what, parts, post);
        cluster.run([&](uint32_t rank, NetHost &host, hvd_engine *engine) {
          std::vector<char> data = parts[rank];
          CHECK_EQUAL(world::allreduce(engine, plan.offsets[host.index], data.data(), data.data(), data.size()), HVD_OK);
          CHECK(data == wanted);
        });
        remove_everywhere(cluster, plan);
      }
  }
}

// ---- what hosts can be short of

// Rounds are started in another order on each host, and tokens are few.
void test_tokens_run_out() {
  constexpr uint32_t kPlans = 40;
  for (uint32_t n : {3u, 6u, 9u}) {
    NetOptions options = doubling();
    options.eager_bytes = 512 << 10;
    Cluster cluster(lone(n), options);
    Case what{HVD_SUM, HVD_FLOAT32, 16 << 10};
    std::vector<PlanOf> plans;
    for (uint32_t i = 0; i < kPlans; ++i) plans.push_back(cluster.add(HVD_COOPERATIVE, what.bytes()));
    cluster.run([&](uint32_t rank, NetHost &host, hvd_engine *engine) {
      std::vector<std::vector<char>> data(kPlans);
      std::vector<hvd_op> ops(kPlans);
      for (uint32_t k = 0; k < kPlans; ++k) {
        uint32_t i = rank % 2 == 0 ? (k + 3 * rank) % kPlans : kPlans - 1 - k;
        data[i] = input(what, rank, i);
        ops[i] = start(host, engine, plans[i], what, &data[i]);
      }
      for (uint32_t i = 0; i < kPlans; ++i) {
        CHECK_EQUAL(world::wait_for(engine, ops[i]), HVD_OK);
        CHECK(data[i] == expected(what, n, i));
      }
    });
  }
}

// A host goes on to later rounds of the plan's ring while another still misses parts of this one.
void test_many_rounds_of_one_plan() {
  for (uint32_t depth : {1u, 2u, 16u})
    for (uint32_t n : {3u, 5u, 9u}) {
      Cluster cluster(lone(n), doubling());
      Case what{HVD_SUM, HVD_INT32, 900};
      PlanOf plan = cluster.add(HVD_COOPERATIVE, what.bytes(), depth, HVD_SUM, HVD_INT32);
      cluster.run([&](uint32_t rank, NetHost &host, hvd_engine *engine) {
        std::vector<std::vector<char>> data;
        std::vector<hvd_op> ops(60);
        for (uint32_t i = 0; i < ops.size(); ++i) data.push_back(input(what, rank, i));
        for (uint32_t i = 0; i < ops.size(); ++i) ops[i] = start(host, engine, plan, what, &data[i]);
        for (uint32_t i = 0; i < ops.size(); ++i) {
          CHECK_EQUAL(world::wait_for(engine, ops[i]), HVD_OK);
          CHECK(data[i] == expected(what, n, i));
        }
      });
    }
}

// Some hosts of many: what is sent goes to places of the plan, not to hosts of the epoch.
void test_some_hosts() {
  Cluster cluster(lone(9), doubling());
  const std::vector<uint32_t> ring = {7, 1, 4, 2, 8};
  PlanOf plan{77, std::vector<uint64_t>(9)};
  uint32_t member = 0;
  hvd_plan_spec spec{77, HVD_COOPERATIVE, HVD_INT32, HVD_SUM, 1, 1, 400, 2, 1, &member, HVD_PLAN_REMOTE};
  for (uint32_t host : ring) {
    cluster.add_on(host, &plan, spec, true);
    CHECK_EQUAL(hvd_net_plan_add(cluster.hosts[host]->net, plan.offsets[host], ring.data(), 5, nullptr, 0), HVD_OK);
  }
  Case what{HVD_SUM, HVD_INT32, 100};
  cluster.run([&](uint32_t rank, NetHost &host, hvd_engine *engine) {
    auto at = std::find(ring.begin(), ring.end(), rank);
    for (uint32_t round = 0; at != ring.end() && round < 5; ++round) {
      auto data = input(what, static_cast<uint32_t>(at - ring.begin()), round);
      CHECK_EQUAL(world::allreduce(engine, plan.offsets[host.index], data.data(), data.data(), 400), HVD_OK);
      CHECK(data == expected(what, 5, round));
    }
  });
}

// A plan of all ranks of some hosts; `places` has the place of each rank among its members.
struct RandomPlan {
  Case what;
  PlanOf plan;
  std::vector<uint32_t> ring;
  std::map<uint32_t, uint32_t> places;
  uint32_t rounds = 1;
};

RandomPlan random_plan(Cluster &cluster, uint64_t id, std::mt19937 &random) {
  auto below = [&](uint32_t limit) { return static_cast<uint32_t>(random() % limit); };
  RandomPlan made;
  made.what = {std::vector<uint32_t>{HVD_SUM, HVD_MIN, HVD_MAX, HVD_PRODUCT}[below(4)], below(HVD_BFLOAT16 + 1), std::vector<uint64_t>{0, 1, 2, 333, 4096, 17000, 70000}[below(7)]};
  made.plan = {id, std::vector<uint64_t>(cluster.hosts.size())};
  made.rounds = 1 + below(4);
  for (uint32_t host = 0; host < cluster.hosts.size(); ++host) made.ring.push_back(host);
  std::shuffle(made.ring.begin(), made.ring.end(), random);
  made.ring.resize(2 + below(static_cast<uint32_t>(made.ring.size()) - 1));
  uint32_t depth = 1 + below(3), members[] = {0, 1};
  for (uint32_t host : made.ring) {
    for (uint32_t rank = 0; rank < cluster.n_ranks; ++rank)
      if (cluster.host_of[rank] == host) made.places.emplace(rank, made.places.size());
    hvd_plan_spec spec{id, HVD_COOPERATIVE, made.what.dtype, made.what.op, 1, 1, made.what.bytes(), depth,
                       cluster.hosts[host]->n, members, HVD_PLAN_REMOTE};
    cluster.add_on(host, &made.plan, spec, true);
    CHECK_EQUAL(hvd_net_plan_add(cluster.hosts[host]->net, made.plan.offsets[host], made.ring.data(),
                                 static_cast<uint32_t>(made.ring.size()), nullptr, 0), HVD_OK);
  }
  return made;
}

// Every rank starts the rounds of its plans in an order of its own; rounds of one plan stay in order.
void run_random_plans(Cluster &cluster, const std::vector<RandomPlan> &plans, uint32_t seed) {
  cluster.run([&](uint32_t rank, NetHost &host, hvd_engine *engine) {
    std::mt19937 random(seed * 100 + rank);
    std::vector<std::pair<const RandomPlan *, uint32_t>> all;
    for (const RandomPlan &plan : plans)
      for (uint32_t round = 0; plan.places.count(rank) != 0 && round < plan.rounds; ++round) all.push_back({&plan, 0});
    std::shuffle(all.begin(), all.end(), random);
    std::map<const RandomPlan *, uint32_t> next;
    for (auto &[plan, round] : all) round = next[plan]++;
    std::vector<std::vector<char>> data;
    std::vector<hvd_op> ops;
    for (auto [plan, round] : all) data.push_back(input(plan->what, plan->places.at(rank), round));
    for (size_t i = 0; i < all.size(); ++i) ops.push_back(start(host, engine, all[i].first->plan, all[i].first->what, &data[i]));
    for (size_t i = 0; i < all.size(); ++i) {
      CHECK_EQUAL(world::wait_for(engine, ops[i]), HVD_OK);
      CHECK(data[i] == expected(all[i].first->what, static_cast<uint32_t>(all[i].first->places.size()), all[i].second));
    }
  });
}

void test_random_plans() {
  for (uint32_t seed = 0; seed < 25; ++seed) {
    std::mt19937 random(seed);
    std::vector<uint32_t> ranks(2 + random() % 9);
    for (uint32_t &n : ranks) n = ranks.size() > 8 ? 1 : 1 + random() % 2;
    NetOptions options = doubling();
    options.eager_bytes = random() % 2 == 0 ? 512 << 10 : 8 << 20;
    Cluster cluster(ranks, options);
    std::vector<RandomPlan> plans;
    for (uint64_t id = 1; id <= 12; ++id) plans.push_back(random_plan(cluster, id, random));
    run_random_plans(cluster, plans, seed);
  }
}

// Ranks whose data can't be used fail the round on all hosts, wherever they are; the next one works.
void test_broken_ranks(uint32_t n, const std::vector<uint32_t> &broken) {
  std::vector<uint32_t> ranks(n, 2);
  Cluster cluster(ranks, doubling());
  PlanOf plan = cluster.add(HVD_COOPERATIVE, 4000);
  cluster.run([&](uint32_t rank, NetHost &host, hvd_engine *engine) {
    auto data = ones(1000);
    bool breaks = rank % 2 == 1 && std::find(broken.begin(), broken.end(), rank / 2) != broken.end();
    if (breaks) {  // the last to arrive on its host
      auto view = host.board->plan(plan.offsets[host.index]);
      world::until([&] { return view->entry(0).arrived.load() != 0; });
      view->entry_member(0, 0).data_offset.store(UINT64_MAX - 64);
    }
    hvd_op op = world::start_sum(engine, plan.offsets[host.index], &data);
    CHECK_EQUAL(world::wait_for(engine, op), HVD_E_INVALID);
    data = ones(1000);
    CHECK_EQUAL(world::allreduce(engine, plan.offsets[host.index], data.data(), data.data(), 4000), HVD_OK);
    CHECK(same(data, ones(1000, static_cast<float>(2 * n))));
  });
}

void test_broken_ranks_fail_the_round_everywhere() {
  for (uint32_t place : {0u, 1u, 2u, 4u}) test_broken_ranks(5, {place});
  test_broken_ranks(6, {1, 2, 5});
}

// What the agent of a host does on which all ranks have joined: it arrives for them when others have data.
void arrive_for(NetHost &host, const PlanOf &plan, uint64_t rounds) {
  uint64_t some = 0, total = 0;
  CHECK_EQUAL(hvd_board_watch_arrivals(host.board, 1), HVD_OK);
  for (;;) {
    CHECK_EQUAL(hvd_board_plan_arrive_for(host.board, plan.offsets[host.index], 0, 0, &some), HVD_OK);
    if ((total += some) == rounds) return;
    auto events = host.events(HVD_NET_WANTED);
    CHECK(!events.empty() && events[0].plan_id == plan.id);
  }
}

// They take part with zeros of their own, at any place of the tree.
void test_joined(uint32_t n, const std::vector<uint32_t> &joined, uint64_t count) {
  Cluster cluster(lone(n), doubling());
  PlanOf plan = cluster.add(HVD_COOPERATIVE, count * 4, 4);
  float total = static_cast<float>(n * (n + 1) / 2);
  std::vector<std::thread> agents;
  for (uint32_t host : joined) {
    total -= static_cast<float>(host + 1);
    agents.emplace_back([&, host] { arrive_for(*cluster.hosts[host], plan, 5); });
  }
  cluster.run([&](uint32_t rank, NetHost &host, hvd_engine *engine) {
    bool away = std::find(joined.begin(), joined.end(), rank) != joined.end();
    for (int round = 0; round < 5 && !away; ++round) {
      auto data = ones(count, static_cast<float>(rank + 1));
      CHECK_EQUAL(world::allreduce(engine, plan.offsets[host.index], data.data(), data.data(), count * 4), HVD_OK);
      CHECK(same(data, ones(count, total)));
    }
  });
  for (std::thread &agent : agents) agent.join();
  for (uint32_t host : joined) {
    hvd_arena_info info{};
    world::until([&] { return hvd_arena_stat(cluster.hosts[host]->agent, &info) == HVD_OK && info.used_bytes == 0; });
  }
}

void test_joined_hosts() {
  for (uint32_t joined = 0; joined < 5; ++joined)
    for (uint64_t count : {0u, 1000u}) test_joined(5, {joined}, count);
  const std::vector<std::vector<uint32_t>> several = {{0, 1}, {2, 3}, {4, 5}, {0, 2}, {1, 3}, {0, 1, 2, 3}, {0, 2, 3, 4, 5}};
  for (const auto &joined : several) test_joined(6, joined, 100);
}

// Host 0 of four is paired with 1 and 2; the test speaks for the others.
struct Strangers {
  Strangers() : host(0, 1, 4, doubling()) {
    for (uint32_t other : {1u, 2u, 3u}) {
      int ends[2];
      world::join_by_socketpair(0, 0, 0, ends);
      CHECK_EQUAL(hvd_net_add_peer(host.net, other, 0, ends[0]), HVD_OK);
      fds[other] = ends[1];
    }
    CHECK_EQUAL(hvd_net_start(host.net), HVD_OK);
    uint32_t member = 0, ring[] = {0, 1, 2, 3};
    hvd_plan_spec spec{1, HVD_COOPERATIVE, HVD_INT32, HVD_SUM, 1, 1, 4, 2, 1, &member, HVD_PLAN_REMOTE};
    CHECK_EQUAL(hvd_board_plan_add(host.board, &spec, &plan), HVD_OK);
    CHECK_EQUAL(hvd_net_plan_add(host.net, plan, ring, 4, nullptr, 0), HVD_OK);
  }
  ~Strangers() {
    for (int fd : fds)
      if (fd >= 0) close(fd);
  }
  void say(uint32_t from, const hvd::Frame &frame, int32_t value) {
    CHECK_EQUAL(send(fds[from], &frame, sizeof frame, MSG_NOSIGNAL), static_cast<ssize_t>(sizeof frame));
    if (frame.bytes != 0) CHECK_EQUAL(send(fds[from], &value, 4, MSG_NOSIGNAL), 4);
  }
  NetHost host;
  uint64_t plan = 0;
  int fds[4] = {-1, -1, -1, -1};
};

void test_hosts_that_are_not_paired() {
  using hvd::FrameType;
  for (FrameType type : {FrameType::kEager, FrameType::kWant}) {
    Strangers all;
    all.say(3, world::frame_of(type, 1, 0, type == FrameType::kEager ? 4 : 0), 7);
    auto events = all.host.events(HVD_NET_PEER_LOST);
    CHECK_EQUAL(events[0].host, 3u);
    CHECK(std::string(events[0].text).find("bad frame: ") == 0);
  }
  Strangers all;  // parts in the wrong order, and a credit that nobody needs
  all.say(3, world::frame_of(FrameType::kCredit, 1, 0, 0), 0);
  all.say(2, world::frame_of(FrameType::kEager, 1, 0, 4), 40);
  hvd_engine *engine = all.host.open(0);
  std::vector<int32_t> data{1};
  hvd_op op = 0;
  CHECK_EQUAL(hvd_op_reduce_bound(engine, all.plan, data.data(), data.data(), 4, 0, 0, &op), HVD_OK);
  world::until([&] { return world::info_of(all.host).frames_received == 2; });
  CHECK_EQUAL(hvd_op_poll(engine, op), HVD_PENDING);
  all.say(1, world::frame_of(FrameType::kEager, 1, 0, 4), 500);
  CHECK_EQUAL(world::wait_for(engine, op), HVD_OK);
  CHECK_EQUAL(data[0], 541);
  hvd_engine_close(engine);
}

}  // namespace

int main() {
  RUN(test_barrier);
  RUN(test_sizes);
  RUN(test_dtypes_and_ops);
  RUN(test_bits);
  RUN(test_tokens_run_out);
  RUN(test_many_rounds_of_one_plan);
  RUN(test_some_hosts);
  RUN(test_random_plans);
  RUN(test_broken_ranks_fail_the_round_everywhere);
  RUN(test_joined_hosts);
  RUN(test_hosts_that_are_not_paired);
}
