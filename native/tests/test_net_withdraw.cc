// Rounds that members leave: withdrawn, closed, cancelled; and ranks that have joined.
#include <atomic>

#include "board.h"
#include "check.h"
#include "net_trouble.h"

using world::Cluster;
using world::answer_to;
using world::Gate;
using world::NetHost;
using world::NetOptions;
using world::PlanOf;
using world::ones;
using world::same;
using world::start_sum;

namespace {

// A rank that does not come, and whether its host says goodbye.
struct Missing {
  uint32_t rank;
  bool goes;
};

NetOptions by(uint32_t algorithm) {
  NetOptions options;
  options.algorithm = algorithm;
  options.agent_arena_bytes = 1 << 26;
  return options;
}

// An op that is given up before its round opened closes that round on its host; later rounds run.
void test_cancelled_round_is_passed() {
  Cluster cluster({1, 1});
  PlanOf sum = cluster.add(HVD_COOPERATIVE, 400, 4), pull = cluster.add(HVD_PULL, 0, 4);
  for (auto &host : cluster.hosts)
    for (uint64_t offset : {sum.offsets[host->index], pull.offsets[host->index]})
      CHECK_EQUAL(hvd_board_plan_limit(host->board, offset, 0), HVD_OK);
  cluster.run([&](uint32_t, NetHost &host, hvd_engine *engine) {
    auto data = ones(100);
    hvd_op op = 0;
    CHECK_EQUAL(hvd_op_reduce_bound(engine, sum.offsets[host.index], data.data(), data.data(), 400, 0, 0, &op), HVD_MARKED);
    CHECK_EQUAL(hvd_op_fail(engine, op), HVD_OK);
    CHECK_EQUAL(world::wait_for(engine, op), HVD_E_CANCELLED);
  });
  for (auto &host : cluster.hosts)
    for (uint64_t offset : {sum.offsets[host->index], pull.offsets[host->index]}) {
      auto plan = host->board->plan(offset);  // as if a member had arrived and given up
      CHECK(hvd::close_unopened({host->board->view, *plan}, 0, hvd::kCancelled));
      plan->arrivals[host->index == 0 || !plan->is_pull() ? 0 : 1].store(1);
      CHECK_EQUAL(hvd_board_plan_limit(host->board, offset, hvd::kNoLimit), HVD_OK);
    }
  cluster.run([&](uint32_t, NetHost &host, hvd_engine *engine) {
    auto data = ones(100);
    uint64_t round = 0;
    hvd_segment segment{data.data(), data.data(), 400};
    hvd_op op = 0;
    CHECK_EQUAL(hvd_op_reduce(engine, &segment, 1, 0, 0, &op), HVD_OK);
    CHECK_EQUAL(hvd_op_bind(engine, op, sum.offsets[host.index], &round), HVD_OK);
    CHECK_EQUAL(round, 1u);
    CHECK_EQUAL(world::wait_for(engine, op), HVD_OK);
    CHECK(same(data, ones(100, 2)));
  });
}

// All ranks of a host have joined: its agent learns that others have data, arrives with zeros, and the round ends.
void test_joined_host() {
  for (uint64_t count : {0u, 1000u, 100000u}) {
    Cluster cluster({1, 2, 1});
    PlanOf plan = cluster.add(HVD_COOPERATIVE, count * 4, 4);
    hvd_board *board = cluster.hosts[1]->board;
    std::atomic<bool> over{false};
    std::thread agent([&] {
      CHECK_EQUAL(hvd_board_watch_arrivals(board, 1), HVD_OK);
      uint64_t rounds = 0, total = 0;
      auto arrive = [&] {
        for (uint32_t local : {0u, 1u}) {
          CHECK_EQUAL(hvd_board_plan_arrive_for(board, plan.offsets[1], local, 0, &rounds), HVD_OK);
          total += rounds;
        }
      };
      for (arrive(); total < 10;) {
        CHECK(!over);
        auto events = cluster.hosts[1]->events(HVD_NET_WANTED, 5);
        CHECK(!events.empty());
        CHECK(events[0].plan_id == plan.id && events[0].host == 1);
        arrive();
      }
    });
    cluster.run([&](uint32_t rank, NetHost &host, hvd_engine *engine) {
      for (int round = 0; round < 5 && host.index != 1; ++round) {
        auto data = ones(count, static_cast<float>(rank + 1));
        CHECK_EQUAL(world::allreduce(engine, plan.offsets[host.index], data.data(), data.data(), count * 4), HVD_OK);
        CHECK(same(data, ones(count, 5)));
      }
    });
    agent.join();
    over = true;
    hvd_arena_info info{};  // the joined host may be the last to end
    world::until([&] { return hvd_arena_stat(cluster.hosts[1]->agent, &info) == HVD_OK && info.used_bytes == 0; });
  }
}

// All but the last rank are in a round, open on their hosts, in which that rank never arrives: they get out, and go on elsewhere.
void test_withdrawn_rounds(const std::vector<uint32_t> &ranks, uint64_t count, uint32_t algorithm) {
  Cluster cluster(ranks, by(algorithm));
  PlanOf old = cluster.add(HVD_COOPERATIVE, count * 4), other = cluster.add(HVD_COOPERATIVE, count * 4);
  float total = static_cast<float>(cluster.n_ranks);
  Gate in;
  std::atomic<bool> limited{false};
  std::thread agents([&] {
    in.wait(cluster.n_ranks);
    world::settle(cluster);  // what travels has come as far as it can
    for (auto &host : cluster.hosts) CHECK_EQUAL(hvd_board_plan_limit(host->board, old.offsets[host->index], 1), HVD_OK);
    for (auto &host : cluster.hosts) CHECK_EQUAL(answer_to([&] { return hvd_net_plan_limit(host->net, old.id, 1); }), HVD_OK);
    limited = true;
  });
  cluster.run([&](uint32_t rank, NetHost &host, hvd_engine *engine) {
    auto data = ones(count);
    CHECK_EQUAL(world::allreduce(engine, old.offsets[host.index], data.data(), data.data(), count * 4), HVD_OK);
    CHECK(same(data, ones(count, total)));
    data = ones(count);
    bool away = rank + 1 == cluster.n_ranks;
    hvd_op op = away ? 0 : start_sum(engine, old.offsets[host.index], &data);
    in.arrive();
    while (!limited)
      if (!away) CHECK_EQUAL(hvd_op_poll(engine, op), HVD_PENDING);
    if (!away) {
      CHECK_EQUAL(hvd_op_unbind(engine, op), HVD_OK);
      CHECK_EQUAL(hvd_op_fail(engine, op), HVD_OK);
      CHECK_EQUAL(world::wait_for(engine, op), HVD_E_CANCELLED);
    }
    data = ones(count);
    CHECK_EQUAL(world::allreduce(engine, other.offsets[host.index], data.data(), data.data(), count * 4), HVD_OK);
    CHECK(same(data, ones(count, total)));
  });
  agents.join();
  remove_everywhere(cluster, old);
  for (auto &host : cluster.hosts) CHECK_EQUAL(host->events().size(), 0u);
}

// How an op that is bound again has its data.
struct Held {
  bool blocking, in_arena;
  uint32_t n_segments;
  bool is_spent() const { return in_arena; }  // its input was where the sum went
};

float value_of(uint32_t rank, uint64_t at) { return static_cast<float>((at * 7 + rank * 3) % 101); }

// A rank's buffer, in halves that lie one behind the other in the payload; `count` is even and a half has no padding.
class Buffer {
 public:
  Buffer(hvd_arena *arena, const Held &held, uint64_t count) : arena_(arena), held_(held), plain_(count) {
    data_ = held.in_arena ? static_cast<float *>(hvd_arena_alloc(arena, count * 4)) : plain_.data();
    CHECK(data_ != nullptr);
  }
  ~Buffer() {
    if (held_.in_arena) CHECK_EQUAL(hvd_arena_free(arena_, data_), HVD_OK);
  }
  Buffer(const Buffer &) = delete;
  Buffer &operator=(const Buffer &) = delete;
  void fill(uint32_t rank) {
    for (uint64_t i = 0; i < plain_.size(); ++i) data_[i] = value_of(rank, i);
  }
  hvd_op submit(hvd_engine *engine) const {
    uint64_t part = plain_.size() / held_.n_segments;
    std::vector<hvd_segment> segments;
    for (uint32_t i = 0; i < held_.n_segments; ++i) segments.push_back({data_ + i * part, data_ + i * part, part * 4});
    hvd_op op = 0;
    uint32_t flags = held_.blocking ? HVD_OP_BLOCKING : 0;
    CHECK_EQUAL(hvd_op_reduce(engine, segments.data(), held_.n_segments, flags, 0, &op), HVD_OK);
    return op;
  }
  bool is_sum(uint32_t n_ranks) const {
    for (uint64_t i = 0; i < plain_.size(); ++i) {
      float sum = 0;
      for (uint32_t r = 0; r < n_ranks; ++r) sum += value_of(r, i);
      if (data_[i] != sum * 2) return false;  // factors 4 and 1/2
    }
    return true;
  }

