// A bell: one futex word on which all sleeping threads of one process sleep.
//
// No wake-up is lost, by four sequentially consistent accesses:
//   ringer:  stores what changed;  then reads `sleepers`
//   sleeper: raises `sleepers`;    then reads what may have changed
// At least one of the two sees the other.  A sleeper that saw no change sleeps only while `word` is what it read before
// it looked, so a ring between its look and its sleep ends the sleep at once.
#pragma once
#include <atomic>
#include <cstdint>

namespace hvd {

struct Bell {
  std::atomic<uint32_t> word;
  std::atomic<uint32_t> sleepers;
};

// Wakes every sleeper.  The change it announces must have been made by a seq_cst store before (pairs with BellSleep).
inline bool has_sleepers(const Bell &bell) { return bell.sleepers.load(std::memory_order_seq_cst) != 0; }
void wake_sleepers(Bell &bell);
inline void ring(Bell &bell) {
  if (has_sleepers(bell)) wake_sleepers(bell);
}

// While it lives the caller counts as a sleeper; look again at everything (seq_cst) between construction and sleep().
class BellSleep {
 public:
  explicit BellSleep(Bell &bell);
  ~BellSleep();
  BellSleep(const BellSleep &) = delete;
  BellSleep &operator=(const BellSleep &) = delete;
  void sleep(uint64_t at_most_ns);

 private:
  Bell &bell_;
  uint32_t seen_;
};

// Sleeps while `word` is `seen`, without counting as a sleeper: for a thread that somebody else counts for.
void wait_for_ring(Bell &bell, uint32_t seen, uint64_t at_most_ns);

uint64_t now_ns();  // CLOCK_MONOTONIC
void cpu_pause();

}  // namespace hvd
