// Turns the net's bell, a futex that ranks ring, into an eventfd that epoll understands.  The net counts itself as the bell's
// sleeper while it sleeps in epoll; the relay's thread sleeps on the word and writes to the eventfd when it changes.
#pragma once
#include <atomic>
#include <thread>

#include "bell.h"

namespace hvd {

class BellRelay {
 public:
  BellRelay(Bell *bell, int event_fd);
  ~BellRelay();
  BellRelay(const BellRelay &) = delete;
  BellRelay &operator=(const BellRelay &) = delete;

 private:
  void run();
  Bell *bell_;
  int event_fd_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

void write_event(int event_fd);
void clear_event(int event_fd);
// Signals belong to the agent's main thread.
void block_signals();

}  // namespace hvd
