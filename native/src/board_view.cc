#include "board_view.h"

#include <new>

namespace hvd {
namespace {

constexpr uint64_t kSlotsOffset = (sizeof(BoardHeader) + 4095) / 4096 * 4096;

uint64_t blocks_offset(uint32_t local_size) {
  uint64_t end = kSlotsOffset + (uint64_t{local_size} + 1) * sizeof(RankSlot);
  return (end + kBlockAlign - 1) / kBlockAlign * kBlockAlign;
}

bool names_block(uint64_t claim, uint64_t block_offset) { return claim >> 40 == block_offset / kBlockAlign; }

}  // namespace

BoardView BoardView::format(std::shared_ptr<Mapping> mapping, uint32_t local_size, uint64_t spin_ns) {
  auto *header = new (mapping->base()) BoardHeader{};
  header->abi_version = HVD_ABI_VERSION;
  header->local_size = local_size;
  header->spin_ns = spin_ns;
  header->slots_offset = kSlotsOffset;
  header->blocks_offset = blocks_offset(local_size);
  header->magic.store(kBoardMagic, std::memory_order_release);
  BoardView view;
  view.header = header;
  view.slots = reinterpret_cast<RankSlot *>(mapping->base() + kSlotsOffset);
  view.local_size = local_size;
  view.mapping = std::move(mapping);
  return view;
}

bool BoardView::load(std::shared_ptr<Mapping> mapping, BoardView *out) {
  if (mapping->bytes() < kSlotsOffset) return false;
  auto *header = reinterpret_cast<BoardHeader *>(mapping->base());
  if (header->magic.load(std::memory_order_acquire) != kBoardMagic) return false;
  uint32_t local_size = header->local_size;
  if (header->abi_version != HVD_ABI_VERSION || local_size == 0 || local_size > kMaxLocalRanks) return false;
  if (header->slots_offset != kSlotsOffset || blocks_offset(local_size) > mapping->bytes()) return false;
  out->header = header;
  out->slots = reinterpret_cast<RankSlot *>(mapping->base() + kSlotsOffset);
  out->local_size = local_size;
  out->mapping = std::move(mapping);
  return true;
}

hvd_status BoardView::state() const {
  return static_cast<hvd_status>(-static_cast<int>(header->state.load(std::memory_order_seq_cst)));
}

void BoardView::agent_dead() const {
  agent_slot().dead.store(1, std::memory_order_seq_cst);
  header->state.store(static_cast<uint32_t>(-HVD_E_FAILED), std::memory_order_seq_cst);
  ring_everyone();
}

void BoardView::ring_everyone() const {
  for (uint32_t i = 0; i <= local_size; ++i) ring(slots[i].bell);
  ring(header->agent_bell);
  ring(header->net.bell);
}

bool BoardView::has_holder(uint64_t block_offset, uint64_t round) const {
  uint64_t name = claim_name(block_offset, round);
  for (uint32_t i = 0; i <= local_size; ++i) {
    if (slots[i].dead.load(std::memory_order_seq_cst) != 0) continue;
    for (const auto &claim : slots[i].claims)
      if (claim.load(std::memory_order_seq_cst) == name) return true;
  }
  return false;
}

bool BoardView::block_has_holder(uint64_t block_offset) const {
  for (uint32_t i = 0; i <= local_size; ++i) {
    if (slots[i].dead.load(std::memory_order_seq_cst) != 0) continue;
    for (const auto &claim : slots[i].claims)
      if (names_block(claim.load(std::memory_order_seq_cst), block_offset)) return true;
  }
  return false;
}

std::atomic<uint64_t> *ClaimSlots::acquire() {
  uint32_t taken = taken_.load(std::memory_order_relaxed);
  while (taken != (1u << kClaimSlots) - 1) {
    uint32_t lowest = ~taken & (taken + 1);
    if (taken_.compare_exchange_weak(taken, taken | lowest, std::memory_order_acquire))
      return &slot_->claims[__builtin_ctz(lowest)];
  }
  return nullptr;
}

void ClaimSlots::release(std::atomic<uint64_t> *claim) {
  uint32_t bit = 1u << static_cast<uint32_t>(claim - slot_->claims);
  taken_.fetch_and(~bit, std::memory_order_release);
}

}  // namespace hvd
