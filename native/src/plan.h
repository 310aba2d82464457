// A plan block: the immutable specification of a collective and the ring of its rounds.  This file finds the parts of a
// block and checks that they lie inside the board; what they mean over time is round.h.
#pragma once
#include <vector>

#include "board_view.h"

namespace hvd {

// How a payload is cut; a function of the bytes alone, so that members agree without talking.
uint64_t chunk_bytes_of(uint64_t payload_bytes);
// The same for payloads that travel between hosts.
uint64_t remote_chunk_bytes_of(uint64_t payload_bytes);
uint32_t chunks_of(uint64_t payload_bytes);

// Chunk c + 8 of a plan of one host is filled only after chunk c was copied out, so stamps last long enough.
constexpr uint32_t kWindowSlots = kStamps;
// Smaller payloads travel from memory that is whole.  The net relies on it where it exchanges payloads in one piece.
constexpr uint64_t kSmallestWindowed = 1 << 20;

struct PlanView {
  uint64_t offset = 0, plan_id = 0, bytes = 0, chunk_bytes = 0;
  uint32_t kind = 0, dtype = 0, op = 0, depth = 0, n_members = 0, n_chunks = 0, flags = 0;
  uint32_t n_claims = 0;  // chunks to be claimed here: none of a lone member's, whose data need no local reduction
  double prescale = 1, postscale = 1;
  std::vector<uint32_t> members;  // local indices, checked; local_size for members on other hosts
  std::vector<uint32_t> locals;   // the local indices among them
  std::vector<bool> is_here;      // by member

  PlanHeader *header = nullptr;
  std::atomic<uint64_t> *arrivals = nullptr;
  char *entries = nullptr;
  uint64_t entry_stride = 0, block_bytes = 0;

  Entry &entry(uint64_t round) const {
    return *reinterpret_cast<Entry *>(entries + (round % depth) * entry_stride);
  }
  EntryMember &entry_member(uint64_t round, uint32_t member) const {
    return reinterpret_cast<EntryMember *>(entries + (round % depth) * entry_stride + sizeof(Entry))[member];
  }
  // Remote cooperative plans: (round + 1) << 8 | negated status once the chunk is reduced locally, with kCarried at its end.
  std::atomic<uint64_t> &ready(uint64_t round, uint32_t chunk) const {
    return reinterpret_cast<std::atomic<uint64_t> *>(&entry_member(round, n_members))[chunk];
  }
  uint64_t chunk_length(uint32_t chunk) const;
  // Slots of a window on this plan; 0 if its members' data lie whole.
  uint32_t window_slots() const;
  bool is_pull() const { return kind == HVD_PULL; }
  bool is_remote() const { return (flags & HVD_PLAN_REMOTE) != 0; }
  // Cooperative between hosts: the net completes its rounds.
  bool ends_in_net() const { return is_remote() && !is_pull(); }
  // An open round is a complete one.
  bool is_done_when_open() const { return is_pull() || (n_chunks == 0 && !is_remote()); }
  // False when the block was taken back, and perhaps given to another plan, since this view was loaded.
  bool is_current() const { return header->plan_id.load(std::memory_order_seq_cst) == plan_id; }
  // Index of a local rank among the members, or n_members.
  uint32_t member_of(uint32_t local_index) const;
};

bool spec_is_valid(const hvd_plan_spec &spec, uint32_t local_size);
// Of a valid specification.
uint64_t block_bytes(const hvd_plan_spec &spec);
// Writes a block; its memory must be zero.
PlanView format_plan(const BoardView &board, uint64_t offset, const hvd_plan_spec &spec);
// Reads a block that another process wrote; false when there is none or a field is out of range.
bool load_plan(const BoardView &board, uint64_t offset, PlanView *out);

}  // namespace hvd
