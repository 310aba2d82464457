#include "bell.h"

#include <climits>
#include <ctime>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace hvd {
namespace {

// Not FUTEX_PRIVATE: the word lies in memory that several processes share.
long futex(std::atomic<uint32_t> &word, int operation, uint32_t value, const timespec *timeout) {
  return syscall(SYS_futex, reinterpret_cast<uint32_t *>(&word), operation, value, timeout, nullptr, 0);
}

}  // namespace

void wake_sleepers(Bell &bell) {
  bell.word.fetch_add(1, std::memory_order_seq_cst);
  futex(bell.word, FUTEX_WAKE, INT_MAX, nullptr);
}

BellSleep::BellSleep(Bell &bell) : bell_(bell) {
  bell_.sleepers.fetch_add(1, std::memory_order_seq_cst);
  seen_ = bell_.word.load(std::memory_order_seq_cst);
}

BellSleep::~BellSleep() { bell_.sleepers.fetch_sub(1, std::memory_order_seq_cst); }

void BellSleep::sleep(uint64_t at_most_ns) { wait_for_ring(bell_, seen_, at_most_ns); }

void wait_for_ring(Bell &bell, uint32_t seen, uint64_t at_most_ns) {
  timespec timeout{static_cast<time_t>(at_most_ns / 1000000000u), static_cast<long>(at_most_ns % 1000000000u)};
  futex(bell.word, FUTEX_WAIT, seen, &timeout);
}

uint64_t now_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1000000000u + static_cast<uint64_t>(now.tv_nsec);
}

void cpu_pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace hvd
