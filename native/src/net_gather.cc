// Pull rounds, data in: room in the agent's arena for what a member of another host published, and its arrival on this board
// when all of it is there.  Members arrive in order of rounds, as they do everywhere.
#include <algorithm>

#include "net.h"

using hvd::Arriving;
using hvd::Frame;
using hvd::NetPeer;
using hvd::NetPlan;
using hvd::NetRound;

namespace {

constexpr uint64_t kBlockAlignment = 64;
constexpr uint64_t kMostDataBytes = 1ull << 40;

uint64_t aligned(uint64_t bytes) { return (bytes + kBlockAlignment - 1) / kBlockAlignment * kBlockAlignment; }

}  // namespace

const char *hvd_net::got_meta(NetPeer *peer, NetPlan *plan, const Frame &frame) {
  const hvd::PlanView &view = *plan->view;
  bool expected = view.is_pull() && frame.index < view.n_members && plan->member_hosts[frame.index] == peer->host;
  NetRound *state = expected ? plan->find_round(frame.round) : nullptr;
  if (state == nullptr || state->arriving[frame.index].announced) return "a member's data that this plan does not expect";
  uint64_t meta_bytes = frame.step * sizeof(int64_t);
  if (frame.step > hvd::kMaxMeta || frame.value > kMostDataBytes) return "more data than a member can have";
  uint64_t most = frame.status == 0 ? meta_bytes + frame.value : 0;
  if (frame.extra > most) return "more bytes to come than there are";
  Arriving &arriving = state->arriving[frame.index];
  arriving.announced = true;
  arriving.meta_bytes = aligned(meta_bytes);
  arriving.data_bytes = frame.value;
  arriving.n_meta = frame.step;
  arriving.to_come = frame.extra;
  if (frame.status != 0) arriving.flags = hvd::kBroken;
  arriving.block = static_cast<char *>(own_->alloc(arriving.meta_bytes + arriving.data_bytes));
  if (arriving.block == nullptr) arriving.flags = hvd::kNoMemory;
  give_back(peer, hvd::token_cost(frame));
  if (closed_) doubt(plan, frame.round);
  if (arriving.to_come == 0) arrive_ready(plan, frame.index);
  return nullptr;
}

// Reserves the bytes; *at stays null when there is no room for them.
const char *hvd_net::begin_data(NetPlan *plan, const NetPeer *peer, const Frame &frame, char **at) {
  const hvd::PlanView &view = *plan->view;
  bool expected = view.is_pull() && frame.index < view.n_members && plan->member_hosts[frame.index] == peer->host;
  NetRound *state = expected ? plan->peek(frame.round) : nullptr;
  if (state == nullptr || !state->arriving[frame.index].announced) return "data that were not announced";
  Arriving &arriving = state->arriving[frame.index];
  uint64_t end = frame.step == 0 ? arriving.n_meta * sizeof(int64_t) : arriving.data_bytes;
  if (frame.bytes > arriving.to_come || frame.step > 1) return "more data than were announced";
  if (frame.value > end || frame.bytes > end - frame.value) return "data outside of what was announced";
  arriving.to_come -= frame.bytes;
  ++arriving.filling;
  if (arriving.block != nullptr) *at = arriving.block + (frame.step == 0 ? 0 : arriving.meta_bytes) + frame.value;
  return nullptr;
}

void hvd_net::end_data(NetPeer *peer, NetPlan *plan, const Frame &frame) {
  give_back(peer, hvd::token_cost(frame));
  NetRound *state = plan->peek(frame.round);
  if (state == nullptr || frame.index >= state->arriving.size() || state->arriving[frame.index].filling == 0) return;
  Arriving &arriving = state->arriving[frame.index];
  --arriving.filling;
  if (arriving.is_complete()) arrive_ready(plan, frame.index);
}

// The member's next rounds, as far as its data are here and the board takes them.
void hvd_net::arrive_ready(NetPlan *plan, uint32_t member) {
  for (;;) {
    uint64_t round = plan->published[member];
    NetRound *state = plan->peek(round);
    if (state == nullptr || !state->arriving[member].is_complete()) return;
    const Arriving &arriving = state->arriving[member];
    hvd::MemberFields fields{0, 0, 0, 0, arriving.flags};
    if (arriving.block != nullptr && arriving.flags == 0) {
      uint64_t meta = own_->mapping->offset_of(arriving.block);
      fields = {meta + arriving.meta_bytes, arriving.data_bytes, meta, arriving.n_meta, 0};
    }
    hvd::Arrival arrival = hvd::arrive(site(plan), round, member, fields);
    if (arrival == hvd::Arrival::kMarked || arrival == hvd::Arrival::kRingFull) {
      plan->late = true;  // until the limit is raised or members here have read: both are signalled
      return;
    }
    ++plan->published[member];
    ++state->n_arrived;
    state->arriving[member].arrived = true;
    finish_pull(plan, round);
  }
}

void hvd_net::arrive_late(NetPlan *plan) {
  plan->late = false;
  for (uint32_t m = 0; m < plan->view->n_members; ++m)
    if (!plan->view->is_here[m]) arrive_ready(plan, m);
}

// Finished rounds that all members here have read give their room back.
void hvd_net::free_read(NetPlan *plan) {
  for (size_t left = plan->lingering.size(); left-- > 0;) {
    NetPlan::Lingering oldest = std::move(plan->lingering.front());
    plan->lingering.pop_front();
    if (hvd::all_read(*plan->view, oldest.round))
      for (void *block : oldest.blocks) own_->free(block);
    else
      plan->lingering.push_back(std::move(oldest));
  }
}
