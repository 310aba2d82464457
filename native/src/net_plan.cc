#include "net_plan.h"

#include <algorithm>

namespace hvd {
namespace {

constexpr uint64_t kMaxSmallBytes = 64 << 10;  // larger payloads go around the ring
constexpr uint32_t kMaxDirectHosts = 7;        // with more of them messages cost more than steps, on cores that others use too
// What a step costs whose message somebody waits for, what each message costs its two ends, and what its bytes do: measured by
// benchmarks/algorithms.py, but for the step, whose cost is that of a usual network.
constexpr uint64_t kStepNs = 25'000, kMessageNs = 12'000, kNsPerKib = 1'000;
constexpr uint64_t kPieceAlign = 64;  // so that pieces start where vectors do; a multiple of every element

bool is_direct_cheaper(uint64_t bytes, uint32_t n_hosts) {
  const uint64_t message = kMessageNs + (bytes * kNsPerKib >> 10);
  return kStepNs + (n_hosts - 1) * message <= doubling_steps(n_hosts) * (kStepNs + message);
}

std::unique_ptr<NetRound> make_round(const NetPlan &plan) {
  auto round = std::make_unique<NetRound>();
  const PlanView &view = *plan.view;
  if (view.is_pull())
    round->arriving.resize(view.n_members);
  else
    round->chunks.resize(view.n_chunks);
  if (plan.is_eager()) round->from.resize(plan.n_hosts()), round->asks.resize(plan.n_hosts());
  return round;
}

}  // namespace

bool NetRound::has_foreign_data() const {
  if (n_here != 0 || is_waited_for || std::find(asks.begin(), asks.end(), true) != asks.end()) return true;
  if (std::any_of(arriving.begin(), arriving.end(), [](const Arriving &from) { return from.announced; })) return true;
  return std::any_of(chunks.begin(), chunks.end(), [](const ChunkState &chunk) { return chunk.credit; });
}

Algorithm choose_algorithm(const PlanView &view, uint32_t n_hosts, uint32_t asked) {
  if (view.is_pull()) return Algorithm::kPull;
  if (view.bytes > kMaxEagerBytes) return Algorithm::kRing;
  if (asked == HVD_NET_RING && view.bytes != 0) return Algorithm::kRing;
  if (asked == HVD_NET_DIRECT) return Algorithm::kDirect;
  if (asked == HVD_NET_DOUBLING && n_hosts != 1) return Algorithm::kDoubling;
  if (view.bytes > kMaxSmallBytes) return Algorithm::kRing;
  if (n_hosts == 1) return Algorithm::kDirect;
  return n_hosts <= kMaxDirectHosts && is_direct_cheaper(view.bytes, n_hosts) ? Algorithm::kDirect : Algorithm::kDoubling;
}

void NetPlan::choose(uint32_t asked) {
  algorithm = choose_algorithm(*view, n_hosts(), asked);
  if (algorithm == Algorithm::kDoubling) pairings = hvd::pairings(n_hosts(), me);
  if (!is_eager()) return;
  hears.assign(n_hosts(), algorithm == Algorithm::kDirect);
  hears[me] = false;
  for (const Pairing &pairing : pairings)
    if (pairing.receives()) hears[pairing.place] = true;
}

uint32_t NetPlan::place_of(uint32_t host) const {
  return static_cast<uint32_t>(std::find(hosts.begin(), hosts.end(), host) - hosts.begin());
}

NetRound *NetPlan::find_round(uint64_t round) {
  NetSlot &at = slot(round);
  if (round != at.round && round != at.round + slots.size()) return nullptr;
  auto &state = round == at.round ? at.now : at.next;
  if (state == nullptr) state = make_round(*this);
  return state.get();
}

NetRound *NetPlan::peek(uint64_t round) {
  NetSlot &at = slot(round);
  if (round == at.round) return at.now.get();
  return round == at.round + slots.size() ? at.next.get() : nullptr;
}

NetRound *NetPlan::current(uint64_t round) {
  NetSlot &at = slot(round);
  return round == at.round ? at.now.get() : nullptr;
}

bool NetPlan::has_work() const {
  if (unwritten != 0 || waiting != 0 || !lingering.empty()) return true;
  return std::any_of(slots.begin(), slots.end(), [](const NetSlot &at) { return at.now != nullptr && at.now->started; });
}

NetPlan::Piece NetPlan::piece(uint32_t chunk, uint32_t index) const {
  uint64_t length = view->chunk_length(chunk), n = n_hosts();
  uint64_t each = (length / n + kPieceAlign - 1) / kPieceAlign * kPieceAlign;
  if (each * n < length) each += kPieceAlign;
  uint64_t begin = std::min(length, each * (index % n)), end = std::min(length, begin + each);
  return {begin, end - begin};
}

}  // namespace hvd
