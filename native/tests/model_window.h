// A model of one round between hosts in which a leader and a reader have windows of one slot: both fill, either reduces into the
// leader's slot, the net carries the sum, both take the result from there, and the slot is used again.  Every access to shared memory
// that another may overtake is one step; a search takes the steps in all orders.  It mirrors driving.cc, window.cc, settle.cc and
// net_rounds.cc by hand.  Who has nothing to do cannot move: how such a one sleeps and is woken is model_round.h.
#pragma once
#include <cstdint>
#include <string>

namespace window_model {

constexpr int kChunks = 2;

enum class Mistake { kNone, kFillUntaken, kEndUntaken, kReadUnheld, kHoldAfterLook, kClosedIsOver, kLeaveWithNet, kCarriedEarly,
                     kReduceUnfilled };

struct Setting {
  bool fails = false;  // the epoch, once, at any moment
  Mistake mistake = Mistake::kNone;
};

struct Result {
  uint64_t states = 0;
  std::string problem;  // empty: every order of steps keeps every rule
};

Result explore(const Setting &setting);

}  // namespace window_model