 private:
  hvd_arena *arena_;
  const Held held_;
  std::vector<float> plain_;
  float *data_;
};

// Off a round that had opened here: where the input is gone, the op says so and ends; else it is as it was.
hvd_op take_off(hvd_engine *engine, hvd_op op, const Held &held, uint64_t next, Buffer *buffer, uint32_t rank) {
  CHECK_EQUAL(hvd_op_unbind(engine, op), held.is_spent() ? HVD_E_SPENT : HVD_OK);
  if (!held.is_spent()) return op;
  CHECK_EQUAL(hvd_op_bind(engine, op, next, nullptr), HVD_E_SPENT);
  CHECK_EQUAL(hvd_op_fail(engine, op), HVD_OK);
  CHECK_EQUAL(world::wait_for(engine, op), HVD_E_CANCELLED);
  buffer->fill(rank);
  return buffer->submit(engine);
}

// The ops of a round that is open on some hosts, in which their data were reduced already, go to another plan: nothing is added twice.
void test_bound_again(const std::vector<uint32_t> &ranks, const Held &held, uint64_t count, uint32_t algorithm) {
  Cluster cluster(ranks, by(algorithm));
  auto add = [&] { return cluster.add(HVD_COOPERATIVE, count * 4, 2, HVD_SUM, HVD_FLOAT32, 4, 0.5); };
  PlanOf old = add(), other = add();
  Gate in;
  std::atomic<bool> limited{false};
  std::thread agents([&] {
    in.wait(cluster.n_ranks);
    auto &first = *cluster.hosts[0];
    auto view = first.board->plan(old.offsets[0]);
    for (uint32_t c = 0; c < (held.blocking ? 1 : view->n_claims); ++c)
      world::until([&] { return view->ready(0, c).load() != 0; });
    world::settle(cluster);
    for (auto &host : cluster.hosts) CHECK_EQUAL(hvd_board_plan_limit(host->board, old.offsets[host->index], 0), HVD_OK);
    for (auto &host : cluster.hosts) CHECK_EQUAL(answer_to([&] { return hvd_net_plan_limit(host->net, old.id, 0); }), HVD_OK);
    limited = true;
  });
  cluster.run([&](uint32_t rank, NetHost &host, hvd_engine *engine) {
    uint64_t next = other.offsets[host.index];
    Buffer buffer(host.arenas[cluster.local_of[rank]], held, count);
    buffer.fill(rank);
    hvd_op op = buffer.submit(engine);
    bool away = rank + 1 == cluster.n_ranks;
    if (!away) CHECK_EQUAL(hvd_op_bind(engine, op, old.offsets[host.index], nullptr), HVD_OK);
    in.arrive();
    while (!limited)
      if (!away) CHECK_EQUAL(hvd_op_poll(engine, op), HVD_PENDING);
    if (!away) op = take_off(engine, op, held, next, &buffer, rank);
    CHECK_EQUAL(hvd_op_bind(engine, op, next, nullptr), HVD_OK);
    CHECK_EQUAL(world::wait_for(engine, op), HVD_OK);
    CHECK(buffer.is_sum(cluster.n_ranks));
  });
  agents.join();
  remove_everywhere(cluster, old);
}

// Boards are closed before one rank has arrived: the others hear so at once, whether its host stays or goes.
void test_closed_without_a_member(const std::vector<uint32_t> &ranks, const Missing &missing, uint32_t kind, uint64_t count,
                                  uint32_t algorithm) {
  Cluster cluster(ranks, by(algorithm));
  PlanOf plan = cluster.add(kind, kind == HVD_PULL ? 0 : count * 4);
  Gate in, out;
  std::thread agents([&] {
    in.wait(cluster.n_ranks);
    world::settle(cluster);
    if (missing.goes) cluster.hosts[cluster.host_of[missing.rank]]->close_net();
    for (auto &host : cluster.hosts) CHECK_EQUAL(hvd_board_fail(host->board, HVD_E_CLOSED, "shut down"), HVD_OK);
  });
  cluster.run([&](uint32_t rank, NetHost &host, hvd_engine *engine) {
    auto data = ones(count);
    bool away = rank == missing.rank;
    hvd_op op = 0;
    hvd_segment segment{data.data(), nullptr, count * 4};
    if (!away && kind == HVD_PULL) {
      CHECK_EQUAL(hvd_op_pull(engine, &segment, 1, nullptr, 0, nullptr, 0, 0, &op), HVD_OK);
      CHECK_EQUAL(hvd_op_bind(engine, op, plan.offsets[host.index], nullptr), HVD_OK);
    } else if (!away) {
      op = start_sum(engine, plan.offsets[host.index], &data);
    }
    in.arrive();
    if (!away) CHECK_EQUAL(world::wait_for(engine, op), HVD_E_CLOSED);
    out.arrive();
    out.wait(cluster.n_ranks);
  });
  agents.join();
  for (auto &host : cluster.hosts)
    if (host->net != nullptr) CHECK_EQUAL(host->events().size(), 0u);
}

void test_rounds_that_never_finish() {
  for (const auto &ranks : {std::vector<uint32_t>{1, 1}, {1, 1, 1}, {2, 1}, {2, 2, 1, 1}, {1, 2}}) {
    for (uint64_t count : {uint64_t{100}, uint64_t{400001}}) test_withdrawn_rounds(ranks, count, HVD_NET_BY_SIZE);
    test_withdrawn_rounds(ranks, 100, HVD_NET_DOUBLING);
  }
  for (uint32_t n : {5u, 9u}) test_withdrawn_rounds(std::vector<uint32_t>(n, 1), 100, HVD_NET_DOUBLING);
}

void test_ops_that_are_bound_again() {
  for (uint64_t count : {uint64_t{96}, uint64_t{40000}})
    for (const auto &ranks : {std::vector<uint32_t>{2, 1}, {1, 1}, {1, 1, 1}, {2, 2, 1}})
      for (const Held &held : {Held{false, false, 1}, {true, false, 2}, {false, true, 1}})
        test_bound_again(ranks, held, count, HVD_NET_BY_SIZE);
  for (const Held &held : {Held{false, false, 2}, {true, false, 1}, {true, true, 2}})  // more chunks than a window has slots
    test_bound_again({2, 1}, held, 4300000, HVD_NET_BY_SIZE);
  for (bool in_arena : {false, true}) test_bound_again({2, 1, 1}, {false, in_arena, 1}, 96, HVD_NET_DOUBLING);
}

// Not for an op whose round never opened: its input is what it was, wherever it lies.
void test_unopened_op_is_bound_again() {
  Held held{false, true, 1};
  constexpr uint64_t kCount = 400000;
  Cluster cluster({2, 1});
  auto add = [&] { return cluster.add(HVD_COOPERATIVE, kCount * 4, 2, HVD_SUM, HVD_FLOAT32, 4, 0.5); };
  PlanOf old = add(), other = add();
  for (auto &host : cluster.hosts) CHECK_EQUAL(hvd_board_plan_limit(host->board, old.offsets[host->index], 0), HVD_OK);
  for (auto &host : cluster.hosts) CHECK_EQUAL(answer_to([&] { return hvd_net_plan_limit(host->net, old.id, 0); }), HVD_OK);
  cluster.run([&](uint32_t rank, NetHost &host, hvd_engine *engine) {
    Buffer buffer(host.arenas[cluster.local_of[rank]], held, kCount);
    buffer.fill(rank);
    hvd_op op = buffer.submit(engine);
    CHECK_EQUAL(hvd_op_bind(engine, op, old.offsets[host.index], nullptr), HVD_MARKED);
    CHECK_EQUAL(hvd_op_unbind(engine, op), HVD_OK);
    CHECK_EQUAL(hvd_op_bind(engine, op, other.offsets[host.index], nullptr), HVD_OK);
    CHECK_EQUAL(world::wait_for(engine, op), HVD_OK);
    CHECK(buffer.is_sum(cluster.n_ranks));
  });
}

void test_closed_rounds_that_never_finish() {
  for (const auto &ranks : {std::vector<uint32_t>{1, 1}, {1, 1, 1}, {1, 2}, {1, 1, 1, 1}})
    for (bool goes : {false, true}) {
      if (goes && ranks.back() != 1) continue;
      Missing last{0, goes};
      for (uint32_t n : ranks) last.rank += n;
      --last.rank;
      test_closed_without_a_member(ranks, last, HVD_COOPERATIVE, 100, HVD_NET_BY_SIZE);
      test_closed_without_a_member(ranks, last, HVD_COOPERATIVE, 400001, HVD_NET_BY_SIZE);
      test_closed_without_a_member(ranks, last, HVD_PULL, 1000, HVD_NET_BY_SIZE);
    }
}

// Whatever the missing one's place in the tree: hosts that never hear of it themselves are told.
void test_closed_trees_that_never_finish() {
  for (uint32_t n : {3u, 4u, 5u, 6u})
    for (uint32_t place = 0; place < n; ++place)
      for (bool goes : {false, true})
        test_closed_without_a_member(std::vector<uint32_t>(n, 1), {place, goes}, HVD_COOPERATIVE, 100, HVD_NET_DOUBLING);
}

}  // namespace

int main() {
  RUN(test_cancelled_round_is_passed);
  RUN(test_joined_host);
  RUN(test_rounds_that_never_finish);
  RUN(test_ops_that_are_bound_again);
  RUN(test_unopened_op_is_bound_again);
  RUN(test_closed_rounds_that_never_finish);
  RUN(test_closed_trees_that_never_finish);
}
