// Parts without a world around them: allocators, segments, claim words, handles.
#include <cstring>
#include <random>
#include <set>
#include <vector>

#include "block_allocator.h"
#include "board_view.h"
#include "check.h"
#include "hvd.h"
#include "op.h"
#include "plan.h"
#include "range_allocator.h"
#include "segments.h"

namespace {

void test_ranges_never_overlap_and_join_again() {
  std::mt19937 random(7);
  hvd::RangeAllocator ranges(0, 1 << 20, 256);
  std::vector<std::pair<uint64_t, uint64_t>> used;
  for (int i = 0; i < 5000; ++i) {
    if (random() % 2 == 0 || used.empty()) {
      uint64_t bytes = random() % 20000, at = ranges.alloc(bytes);
      if (at == hvd::RangeAllocator::kNone) continue;
      CHECK(at % 256 == 0 && at + bytes <= 1 << 20);
      for (auto [other, length] : used) CHECK(at + std::max<uint64_t>(bytes, 1) <= other || other + length <= at);
      used.emplace_back(at, std::max<uint64_t>(bytes, 1));
    } else {
      size_t k = random() % used.size();
      CHECK(ranges.free(used[k].first));
      CHECK(!ranges.free(used[k].first));
      used.erase(used.begin() + static_cast<long>(k));
    }
  }
  for (auto range : used) CHECK(ranges.free(range.first));
  CHECK_EQUAL(ranges.used_bytes(), 0u);
  CHECK(ranges.free_ranges().size() == 1 && ranges.free_ranges().begin()->second == 1 << 20);
  CHECK_EQUAL(ranges.alloc((1 << 20) + 1), hvd::RangeAllocator::kNone);
  CHECK_EQUAL(ranges.alloc(UINT64_MAX), hvd::RangeAllocator::kNone);
}

void test_touched_ranges_against_a_bitmap() {
  std::mt19937 random(3);
  hvd::TouchedRanges touched;
  std::vector<bool> twin(1000, false);
  for (int i = 0; i < 3000; ++i) {
    uint64_t begin = random() % 1000, end = begin + random() % (1001 - begin);
    bool add = random() % 2 == 0;
    add ? touched.add(begin, end) : touched.remove(begin, end);
    for (uint64_t k = begin; k < end; ++k) twin[k] = add;
    uint64_t from = random() % 1000, count = 0;
    for (uint64_t k = from; k < 1000; ++k) count += twin[k] ? 1 : 0;
    CHECK_EQUAL(touched.bytes_within(from, 1000), count);
  }
}

void test_arena_gives_memory_back() {
  hvd_arena *arena = nullptr;
  CHECK_EQUAL(hvd_arena_create(1ull << 36, &arena), HVD_OK);
  constexpr uint64_t kBytes = 16 << 20;
  auto *block = static_cast<char *>(hvd_arena_alloc(arena, kBytes)), *kept = static_cast<char *>(hvd_arena_alloc(arena, 1));
  CHECK(reinterpret_cast<uintptr_t>(block) % 256 == 0 && hvd_arena_alloc(arena, 1ull << 36) == nullptr);
  std::memset(block, 1, kBytes);
  *kept = 5;
  CHECK_EQUAL(hvd_arena_free(arena, block + 256), HVD_E_INVALID);
  CHECK_EQUAL(hvd_arena_free(arena, &arena), HVD_E_INVALID);
  CHECK_EQUAL(hvd_arena_free(arena, block), HVD_OK);
  hvd_arena_info info{};
  CHECK_EQUAL(hvd_arena_stat(arena, &info), HVD_OK);
  CHECK(info.free_touched_bytes >= kBytes - 8192 && info.resident_bytes >= kBytes && info.used_bytes == 256);
  CHECK_EQUAL(hvd_arena_trim(arena, UINT64_MAX), HVD_OK);
  CHECK_EQUAL(hvd_arena_trim(arena, 0), HVD_OK);
  CHECK_EQUAL(hvd_arena_stat(arena, &info), HVD_OK);
  CHECK(info.free_touched_bytes == 0 && info.resident_bytes <= 8192 && *kept == 5);
  void *empty = hvd_arena_alloc(arena, 0);
  CHECK(empty != nullptr && hvd_arena_free(arena, empty) == HVD_OK);
  hvd_arena_close(arena);
}

// See Mapping::open: the same offset in mappings of two colours must differ in bits 12 to 27 of its address.
void test_colours_keep_mappings_apart() {
  auto own = hvd::Mapping::create("hvd-test", 1 << 20);
  std::vector<std::shared_ptr<hvd::Mapping>> peers;
  std::set<uint64_t> places{reinterpret_cast<uint64_t>(own->base()) >> 12 & 0xffff};
  for (uint32_t i = 0; i < 255; ++i) {
    peers.push_back(hvd::Mapping::open(own->fd(), i + 1));
    CHECK(places.insert(reinterpret_cast<uint64_t>(peers.back()->base()) >> 12 & 0xffff).second);
  }
  own->base()[(1 << 20) - 1] = 7;
  for (const auto &peer : peers) CHECK(peer->base()[(1 << 20) - 1] == 7);
}

void test_board_blocks() {
  hvd::BlockAllocator blocks(4096, 1 << 20);
  bool reused = true;
  uint64_t first = blocks.alloc(1000, &reused);
  CHECK(first == 4096 && !reused);
  uint64_t second = blocks.alloc(1000, &reused);
  CHECK(second >= first + 1000 && second % hvd::kBlockAlign == 0);
  blocks.free(first, 1000);
  CHECK(blocks.alloc(900, &reused) == first && reused);
  CHECK_EQUAL(blocks.alloc(2 << 20, &reused), 0u);
  for (uint64_t bytes = 1; bytes < 1 << 20; bytes += 997) {
    CHECK(hvd::BlockAllocator::size_class(bytes) >= bytes);
    CHECK(hvd::BlockAllocator::size_class(bytes) <= bytes + bytes / 4 + 256);
  }
}

void test_segments() {
  std::vector<char> a(10, 'a'), b(100, 'b'), out(200, '-');
  hvd_segment parts[] = {{a.data(), out.data(), 10}, {nullptr, nullptr, 0}, {b.data(), out.data() + 64, 100}};
  hvd::Segments segments;
  CHECK(segments.assign(parts, 3, 64, true));
  CHECK_EQUAL(segments.bytes(), 164u);
  char linear[164];
  for (uint64_t step : {1u, 7u, 64u, 164u}) {
    std::memset(linear, 'x', sizeof linear);
    for (uint64_t at = 0; at < 164; at += step) segments.gather(at, std::min<uint64_t>(step, 164 - at), linear + at);
    for (int i = 0; i < 164; ++i) CHECK(linear[i] == (i < 10 ? 'a' : i < 64 ? '\0' : 'b'));
    for (uint64_t at = 0; at < 164; at += step) segments.scatter(at, std::min<uint64_t>(step, 164 - at), linear + at);
  }
  CHECK(out[9] == 'a' && out[10] == '-' && out[63] == '-' && out[64] == 'b' && out[164] == '-');
  CHECK(segments.in_place() == nullptr);
  hvd_segment same[] = {{out.data(), out.data(), 10}, {out.data() + 64, out.data() + 64, 100}};
  CHECK(segments.assign(same, 2, 64, true) && segments.in_place() == out.data());
  same[1].out = same[1].in == nullptr ? nullptr : out.data() + 65;
  CHECK(segments.assign(same, 2, 64, true) && segments.in_place() == nullptr);
  same[1].out = nullptr;
  CHECK(!segments.assign(same, 2, 64, true) && segments.assign(same, 2, 1, false));
}

void test_chunks_cover_the_payload() {
  for (uint64_t bytes : {4ull, 32ull << 10, (32ull << 10) + 4, 1ull << 20, (64ull << 20) + 12, 1ull << 40}) {
    uint64_t chunk = hvd::chunk_bytes_of(bytes), n = hvd::chunks_of(bytes);
    CHECK(chunk % 4096 == 0 && n <= hvd::kMaxChunks && (n - 1) * chunk < bytes && n * chunk >= bytes);
  }
}

void test_stale_handles() {
  hvd::OpTable table;
  hvd::Op *op = table.create();
  hvd_op first = hvd::OpTable::handle_of(*op);
  CHECK(first > 0 && table.find(first) == op && table.find(first + 1) == nullptr && table.find(0) == nullptr);
  table.destroy(op);
  CHECK(table.find(first) == nullptr);
  hvd::Op *again = table.create();
  CHECK(again == op && table.find(first) == nullptr && table.find(hvd::OpTable::handle_of(*again)) == again);
}

void test_claim_slots_are_lent_once() {
  hvd::RankSlot slot{};
  hvd::ClaimSlots slots(&slot);
  std::vector<std::atomic<uint64_t> *> lent;
  for (uint32_t i = 0; i < hvd::kClaimSlots; ++i) lent.push_back(slots.acquire());
  for (size_t i = 0; i < lent.size(); ++i)
    for (size_t k = 0; k < i; ++k) CHECK(lent[i] != nullptr && lent[i] != lent[k]);
  CHECK(slots.acquire() == nullptr);
  slots.release(lent[5]);
  CHECK(slots.acquire() == lent[5]);
}

void test_plan_specs_are_checked() {
  uint32_t members[] = {0, 1}, twice[] = {1, 1}, beyond[] = {0, 2};
  hvd_plan_spec good{1, HVD_COOPERATIVE, HVD_FLOAT32, HVD_SUM, 1, 1, 4096, 2, 2, members, 0};
  CHECK(hvd::spec_is_valid(good, 2));
  auto refused = [&](auto change) {
    hvd_plan_spec bad = good;
    change(bad);
    CHECK(!hvd::spec_is_valid(bad, 2));
  };
  refused([](hvd_plan_spec &s) { s.kind = 2; });
  refused([](hvd_plan_spec &s) { s.dtype = 11; });
  refused([](hvd_plan_spec &s) { s.op = 0; });
  refused([](hvd_plan_spec &s) { s.op = 6; });
  refused([](hvd_plan_spec &s) { s.bytes = 4098; });
  refused([](hvd_plan_spec &s) { s.depth = 0; });
  refused([](hvd_plan_spec &s) { s.depth = 1u << 20; });
  refused([](hvd_plan_spec &s) { s.plan_id = 0; });
  refused([](hvd_plan_spec &s) { s.n_members = 0; });
  refused([](hvd_plan_spec &s) { s.n_members = 3; });
  refused([&](hvd_plan_spec &s) { s.members = twice; });
  refused([&](hvd_plan_spec &s) { s.members = beyond; });
  refused([](hvd_plan_spec &s) { s.members = nullptr; });
}

}  // namespace

int main() {
  RUN(test_ranges_never_overlap_and_join_again);
  RUN(test_touched_ranges_against_a_bitmap);
  RUN(test_arena_gives_memory_back);
  RUN(test_colours_keep_mappings_apart);
  RUN(test_board_blocks);
  RUN(test_segments);
  RUN(test_chunks_cover_the_payload);
  RUN(test_stale_handles);
  RUN(test_claim_slots_are_lent_once);
  RUN(test_plan_specs_are_checked);
}
