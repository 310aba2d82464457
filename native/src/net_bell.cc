#include "net_bell.h"

#include <csignal>
#include <pthread.h>
#include <unistd.h>

namespace hvd {
namespace {

constexpr uint64_t kLookAgainNs = 1'000'000'000;

}  // namespace

void write_event(int event_fd) {
  uint64_t one = 1;
  ssize_t ignored = write(event_fd, &one, sizeof one);  // fails only when the counter is full: then it is readable
  (void)ignored;
}

void clear_event(int event_fd) {
  uint64_t count = 0;
  ssize_t ignored = read(event_fd, &count, sizeof count);
  (void)ignored;
}

void block_signals() {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, nullptr);
}

BellRelay::BellRelay(Bell *bell, int event_fd) : bell_(bell), event_fd_(event_fd) {
  thread_ = std::thread([this] { run(); });
}

BellRelay::~BellRelay() {
  stop_.store(true, std::memory_order_seq_cst);
  wake_sleepers(*bell_);
  thread_.join();
}

// Ringers change the word only while the net counts as a sleeper, so this thread runs only then.
void BellRelay::run() {
  block_signals();
  uint32_t seen = bell_->word.load(std::memory_order_seq_cst);
  while (!stop_.load(std::memory_order_seq_cst)) {
    wait_for_ring(*bell_, seen, kLookAgainNs);
    uint32_t word = bell_->word.load(std::memory_order_seq_cst);
    if (word != seen) write_event(event_fd_);
    seen = word;
  }
}

}  // namespace hvd
