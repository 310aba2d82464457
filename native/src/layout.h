// What lies where on the board.  Plain structures of atomics, shared by processes; every reader checks what it read
// before it uses it as an index (see board_view.cc and plan.cc).
//
//   BoardHeader | RankSlot[local_size + 1] | plan blocks
//   plan block: PlanHeader | members u32[n] | arrivals u64[n] | depth x (Entry | EntryMember[n] | ready u64[chunks])
// Only plans with members on other hosts have `ready` words: (round + 1) << 8 | flag and status.
#pragma once
#include <atomic>
#include <cstdint>

#include "bell.h"

namespace hvd {

constexpr uint64_t kBoardMagic = 0x3130'6472'616f'6268;  // "hboard01"
constexpr uint64_t kPlanMagic = 0x3130'6e61'6c70'6268;
constexpr uint64_t kBoardBytes = 4ull << 30;  // address space only; memory where touched
constexpr uint64_t kBlockAlign = 256;         // so that an offset fits a claim slot beside a round
constexpr uint32_t kClaimSlots = 16;
constexpr uint32_t kReasonBytes = 4000;
constexpr uint32_t kMaxLocalRanks = 256;
constexpr uint32_t kMaxMembers = 1u << 14;  // of a pull plan: ranks of all hosts
constexpr uint32_t kMaxMeta = 1u << 20;  // integers that a pull op publishes
constexpr uint32_t kMaxDepth = 1u << 16;
constexpr uint32_t kStamps = 8;
constexpr uint32_t kTimed = 16;  // of so many rounds of a plan one is timed: a clock in each would cost small ones several percent
constexpr uint32_t kTimedStages = 2, kTimeBuckets = 24;

constexpr uint64_t kNoLimit = UINT64_MAX;
constexpr uint32_t kEndBits = 12, kClaimBits = 2 * kEndBits;
constexpr uint64_t kRoundMask = (1ull << 40) - 1;

// The claim word: round in the upper 40 bits; below, how many chunks were claimed from the last one downwards (12 bits) and
// from the first one upwards (12 bits).  Claims from two ends keep a part of the payload in the caches of the same cores,
// round after round.  The three highest codes close the round; no round has chunks enough to count so far.
constexpr uint32_t kOneLow = 1, kOneHigh = 1u << kEndBits;
constexpr uint32_t kWithdrawn = (1u << kClaimBits) - 1;  // at or above the limit: members take their ops elsewhere
constexpr uint32_t kCancelled = kWithdrawn - 1;          // a member gave up: all members' ops fail
constexpr uint32_t kTakenBack = kWithdrawn - 2;          // withdrawn after it had opened: sums may be where inputs were
constexpr uint32_t kMaxChunks = (1u << kEndBits) - 2;
constexpr uint64_t claim_word(uint64_t round, uint32_t code) { return ((round & kRoundMask) << kClaimBits) | code; }
constexpr uint64_t claim_round(uint64_t word) { return word >> kClaimBits; }
constexpr uint32_t claim_code(uint64_t word) { return static_cast<uint32_t>(word & ((1u << kClaimBits) - 1)); }
constexpr uint32_t claim_low(uint64_t word) { return claim_code(word) & (kOneHigh - 1); }
constexpr uint32_t claim_high(uint64_t word) { return claim_code(word) >> kEndBits; }
constexpr bool claim_closed(uint64_t word) { return claim_code(word) >= kTakenBack; }
constexpr uint64_t kNeverOpened = ~0ull;  // closed, in a round that no plan reaches: nobody can claim in it

// A claim slot names the round its holder works on: block offset / 256 in the upper 24 bits, round below; 0 is free.
constexpr uint64_t claim_name(uint64_t block_offset, uint64_t round) {
  return ((block_offset / kBlockAlign) << 40) | (round & kRoundMask);
}

struct alignas(64) RankSlot {
  Bell bell;
  std::atomic<uint32_t> dead;
  alignas(64) std::atomic<uint64_t> submits;
  std::atomic<uint64_t> blocked_tag;
  std::atomic<uint64_t> blocked_ns;
  std::atomic<uint32_t> blocked;
  alignas(64) std::atomic<uint64_t> claims[kClaimSlots];
};

// How ranks tell the net which plans to look at.  A plan has one of the bits, several plans may share it.
//   rank: stores what changed; sets the bit in `words`; sets the word's bit in `summary`; rings `bell`
//   net:  takes `summary`; takes the words; looks at the plans
// All seq_cst: a change made before the bit was set is seen by the look that follows the taking of the bit.
constexpr uint32_t kSignalWords = 64;
struct alignas(64) NetSignal {
  Bell bell;  // the net counts as its sleeper while it sleeps in epoll
  alignas(64) std::atomic<uint64_t> summary;
  alignas(64) std::atomic<uint64_t> words[kSignalWords];
};
constexpr uint32_t signal_bit(uint64_t block_offset) {
  return static_cast<uint32_t>(block_offset / kBlockAlign) % (kSignalWords * 64);
}

// How long stages of timed rounds took, counted by whoever ends the stage.
struct alignas(64) BoardTimes {
  std::atomic<uint64_t> counts[kTimedStages][kTimeBuckets];
  std::atomic<uint64_t> sum_ns[kTimedStages];
};

struct alignas(64) BoardHeader {
  std::atomic<uint64_t> magic;
  uint32_t abi_version;
  uint32_t local_size;
  uint64_t spin_ns;
  uint64_t slots_offset;
  uint64_t blocks_offset;
  alignas(64) std::atomic<uint32_t> state;  // 0, or the negated HVD_E_CLOSED or HVD_E_FAILED
  std::atomic<uint32_t> watch_arrivals;
  std::atomic<uint32_t> reason_bytes;  // release after the text; pairs with the acquire of a reader
  alignas(64) Bell agent_bell;
  NetSignal net;
  BoardTimes times;
  alignas(64) char reason[kReasonBytes];
};

struct alignas(64) PlanHeader {
  std::atomic<uint64_t> magic;  // release after the fields below; pairs with the acquire in load_plan
  std::atomic<uint64_t> plan_id;
  uint64_t bytes;
  double prescale, postscale;
  uint32_t kind, dtype, op, depth, n_members, flags;
  alignas(64) std::atomic<uint64_t> limit;
  std::atomic<uint64_t> wanted;  // rounds below have data from another host
};

struct alignas(64) Entry {
  std::atomic<uint64_t> arrived;   // arrivals in all rounds of this entry, never reset
  std::atomic<uint64_t> claim;
  std::atomic<uint64_t> done;      // chunks done in the open round
  std::atomic<uint64_t> complete;  // (round + 1) << 8 | negated status
  std::atomic<uint64_t> reads;     // members that are done with a round, in all rounds of this entry, never reset
  std::atomic<uint64_t> first_arrival_ns;
  std::atomic<uint64_t> status;    // negated hvd_status of a failed reduction
  std::atomic<uint64_t> net_hold;  // round + 1 while the net may touch members' memory for it; see NetHold
  alignas(64) std::atomic<uint64_t> stamps[kStamps];  // claim_word(round, chunk + 1) of the last chunks done
};

constexpr uint32_t kZeros = 1u << 31;  // the member has no memory: its data are zeros
constexpr uint32_t kNoMemory = 1u << 30;  // data from another host for which the agent's arena had no room
constexpr uint32_t kBroken = 1u << 29;    // another host could not read what its member published
constexpr uint32_t kAbsent = 1u << 28;    // beside kZeros: it has no data at all, and no reduction counts it
constexpr uint32_t kWindowMask = 0xff;

constexpr uint64_t kCarried = 0x80;  // in a `ready` word: the net is through with the chunk, the result is where it was

struct alignas(64) EntryMember {
  std::atomic<uint64_t> data_offset;  // in the arena of this member
  std::atomic<uint64_t> data_bytes;
  std::atomic<uint64_t> meta_offset;
  std::atomic<uint32_t> n_meta;
  std::atomic<uint32_t> flags;    // slots of the window (0: all data lies there) | kZeros
  std::atomic<uint32_t> filled;   // chunks copied into the window in this round
  std::atomic<uint32_t> emptied;  // results this member has taken; see window.h
  std::atomic<uint64_t> reads_offset;  // n_reads spans, in the arena of this member
  std::atomic<uint32_t> n_reads;
  std::atomic<uint64_t> opened_ns;  // of the first member: when the last one arrived, in timed rounds
};
static_assert(sizeof(EntryMember) == 64, "a member's line");

static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free,
              "atomics shared by processes must not hide a lock");

}  // namespace hvd
