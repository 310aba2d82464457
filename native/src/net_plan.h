// A plan as the net knows it: who takes part where, and how far its rounds are.  Plain data; net_*.cc move it on.
//
// A slot of the plan's ring is at one round, and frames may come for the next round of the slot as well: a peer that has all
// data of this round may go on while we still miss another's.  It cannot be two laps ahead, because it needs our data for the
// next one.  So what peers can make us keep is bounded by the ring.
#pragma once
#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "doubling.h"
#include "net_lane.h"
#include "net_times.h"
#include "plan.h"

namespace hvd {

// Direct exchange and doubling: what one host sent.
struct Contribution {
  SharedBytes data;  // null: none yet, an empty payload, or a status instead
  uint8_t status = 0;
  bool here = false, parked = false;  // parked: its tokens are not given back yet
};

// Ring: one chunk's way around.  Step s sends piece (me - s) and receives piece (me - s - 1), modulo n: the first n - 1 steps
// reduce, the others bring the sums around.
struct ChunkState {
  uint32_t sent = 0, written = 0, received = 0;  // steps
  uint8_t status = 0;
  bool credit = false;   // the successor has its part ready
  bool ready = false;    // our part is
  bool receiving = false, done = false;
};

// Pull: one remote member's data on their way here.
struct Arriving {
  bool announced = false, arrived = false;
  char *block = nullptr;   // in the agent's arena: meta, then data
  uint64_t meta_bytes = 0, data_bytes = 0, to_come = 0;
  uint32_t n_meta = 0, flags = 0, filling = 0;  // filling: frames that are being received
  bool is_complete() const { return announced && to_come == 0 && filling == 0; }
};

// Counts itself from begin() until it goes.
class Counted {
 public:
  Counted() = default;
  Counted(const Counted &) = delete;
  Counted &operator=(const Counted &) = delete;
  ~Counted() {
    if (count_ != nullptr) --*count_;
  }
  void begin(uint32_t *count) { ++*(count_ = count); }

 private:
  uint32_t *count_ = nullptr;
};

struct NetRound {
  bool started = false;        // cooperative: open here and held; pull: held, something is being sent
  bool wanted_told = false;
  uint8_t status = 0;
  char *leader = nullptr;      // the buffer that takes the sums
  uint32_t slots = 0;          // of the leader's window; 0: it is as long as the payload
  bool has_windows = false;    // of members here, who wait for chunks
  char *zeros = nullptr;       // it is this scratch in the agent's arena, neutral: no member here has memory
  uint32_t n_not_ready = 0;    // chunks that are not reduced locally
  uint64_t stage_ns = 0;       // when the stage that lasts began
  uint64_t copy_ns = 0;        // spent in it on copies to members
  // direct, doubling
  std::vector<Contribution> from;  // by place in the ring
  std::vector<bool> asks;          // by place: has no tokens, waits for credit
  uint32_t n_here = 0;
  bool own_ready = false;
  Counted in_flight;               // from own_ready on
  uint32_t n_paired = 0;              // doubling: pairings that are over
  bool said = false;               // what the next pairing sends is on its way
  bool is_waited_for = false;      // by the host that we give our part to
  std::vector<ChunkState> chunks;  // direct, doubling: only `ready`
  uint32_t n_done = 0;
  // pull
  std::vector<Arriving> arriving;      // by member
  uint32_t n_arrived = 0, n_published = 0, n_sending = 0;  // remote members; local members; streams

  bool has_foreign_data() const;
  // Where a chunk of the sum lies.
  char *at(const PlanView &view, uint32_t chunk) const { return leader + (slots == 0 ? chunk : chunk % slots) * view.chunk_bytes; }
};

struct NetSlot {
  uint64_t round = 0;
  std::unique_ptr<NetRound> now, next;
};

// How a plan's rounds travel: the same on all its hosts, because they know the same.  `asked`: hvd_net_algorithm.
Algorithm choose_algorithm(const PlanView &view, uint32_t n_hosts, uint32_t asked);

struct NetPlan {
  std::shared_ptr<const PlanView> view;
  std::vector<uint32_t> hosts;       // in ring order
  uint32_t me = 0;                   // our place
  std::vector<uint32_t> member_hosts;
  Algorithm algorithm = Algorithm::kRing;
  std::vector<Pairing> pairings;     // doubling
  std::vector<bool> hears;           // direct, doubling: by place, those that send us a part
  std::vector<NetSlot> slots;
  uint64_t next_open = 0;            // cooperative: rounds below were started
  uint64_t limit = UINT64_MAX;       // rounds from here on never finish (net_withdraw.cc)
  std::vector<uint64_t> reducing;    // started, chunks are not ready locally
  uint32_t unwritten = 0;            // frames in lanes that name this plan
  uint32_t waiting = 0;              // frames and streams that wait for tokens
  // pull
  std::vector<uint64_t> published;   // by member: rounds whose sending has begun, or in which it has arrived from afar
  bool late = false;                 // a member's data are here, but the board could not take its arrival
  struct Lingering {
    uint64_t round;
    std::vector<void *> blocks;
  };
  std::deque<Lingering> lingering;   // finished rounds that members here may still read

  uint32_t n_hosts() const { return static_cast<uint32_t>(hosts.size()); }
  uint32_t successor() const { return hosts[(me + 1) % hosts.size()]; }
  uint32_t predecessor() const { return hosts[(me + hosts.size() - 1) % hosts.size()]; }
  uint32_t place_of(uint32_t host) const;  // n_hosts() if it takes no part
  bool is_eager() const { return algorithm == Algorithm::kDirect || algorithm == Algorithm::kDoubling; }
  bool hears_from(uint32_t place) const { return place < hears.size() && hears[place]; }
  // Doubling: our first pairing takes from, or gives to, this place.
  bool waits_for(uint32_t place) const { return begins_with(Pairing::Kind::kTake, place); }
  bool gives_first_to(uint32_t place) const { return begins_with(Pairing::Kind::kGive, place); }
  void choose(uint32_t asked);  // once view, hosts and me are known
  uint32_t steps() const { return 2 * (n_hosts() - 1); }
  NetSlot &slot(uint64_t round) { return slots[round % slots.size()]; }
  // The state of this round, made when it is new; null when no peer can be there yet, or the round is over.
  NetRound *find_round(uint64_t round);
  NetRound *peek(uint64_t round);     // null unless it is there
  NetRound *current(uint64_t round);  // null unless it is there and its slot is at it
  bool has_work() const;
  bool is_beyond(uint64_t round) const { return limit != UINT64_MAX && round >= limit; }

  struct Piece {
    uint64_t offset, bytes;  // in the chunk
  };
  // What is sent in this step of a chunk; received is what the predecessor sends then.
  Piece sent_piece(uint32_t chunk, uint32_t step) const { return piece(chunk, me + 2 * n_hosts() - step); }
  Piece received_piece(uint32_t chunk, uint32_t step) const { return piece(chunk, me + 2 * n_hosts() - step - 1); }

 private:
  bool begins_with(Pairing::Kind kind, uint32_t place) const {
    return !pairings.empty() && pairings[0].kind == kind && pairings[0].place == place;
  }
  Piece piece(uint32_t chunk, uint32_t index) const;
};

}  // namespace hvd
