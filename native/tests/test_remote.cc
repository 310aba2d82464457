// The board's side of rounds between hosts, without a net: the test does by hand what a net does.
#include <limits>
#include <map>
#include <vector>

#include "bell.h"
#include "board.h"
#include "check.h"
#include "neutral.h"
#include "world.h"

using world::Host;

namespace {

struct RemoteHost : Host {
  explicit RemoteHost(uint32_t n_ranks) : Host(n_ranks) {
    CHECK_EQUAL(hvd_arena_create(1ull << 28, &agent), HVD_OK);
    fds = arena_fds;
    fds.push_back(hvd_arena_fd(agent));
  }
  ~RemoteHost() { hvd_arena_close(agent); }
  uint64_t add_remote(const std::vector<uint32_t> &members, uint32_t kind, uint64_t bytes, double prescale = 1,
                      uint32_t depth = 2) {
    hvd_plan_spec spec{77, kind, HVD_FLOAT32, HVD_SUM, prescale, 0.5, bytes, depth, static_cast<uint32_t>(members.size()),
                       members.data(), HVD_PLAN_REMOTE};
    uint64_t offset = 0;
    CHECK_EQUAL(hvd_board_plan_add(board, &spec, &offset), HVD_OK);
    return offset;
  }
  hvd_engine *open_remote(uint32_t rank) {
    hvd_engine *engine = nullptr;
    CHECK_EQUAL(hvd_engine_open(board_fd, arenas[rank], rank, fds.data(), n + 1, &engine), HVD_OK);
    return engine;
  }
  float *data_of(const hvd::PlanView &plan, uint64_t round, uint32_t member) {
    return reinterpret_cast<float *>(static_cast<char *>(hvd_arena_base(arenas[plan.members[member]])) +
                                     plan.entry_member(round, member).data_offset.load());
  }
  hvd_arena *agent = nullptr;
  std::vector<int> fds;
};

bool is_signalled(const Host &host, uint64_t plan) {
  uint32_t bit = hvd::signal_bit(plan);
  auto &net = host.board->view.header->net;
  bool set = (net.words[bit / 64].exchange(0) >> (bit % 64) & 1) != 0;
  return set && (net.summary.exchange(0) >> (bit / 64) & 1) != 0;
}

hvd_op submit(hvd_engine *engine, uint64_t plan, std::vector<float> &data, uint32_t flags = 0) {
  hvd_op op = 0;
  CHECK_EQUAL(hvd_op_reduce_bound(engine, plan, data.data(), data.data(), data.size() * 4, flags, 0, &op), HVD_OK);
  return op;
}

// Chunks are reduced into the leader's buffer alone, with the pre-scale; the round ends only when the net says so.
void test_local_stage() {
  constexpr uint64_t kCount = 700001;
  RemoteHost host(3);
  uint64_t offset = host.add_remote({2, 0}, HVD_COOPERATIVE, kCount * 4, 2);
  auto plan = host.board->plan(offset);
  CHECK(plan->n_chunks > 1 && plan->n_claims == plan->n_chunks);
  hvd_engine *a = host.open_remote(0), *b = host.open_remote(2);
  std::vector<float> x(kCount, 1.0f), y(kCount, 5.0f);
  hvd_op op_a = submit(a, offset, x), op_b = submit(b, offset, y, HVD_OP_BLOCKING);
  CHECK(is_signalled(host, offset));
  CHECK_EQUAL(hvd_op_wait(a, op_a, 20), HVD_PENDING);
  CHECK(is_signalled(host, offset));
  for (uint32_t c = 0; c < plan->n_chunks; ++c) CHECK_EQUAL(plan->ready(0, c).load(), 1u << 8);
  hvd_round_info open[2];
  uint32_t n_open = 0;
  CHECK_EQUAL(hvd_board_scan(host.board, open, 2, &n_open), HVD_OK);
  CHECK(n_open == 1 && open[0].phase == 3 && open[0].n_arrived == 2);
  CHECK_EQUAL(hvd::leader_of(*plan, 0), 0u);
  float *leader = host.data_of(*plan, 0, 0), *other = host.data_of(*plan, 0, 1);
  CHECK(leader[0] == 12.0f && leader[kCount - 1] == 12.0f && other[0] == 1.0f && other[kCount - 1] == 1.0f);
  leader[7] = other[7] = 99.0f;
  hvd::complete_round(*plan, 0, 0);
  CHECK_EQUAL(world::wait_for(a, op_a), HVD_OK);
  CHECK_EQUAL(world::wait_for(b, op_b), HVD_OK);
  CHECK(hvd::all_read(*plan, 0) && !is_signalled(host, offset));  // no business of the net's
  CHECK(x[7] == 99.0f && y[7] == 99.0f);
  hvd_engine_close(a);
  hvd_engine_close(b);
}

void test_lone_member_needs_no_claims() {
  RemoteHost host(1);
  uint64_t offset = host.add_remote({0}, HVD_COOPERATIVE, 4 << 20);
  auto plan = host.board->plan(offset);
  CHECK(plan->n_claims == 0 && plan->n_chunks != 0);
  hvd_engine *a = host.open_remote(0);
  std::vector<float> x(1 << 20, 3.0f);
  hvd_op op = submit(a, offset, x, HVD_OP_BLOCKING);
  CHECK_EQUAL(hvd_op_wait(a, op, 1), HVD_PENDING);
  CHECK(host.data_of(*plan, 0, 0)[77] == 3.0f);
  hvd::complete_round(*plan, 0, static_cast<uint64_t>(-HVD_E_INVALID));
  CHECK_EQUAL(world::wait_for(a, op), HVD_E_INVALID);
  hvd_engine_close(a);
}

// Who leaves a failed round waits for the net, and the net takes no hold in a round that was left.
void test_net_hold() {
  RemoteHost host(1);
  uint64_t offset = host.add_remote({0}, HVD_COOPERATIVE, 0);
  auto plan = host.board->plan(offset);
  hvd::RoundSite site{host.board->view, *plan};
  hvd_engine *a = host.open_remote(0);
  std::vector<float> none;
  hvd_op first = submit(a, offset, none), second = submit(a, offset, none);
  CHECK_EQUAL(hvd_op_wait(a, first, 1), HVD_PENDING);
  CHECK(hvd::take_net_hold(site, 0) && hvd::round_has_holder(site, 0));
  CHECK_EQUAL(hvd_board_plan_remove(host.board, offset), HVD_PENDING);
  hvd_board_fail(host.board, HVD_E_FAILED, "over");
  CHECK_EQUAL(world::wait_for(a, second), HVD_E_FAILED);
  CHECK(!hvd::take_net_hold(site, 1));
  CHECK_EQUAL(hvd_op_wait(a, first, 5), HVD_PENDING);
  hvd::end_net_hold(site, 0);
  CHECK_EQUAL(world::wait_for(a, first), HVD_E_FAILED);
  hvd_engine_close(a);
}

// The agent arrives for a member on another host, whose data and meta lie in its arena.
void test_remote_member_of_a_pull() {
  RemoteHost host(1);
  uint64_t offset = host.add_remote({1, 0, 1}, HVD_PULL, 0);
  auto plan = host.board->plan(offset);
  hvd::RoundSite site{host.board->view, *plan};
  hvd_engine *a = host.open_remote(0);
  float mine = 4;
  hvd_segment segment{&mine, nullptr, 4};
  int64_t meta = 7;
  hvd_span reads[3] = {{0, 4}, {0, 4}, {0, 0}};
  hvd_op op = 0;
  CHECK_EQUAL(hvd_op_pull(a, &segment, 1, &meta, 1, reads, 2, 0, &op), HVD_OK);
  CHECK_EQUAL(hvd_op_bind(a, op, offset, nullptr), HVD_E_INVALID);
  CHECK_EQUAL(hvd_op_fail(a, op), HVD_OK);
  CHECK_EQUAL(world::wait_for(a, op), HVD_E_CANCELLED);
  CHECK_EQUAL(hvd_op_pull(a, &segment, 1, &meta, 1, reads, 3, 0, &op), HVD_OK);
  CHECK_EQUAL(hvd_op_bind(a, op, offset, nullptr), HVD_OK);
  CHECK(is_signalled(host, offset));
  CHECK_EQUAL(plan->entry_member(0, 1).n_reads.load(), 3u);
  char *block = static_cast<char *>(hvd_arena_alloc(host.agent, 64));
  *reinterpret_cast<int64_t *>(block) = 11;
  *reinterpret_cast<float *>(block + 32) = 6;
  uint64_t at = static_cast<uint64_t>(block - static_cast<char *>(hvd_arena_base(host.agent)));
  hvd_board_fail(host.board, HVD_E_CLOSED, "shut down");  // all members here have arrived: their peers' data may come
  CHECK_EQUAL(hvd_op_wait(a, op, 1), HVD_PENDING);
  for (uint32_t m : {0u, 2u})
    CHECK(hvd::arrive(site, 0, m, {at + 32, 4, at, 1, 0}) == hvd::Arrival::kArrived);
  CHECK_EQUAL(world::wait_for(a, op), HVD_OK);
  float out = 0;
  hvd_copy copy{2, 0, &out, 4};
  CHECK_EQUAL(hvd_op_pull_copy(a, op, &copy, 1), HVD_OK);
  CHECK(out == 6);
  CHECK_EQUAL(hvd_op_meta(a, op, 0, &meta, 1, nullptr, nullptr), HVD_OK);
  CHECK_EQUAL(meta, 11);
  CHECK_EQUAL(hvd_op_pull_reduce(a, op, 0, &out, 4), HVD_OK);
  CHECK(out == 8);
  CHECK_EQUAL(hvd_op_done(a, op), HVD_OK);
  CHECK(is_signalled(host, offset));
  for (int i = 0; i < 2; ++i) hvd::mark_read(site, 0);
  CHECK(hvd::all_read(*plan, 0) && is_signalled(host, offset));  // what the net keeps for readers may go
  hvd_engine_close(a);
}

void test_pull_without_memory_for_a_member() {
  RemoteHost host(1);
  uint64_t offset = host.add_remote({0, 1}, HVD_PULL, 0);
  auto plan = host.board->plan(offset);
  hvd_engine *a = host.open_remote(0);
  hvd_op op = 0;
  CHECK_EQUAL(hvd_op_pull(a, nullptr, 0, nullptr, 0, nullptr, 0, 0, &op), HVD_OK);
  CHECK_EQUAL(hvd_op_bind(a, op, offset, nullptr), HVD_OK);
  CHECK(hvd::arrive({host.board->view, *plan}, 0, 1, {0, 0, 0, 0, hvd::kNoMemory}) == hvd::Arrival::kArrived);
  CHECK_EQUAL(world::wait_for(a, op), HVD_E_MEMORY);
  hvd_engine_close(a);
}

// All local members have joined: data from another host make rounds that the agent must arrive in.
void test_zeros_for_wanted_rounds() {
  RemoteHost host(1);
  uint64_t offset = host.add_remote({0}, HVD_COOPERATIVE, 4096, 1, 4), rounds = 9;
  CHECK_EQUAL(hvd_board_plan_arrive_for(host.board, offset, 0, 0, &rounds), HVD_OK);
  CHECK_EQUAL(rounds, 0u);
  host.board->plan(offset)->header->wanted.store(2);
  CHECK_EQUAL(hvd_board_plan_arrive_for(host.board, offset, 0, 0, &rounds), HVD_OK);
  CHECK_EQUAL(rounds, 2u);
  CHECK_EQUAL(hvd::leader_of(*host.board->plan(offset), 0), 1u);
}

// What a host without data puts into a round changes no result of the others, whatever dtype and reduction.
void test_neutral_values() {
  const float infinity = std::numeric_limits<float>::infinity();
  const std::map<uint32_t, float> wanted{{HVD_SUM, 0}, {HVD_MIN, infinity}, {HVD_MAX, -infinity}, {HVD_PRODUCT, 1}};
  for (auto [op, value] : wanted) {
    for (int absent : {0, 1}) {
      RemoteHost host(1);
      uint32_t member = 0;
      hvd_plan_spec spec{5, HVD_COOPERATIVE, HVD_FLOAT32, op, 1, 1, 64, 2, 1, &member, HVD_PLAN_REMOTE};
      uint64_t offset = 0, rounds = 0;
      CHECK_EQUAL(hvd_board_plan_add(host.board, &spec, &offset), HVD_OK);
      auto plan = host.board->plan(offset);
      plan->header->wanted.store(1);
      CHECK_EQUAL(hvd_board_plan_arrive_for(host.board, offset, 0, absent, &rounds), HVD_OK);
      std::vector<float> filled(16, 7);
      hvd::fill_neutral(*plan, 0, reinterpret_cast<char *>(filled.data()));
      CHECK(filled == std::vector<float>(16, absent != 0 ? value : 0.0f));
    }
  }
}

void test_bad_specifications() {
  RemoteHost host(2);
  uint32_t members[] = {2, 0, 1};
  uint64_t offset = 0;
  auto status = [&](uint32_t kind, const uint32_t *list, uint32_t n, uint32_t flags) {
    hvd_plan_spec spec{5, kind, HVD_FLOAT32, HVD_SUM, 1, 1, 0, 2, n, list, flags};
    return hvd_board_plan_add(host.board, &spec, &offset);
  };
  CHECK_EQUAL(status(HVD_PULL, members, 3, HVD_PLAN_REMOTE), HVD_OK);
  CHECK_EQUAL(status(HVD_PULL, members, 3, 0), HVD_E_INVALID);
  CHECK_EQUAL(status(HVD_COOPERATIVE, members, 2, HVD_PLAN_REMOTE), HVD_E_INVALID);
  CHECK_EQUAL(status(HVD_PULL, members, 1, HVD_PLAN_REMOTE), HVD_E_INVALID);  // nobody lives here
  CHECK_EQUAL(status(HVD_PULL, members, 3, 2), HVD_E_INVALID);
  CHECK_EQUAL(status(HVD_COOPERATIVE, members + 1, 2, HVD_PLAN_REMOTE), HVD_OK);
}

}  // namespace

int main() {
  RUN(test_local_stage);
  RUN(test_lone_member_needs_no_claims);
  RUN(test_net_hold);
  RUN(test_remote_member_of_a_pull);
  RUN(test_pull_without_memory_for_a_member);
  RUN(test_zeros_for_wanted_rounds);
  RUN(test_neutral_values);
  RUN(test_bad_specifications);
}
