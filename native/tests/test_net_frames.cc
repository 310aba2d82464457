// Frames that come too early, and frames that lie.
#include <cstring>
#include <random>
#include <unistd.h>

#include "check.h"
#include "net_trouble.h"

using hvd::Frame;
using hvd::FrameType;
using world::Cluster;
using world::answer_to;
using world::Impostor;
using world::NetHost;
using world::NetOptions;
using world::PlanOf;
using world::frame_of;
using world::ones;
using world::same;

namespace {

constexpr uint32_t kWays[] = {HVD_NET_BY_SIZE, HVD_NET_DOUBLING};

NetOptions by(uint32_t algorithm) {
  NetOptions options = Impostor::quick();
  options.algorithm = algorithm;
  return options;
}

// Frames come before the plan is known here.
void test_parked_frames() {
  Cluster cluster({1, 1});
  PlanOf plan{7, {0, 0}}, pull{8, {0, 0}};
  uint32_t members[] = {0, 1}, turned[] = {1, 0};
  hvd_plan_spec spec{7, HVD_COOPERATIVE, HVD_FLOAT32, HVD_SUM, 1, 1, 4000, 8, 1, members, HVD_PLAN_REMOTE};
  hvd_plan_spec other{8, HVD_PULL, HVD_FLOAT32, HVD_SUM, 1, 1, 0, 8, 2, members, HVD_PLAN_REMOTE};
  hvd_plan_spec large{9, HVD_COOPERATIVE, HVD_FLOAT32, HVD_SUM, 1, 1, 4000000, 8, 1, members, HVD_PLAN_REMOTE};
  PlanOf big{9, {0, 0}};
  std::vector<std::pair<PlanOf *, hvd_plan_spec *>> all = {{&plan, &spec}, {&pull, &other}, {&big, &large}};
  for (auto [which, what] : all) {
    if (what->kind == HVD_PULL) what->members = members;
    cluster.add_on(0, which, *what);
    if (what->kind == HVD_PULL) what->members = turned;
    cluster.add_on(1, which, *what, true);
  }
  cluster.run([&](uint32_t rank, NetHost &host, hvd_engine *engine) {
    std::vector<std::vector<float>> data(8, ones(1000)), more(2, ones(1000000));
    std::vector<hvd_op> ops(8), pulls(4), bigs(2);
    for (int i = 0; i < 8; ++i)
      CHECK_EQUAL(hvd_op_reduce_bound(engine, plan.offsets[rank], data[i].data(), data[i].data(), 4000, 0, 0, &ops[i]), HVD_OK);
    for (int i = 0; i < 2; ++i)
      CHECK_EQUAL(hvd_op_reduce_bound(engine, big.offsets[rank], more[i].data(), more[i].data(), 4000000, 0, 0, &bigs[i]),
                  HVD_OK);
    auto mine = ones(60000, static_cast<float>(rank));
    for (int i = 0; i < 4; ++i) {
      hvd_segment segment{mine.data(), nullptr, 240000};
      CHECK_EQUAL(hvd_op_pull(engine, &segment, 1, nullptr, 0, nullptr, 0, 0, &pulls[i]), HVD_OK);
      CHECK_EQUAL(hvd_op_bind(engine, pulls[i], pull.offsets[rank], nullptr), HVD_OK);
    }
    if (rank == 1) {
      hvd_net_info info{};
      while (info.parked_bytes < 8 * 4000 + 4 * 240000) CHECK_EQUAL(answer_to([&] { return hvd_net_stat(host.net, &info); }), HVD_OK);
      for (const PlanOf *each : {&plan, &pull, &big}) cluster.net_add(1, *each);
    }
    for (int i = 0; i < 8; ++i) CHECK_EQUAL(world::wait_for(engine, ops[i]), HVD_OK);
    for (int i = 0; i < 8; ++i) CHECK(same(data[i], ones(1000, 2)));
    for (int i = 0; i < 2; ++i) CHECK_EQUAL(world::wait_for(engine, bigs[i]), HVD_OK);
    for (int i = 0; i < 2; ++i) CHECK(same(more[i], ones(1000000, 2)));
    for (int i = 0; i < 4; ++i) {
      CHECK_EQUAL(world::wait_for(engine, pulls[i]), HVD_OK);
      std::vector<float> copy(60000);
      hvd_copy what{1 - rank, 0, copy.data(), 240000};
      CHECK_EQUAL(hvd_op_pull_copy(engine, pulls[i], &what, 1), HVD_OK);
      CHECK(same(copy, ones(60000, static_cast<float>(1 - rank))));
      CHECK_EQUAL(hvd_op_done(engine, pulls[i]), HVD_OK);
    }
    hvd_net_info info{};
    CHECK_EQUAL(answer_to([&] { return hvd_net_stat(host.net, &info); }), HVD_OK);
    if (rank == 1) CHECK_EQUAL(info.parked_bytes, 0u);
  });
}

// Each of these ends the peer, with a text that says why.
void test_bad_frames(uint32_t algorithm) {
  struct Lie {
    const char *text;
    std::function<void(Frame &)> spoil;
  };
  auto base = frame_of(FrameType::kEager, 1, 0, 400);
  std::vector<Lie> lies = {
      {"does not start as one", [](Frame &f) { f.magic = 1; }},
      {"no known type", [](Frame &f) { f.type = static_cast<FrameType>(12); }},
      {"no known type", [](Frame &f) { f.type = static_cast<FrameType>(0); }},
      {"longer than", [](Frame &f) { f.bytes = UINT32_MAX; }},
      {"longer than", [](Frame &f) { f.type = FrameType::kCredit; }},
      {"impossible status", [](Frame &f) { f.status = 9; }},
      {"impossible status", [](Frame &f) { f.status = 1; }},
      {"wrong size", [](Frame &f) { f.bytes = 404; }},
      {"cannot be open", [](Frame &f) { f.round = 4; }},
      {"cannot be open", [](Frame &f) { f.round = UINT64_MAX; }},
      {"not asked for", [](Frame &f) { f.step = 1; }},
      {"does not expect", [](Frame &f) { f.plan_id = 2; f.bytes = 4096; }},
      {"does not expect", [](Frame &f) { f.type = FrameType::kRing; f.plan_id = 2; }},
      {"does not expect", [](Frame &f) { f.type = FrameType::kRing; f.plan_id = 1; }},
      {"is not known", [](Frame &f) { f.type = FrameType::kRing; f.plan_id = 77; }},
      {"does not expect", [](Frame &f) { f = frame_of(FrameType::kCredit, 2, 0, 0), f.index = 99; }},
      {"does not expect", [](Frame &f) { f = frame_of(FrameType::kCredit, 2, 4, 0); }},
      {"does not expect", [](Frame &f) { f = frame_of(FrameType::kMeta, 3, 0, 0); }},
      {"does not expect", [](Frame &f) { f = frame_of(FrameType::kMeta, 3, 9, 0), f.index = 1; }},
      {"bytes to come", [](Frame &f) { f = frame_of(FrameType::kMeta, 3, 0, 0), f.index = 1, f.extra = 1; }},
      {"can have", [](Frame &f) { f = frame_of(FrameType::kMeta, 3, 0, 0), f.index = 1, f.value = 1ull << 60; }},
      {"not announced", [](Frame &f) { f = frame_of(FrameType::kData, 3, 0, 100), f.index = 1; }},
      {"no data", [](Frame &f) { f = frame_of(FrameType::kData, 3, 0, 0), f.index = 1; }},
      {"more tokens", [](Frame &f) { f = frame_of(FrameType::kTokens, 0, 0, 0), f.value = 1; }},
      {"more tokens", [](Frame &f) { f = frame_of(FrameType::kTokens, 0, 0, 0), f.value = UINT64_MAX; }},
      {"cannot be open", [](Frame &f) { f = frame_of(FrameType::kWant, 2, 0, 0); }},
  };
  for (const Lie &lie : lies) {
    Impostor peer(by(algorithm));
    peer.add(1, HVD_COOPERATIVE, 400);
    peer.add(2, HVD_COOPERATIVE, 400000);
    peer.add(3, HVD_PULL, 0);
    Frame frame = base;
    lie.spoil(frame);
    peer.say(frame, std::min(frame.bytes, 1000u));
    std::string text = peer.loss();
    if (text.find(lie.text) == std::string::npos) std::fprintf(stderr, "%s, not %s\n", text.c_str(), lie.text);
    CHECK(text.find("bad frame") == 0 && text.find(lie.text) != std::string::npos);
  }
}

void test_twice_and_too_much(uint32_t algorithm) {
  {
    Impostor peer(by(algorithm));
    peer.add(1, HVD_COOPERATIVE, 400);
    peer.say(frame_of(FrameType::kEager, 1, 0, 400));
    peer.say(frame_of(FrameType::kEager, 1, 0, 400));
    CHECK(peer.loss().find("not asked for") != std::string::npos);
  }
  {
    Impostor peer;  // more than the tokens, for a plan that is not known
    bool open = true;
    for (int i = 0; i < 100 && open; ++i) open = peer.say(frame_of(FrameType::kEager, 9, static_cast<uint64_t>(i), 64 << 10));
    CHECK(peer.loss().find("tokens") != std::string::npos);
  }
  {
    Impostor peer;  // frames that need no tokens, for a plan that is not known
    bool open = true;
    for (int i = 0; i < 100000 && open; ++i) open = peer.say(frame_of(FrameType::kCredit, 9, static_cast<uint64_t>(i), 0));
    CHECK(peer.loss().find("too many frames") != std::string::npos);
  }
}

uint64_t memory_kib() {
  long pages = 0, resident = 0;
  std::FILE *file = std::fopen("/proc/self/statm", "r");
  CHECK(file != nullptr && std::fscanf(file, "%ld %ld", &pages, &resident) == 2);
  std::fclose(file);
  return static_cast<uint64_t>(resident) * 4;
}

// Noise: bytes at random, and frames at random that are half right.  Nobody crashes, nothing grows.
void test_noise(uint32_t algorithm) {
  std::mt19937_64 random(20260101);
  uint64_t before = 0;
  for (int i = 0; i < 250; ++i) {
    if (i == 50) before = memory_kib();
    Impostor peer(by(algorithm));
    hvd_engine *engine = peer.host->open(0);
    uint64_t plans[] = {peer.add(1, HVD_COOPERATIVE, 400), peer.add(2, HVD_COOPERATIVE, 400000), peer.add(3, HVD_PULL, 0)};
    auto data = ones(100000);
    hvd_op ops[3];
    hvd_segment segment{data.data(), nullptr, 70000};
    if (i % 3 != 0) {
      CHECK_EQUAL(hvd_op_reduce_bound(engine, plans[0], data.data(), data.data(), 400, 0, 0, &ops[0]), HVD_OK);
      CHECK_EQUAL(hvd_op_reduce_bound(engine, plans[1], data.data(), data.data(), 400000, 0, 0, &ops[1]), HVD_OK);
      CHECK_EQUAL(hvd_op_pull(engine, &segment, 1, nullptr, 0, nullptr, 0, 0, &ops[2]), HVD_OK);
      CHECK_EQUAL(hvd_op_bind(engine, ops[2], plans[2], nullptr), HVD_OK);
    }
    bool open = true;
    for (int k = 0; k < 60 && open; ++k) {
      Frame frame = frame_of(static_cast<FrameType>(1 + random() % 11), 1 + random() % 4, random() % 4, 0);
      const uint32_t sizes[] = {0, 0, 400, 100, 65600, static_cast<uint32_t>(random() % 70000)};
      frame.bytes = sizes[random() % 6];
      if (frame.type == FrameType::kWant || frame.type == FrameType::kCredit || frame.type > FrameType::kData) frame.bytes = 0;
      if (frame.type == FrameType::kMeta) frame.bytes = 0, frame.value = random() % 200000, frame.extra = frame.value;
      if (frame.type == FrameType::kData) frame.step = 1, frame.value = random() % 1000;
      if (frame.type == FrameType::kTokens) frame.value = random() % 1000;
      if (frame.type == FrameType::kBye || frame.type == FrameType::kAbort) frame.type = FrameType::kPing;
      frame.index = random() % 3;
      if (frame.type == FrameType::kRing) frame.step = random() % 2;
      if (random() % 100 == 0) frame.status = 1, frame.bytes = 0;
      open = peer.say(frame);
    }
    std::vector<uint64_t> junk(1000);
    for (uint64_t &word : junk) word = random();
    if (open) peer.say(junk.data(), 8000);
    CHECK(peer.loss().size() > 10);
    hvd_board_fail(peer.host->board, HVD_E_FAILED, "noise");
    hvd_engine_close(engine);
  }
  uint64_t after = memory_kib();
  std::printf("memory: %llu KiB, then %llu KiB\n", static_cast<unsigned long long>(before),
              static_cast<unsigned long long>(after));
  CHECK(after < before + (100 << 10));
}

void test_all_bad_frames() {
  for (uint32_t algorithm : kWays) test_bad_frames(algorithm), test_twice_and_too_much(algorithm);
}

void test_all_noise() {
  for (uint32_t algorithm : kWays) test_noise(algorithm);
}

void test_bad_arguments() {
  Impostor peer;
  hvd_net *net = peer.host->net;
  uint32_t ring[] = {0, 1}, wrong[] = {1, 1}, alone[] = {1};
  uint64_t local = peer.host->add(HVD_COOPERATIVE, 64);
  CHECK_EQUAL(hvd_net_plan_add(net, local, ring, 2, nullptr, 0), HVD_E_INVALID);
  uint32_t members[] = {0, 1};
  auto add = [&](uint64_t id, uint32_t kind, uint32_t op) {
    bool is_pull = kind == HVD_PULL;
    hvd_plan_spec spec{id, kind, HVD_FLOAT32, op, 1, 1, is_pull ? 0u : 64u, 2, is_pull ? 2u : 1u, members, HVD_PLAN_REMOTE};
    uint64_t offset = 0;
    CHECK_EQUAL(hvd_board_plan_add(peer.host->board, &spec, &offset), HVD_OK);
    return offset;
  };
  uint64_t sum = add(50, HVD_COOPERATIVE, HVD_SUM), pull = add(51, HVD_PULL, HVD_SUM);
  CHECK_EQUAL(hvd_net_plan_add(net, add(52, HVD_COOPERATIVE, HVD_ADASUM), ring, 2, nullptr, 0), HVD_E_INVALID);
  CHECK_EQUAL(hvd_net_plan_add(net, sum, wrong, 2, nullptr, 0), HVD_E_INVALID);
  CHECK_EQUAL(hvd_net_plan_add(net, sum, alone, 1, nullptr, 0), HVD_E_INVALID);
  CHECK_EQUAL(hvd_net_plan_add(net, sum + 256 * 1000, ring, 2, nullptr, 0), HVD_E_INVALID);
  CHECK_EQUAL(hvd_net_plan_add(net, pull, ring, 2, nullptr, 0), HVD_E_INVALID);
  CHECK_EQUAL(hvd_net_plan_add(net, pull, ring, 2, wrong, 2), HVD_E_INVALID);
  CHECK_EQUAL(hvd_net_plan_add(net, pull, ring, 2, ring, 2), HVD_OK);
  CHECK_EQUAL(hvd_net_plan_add(net, pull, ring, 2, ring, 2), HVD_E_INVALID);
  CHECK_EQUAL(hvd_net_plan_add(net, sum, ring, 2, nullptr, 0), HVD_OK);
  CHECK_EQUAL(answer_to([&] { return hvd_net_plan_remove(net, 51); }), HVD_OK);
  CHECK_EQUAL(hvd_net_plan_remove(net, 51), HVD_E_INVALID);
  CHECK_EQUAL(hvd_net_start(net), HVD_E_INVALID);
  CHECK_EQUAL(hvd_net_add_peer(net, 1, 0, dup(0)), HVD_E_INVALID);
}

}  // namespace

int main() {
  RUN(test_parked_frames);
  RUN(test_all_bad_frames);
  RUN(test_all_noise);
  RUN(test_bad_arguments);
}
