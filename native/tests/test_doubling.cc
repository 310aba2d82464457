// Recursive doubling without rounds: who is paired with whom, and which plans take that way.
#include <algorithm>
#include <map>
#include <random>
#include <vector>

#include "check.h"
#include "doubling.h"
#include "net_plan.h"

using hvd::Pairing;

namespace {

using Parts = std::vector<uint32_t>;

// Places pass on lists of whose parts they hold, in whatever order the messages come.
struct Play {
  explicit Play(uint32_t n) : at(n), holds(n), said(n) {
    for (uint32_t place = 0; place < n; ++place) turns.push_back(hvd::pairings(n, place)), holds[place] = {place};
  }
  // True when this place got on.
  bool go_on(uint32_t place) {
    if (at[place] == turns[place].size()) return false;
    const Pairing &pairing = turns[place][at[place]];
    if (pairing.sends() && !said[place]) {
      CHECK(messages.emplace(std::make_pair(place, pairing.place), holds[place]).second);  // never a second one
      said[place] = true;
    }
    auto found = messages.find({pairing.place, place});
    if (pairing.receives() && (found == messages.end() || found->second.empty())) return false;
    if (pairing.receives()) add(place, pairing, &found->second);
    ++at[place];
    said[place] = false;
    return true;
  }
  void add(uint32_t place, const Pairing &pairing, Parts *theirs) {
    Parts mine = holds[place];
    if (pairing.kind == Pairing::Kind::kAdopt)
      mine.clear();
    else
      CHECK_EQUAL(pairing.completes, mine.size() + theirs->size() == turns.size());
    Parts &lower = pairing.place < place ? *theirs : mine, &upper = pairing.place < place ? mine : *theirs;
    holds[place] = lower;
    holds[place].insert(holds[place].end(), upper.begin(), upper.end());
    theirs->clear();
  }
  std::vector<std::vector<Pairing>> turns;
  std::vector<size_t> at;
  std::vector<Parts> holds;
  std::vector<bool> said;
  std::map<std::pair<uint32_t, uint32_t>, Parts> messages;
};

void test_pairings() {
  std::mt19937 random(7);
  for (uint32_t n = 2; n <= 70; ++n) {
    Play play(n);
    std::vector<uint32_t> order(n);
    for (uint32_t place = 0; place < n; ++place) order[place] = place;
    for (bool busy = true; busy;) {
      busy = false;
      std::shuffle(order.begin(), order.end(), random);
      for (uint32_t place : order) busy |= play.go_on(place);
    }
    for (uint32_t place = 0; place < n; ++place) {
      CHECK_EQUAL(play.at[place], play.turns[place].size());
      CHECK(play.turns[place].size() <= hvd::doubling_steps(n));
      for (uint32_t i = 0; i < n; ++i) CHECK_EQUAL(play.holds[place][i], i);
      CHECK_EQUAL(play.holds[place].size(), n);
    }
    for (auto &[between, parts] : play.messages) CHECK(parts.empty());
  }
  CHECK(hvd::pairings(1, 0).empty());
  const uint32_t steps[] = {0, 0, 1, 3, 2, 4, 4, 4, 3, 5};
  for (uint32_t n = 1; n < 10; ++n) CHECK_EQUAL(hvd::doubling_steps(n), steps[n]);
  CHECK_EQUAL(hvd::doubling_steps(16), 4u);
  CHECK_EQUAL(hvd::doubling_steps(1000), 11u);
}

void test_choice() {
  hvd::PlanView view{};
  auto chosen = [&](uint32_t hosts, uint64_t bytes, uint32_t asked = HVD_NET_BY_SIZE) {
    view.bytes = bytes;
    return hvd::choose_algorithm(view, hosts, asked);
  };
  using hvd::Algorithm;
  for (uint32_t hosts = 1; hosts <= 7; ++hosts)
    for (uint64_t bytes : {0, 8, 4096}) CHECK(chosen(hosts, bytes) == Algorithm::kDirect);
  for (uint32_t hosts : {8, 9, 16, 17, 64, 1000, 16384})
    for (uint64_t bytes : {0, 8, 4096, 65536}) CHECK(chosen(hosts, bytes) == Algorithm::kDoubling);
  for (uint32_t hosts : {1, 2, 3, 5}) CHECK(chosen(hosts, 65536) == Algorithm::kDirect);
  for (uint32_t hosts : {4, 6, 7}) CHECK(chosen(hosts, 65536) == Algorithm::kDoubling);
  for (uint32_t hosts : {1, 2, 8, 16, 1000}) CHECK(chosen(hosts, 65537) == Algorithm::kRing);
  for (uint32_t hosts : {2, 8, 16, 1000})
    for (uint32_t asked : {HVD_NET_DOUBLING, HVD_NET_DIRECT}) {
      CHECK(chosen(hosts, 256 << 10, asked) != Algorithm::kRing);
      CHECK(chosen(hosts, (256 << 10) + 1, asked) == Algorithm::kRing);
    }
  CHECK(chosen(3, 65536, HVD_NET_DOUBLING) == Algorithm::kDoubling);
  CHECK(chosen(1, 65536, HVD_NET_DOUBLING) == Algorithm::kDirect);
  CHECK(chosen(12, 65536, HVD_NET_DIRECT) == Algorithm::kDirect);
  CHECK(chosen(3, 8, HVD_NET_RING) == Algorithm::kRing);
  CHECK(chosen(3, 0, HVD_NET_RING) != Algorithm::kRing);  // a barrier has no pieces
}

}  // namespace

int main() {
  RUN(test_pairings);
  RUN(test_choice);
}
