// Prints what rounds cost: bench_rounds [ranks] [spin_us].  Medians; "floor" is the same kernel on the same buffers,
// split statically over the ranks.  Not a test: relative numbers, on an otherwise idle machine.
#include <algorithm>
#include <cstdlib>
#include <vector>

#include "bell.h"
#include "check.h"
#include "shm.h"
#include "world.h"

using world::Host;

namespace {

constexpr uint64_t kSizes[] = {8, 4 << 10, 64 << 10, 1 << 20, 8 << 20, 64 << 20};

int repeats_for(uint64_t bytes) { return static_cast<int>(std::clamp<uint64_t>((1u << 29) / (bytes + 1), 15, 5000)); }

template <class Body>
double median_us(int repeats, Body body) {
  std::vector<uint64_t> times;
  for (int i = 0; i < repeats; ++i) {
    uint64_t start = hvd::now_ns();
    body();
    times.push_back(hvd::now_ns() - start);
  }
  std::nth_element(times.begin(), times.begin() + repeats / 2, times.end());
  return static_cast<double>(times[static_cast<size_t>(repeats / 2)]) / 1000;
}

struct Buffers {
  float *plain, *arena;
};

void run_rank(Host &host, uint32_t rank, hvd_engine *engine, const std::vector<uint64_t> &plans, uint64_t barrier) {
  uint64_t largest = kSizes[5];
  std::vector<float> plain(largest / 4, 0.0f);
  auto *slot = static_cast<float *>(hvd_arena_alloc(host.arenas[rank], largest));
  std::fill_n(slot, largest / 4, 0.0f);
  for (size_t i = 0; i < plans.size(); ++i) {
    uint64_t bytes = kSizes[i];
    int repeats = repeats_for(bytes);
    auto meet = [&] { CHECK_EQUAL(world::allreduce(engine, barrier, nullptr, nullptr, 0), HVD_OK); };
    auto timed = [&](float *data, uint32_t flags) {
      meet();
      return median_us(repeats, [&] { CHECK_EQUAL(world::allreduce(engine, plans[i], data, data, bytes, flags), HVD_OK); });
    };
    double blocking = timed(plain.data(), HVD_OP_BLOCKING), staged = timed(plain.data(), 0), in_place = timed(slot, 0);
    if (rank == 0) std::printf("%10llu bytes: plain %10.2f us  staged %10.2f us  arena %10.2f us\n",
                               static_cast<unsigned long long>(bytes), blocking, staged, in_place);
    std::fflush(stdout);
  }
}

void run_floor(Host &host) {
  std::vector<std::shared_ptr<hvd::Mapping>> slots;
  for (uint32_t rank = 0; rank < host.n; ++rank) slots.push_back(hvd::Mapping::open(host.arena_fds[rank], rank));
  for (uint64_t bytes : {kSizes[3], kSizes[4], kSizes[5]}) {
    std::vector<double> times(host.n);
    uint64_t part = bytes / host.n / 64 * 64;
    std::vector<std::thread> ranks;
    for (uint32_t rank = 0; rank < host.n; ++rank)
      ranks.emplace_back([&, rank] {
        std::vector<void *> at;
        for (const auto &slot : slots) at.push_back(slot->base() + rank * part);
        times[rank] = median_us(repeats_for(bytes), [&] {
          hvd_reduce(HVD_FLOAT32, HVD_SUM, 1, 1, at.data(), at.data(), host.n, part / 4);
        });
      });
    for (std::thread &rank : ranks) rank.join();
    std::printf("%10llu bytes: floor %10.2f us\n", static_cast<unsigned long long>(bytes),
                *std::max_element(times.begin(), times.end()));
  }
}

}  // namespace

int main(int argc, char **argv) {
  uint32_t n = argc > 1 ? static_cast<uint32_t>(std::atoi(argv[1])) : 2;
  uint64_t spin_ns = (argc > 2 ? static_cast<uint64_t>(std::atoi(argv[2])) : 50) * 1000;
  Host host(n, spin_ns);
  std::vector<uint64_t> plans;
  for (uint64_t bytes : kSizes) plans.push_back(host.add(HVD_COOPERATIVE, bytes));
  uint64_t barrier = host.add(HVD_COOPERATIVE, 0);
  auto ranks = world::processes(host, [&](uint32_t rank, hvd_engine *engine) { run_rank(host, rank, engine, plans, barrier); });
  for (pid_t rank : ranks) CHECK(world::exited_well(rank));
  run_floor(host);
}
