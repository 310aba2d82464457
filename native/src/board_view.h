// A process's view of the board: pointers that were checked once, and the bells and claims of all local ranks.
#pragma once
#include <memory>
#include <vector>

#include "hvd.h"
#include "layout.h"
#include "shm.h"

namespace hvd {

struct BoardView {
  std::shared_ptr<Mapping> mapping;
  BoardHeader *header = nullptr;
  RankSlot *slots = nullptr;  // local_size of ranks, then the agent's: its helper threads sleep and claim there
  uint32_t local_size = 0;

  // Lays out an empty board; the mapping is all zero.
  static BoardView format(std::shared_ptr<Mapping> mapping, uint32_t local_size, uint64_t spin_ns);
  // False when this is no board of this version or its header points outside.
  static bool load(std::shared_ptr<Mapping> mapping, BoardView *out);

  RankSlot &agent_slot() const { return slots[local_size]; }
  hvd_status state() const;  // HVD_OK, HVD_E_CLOSED or HVD_E_FAILED
  void ring_everyone() const;
  void agent_dead() const;  // said by a rank: there is nobody else who could fail the board
  // True if a live rank or the agent works on this round of this block (seq_cst; pairs with ClaimSlots::publish).
  bool has_holder(uint64_t block_offset, uint64_t round) const;
  // True if a live rank or the agent works on any round of this block.
  bool block_has_holder(uint64_t block_offset) const;
};

// The claim slots of one process, handed to its threads.  No thread waits for a slot: acquire() may return null.
class ClaimSlots {
 public:
  explicit ClaimSlots(RankSlot *slot) : slot_(slot) {}
  std::atomic<uint64_t> *acquire();
  void release(std::atomic<uint64_t> *claim);

 private:
  RankSlot *slot_;
  std::atomic<uint32_t> taken_{0};  // bit i: slot_->claims[i] is lent to a thread of this process
};

// What the arenas of all local ranks look like from this process, by local index.
using ArenaMappings = std::vector<std::shared_ptr<Mapping>>;

}  // namespace hvd
