// A model of one plan block that the agent takes from plan 1 and gives to plan 2, while helpers still have the view of plan 1.
// Claim words of the two plans look the same: both count the chunks claimed in a round 0.  Every access to shared memory is one
// step; a search takes the steps in all orders.  It mirrors plan_remove, format_plan and claim() by hand; rounds are model_round.h.
#pragma once
#include <cstdint>
#include <string>

namespace block_model {

constexpr int kMaxClaimers = 4, kChunks = 2;

enum class Mistake { kNone, kNoLookAtId, kSlotsReadOnlyBefore, kPublishAfterLook, kSameId };

struct Setting {
  int helpers = 1;   // with a view of plan 1, each looks for a chunk twice
  int members = 2;   // of plan 2, each opens its round 0 and claims until nothing is left; 0: it stays unused
  int old_left = 1;  // chunks that nobody has claimed in the open round 0 of plan 1
  Mistake mistake = Mistake::kNone;
};

struct Result {
  uint64_t states = 0;
  std::string problem;  // empty: every order of steps keeps every rule
};

Result explore(const Setting &setting);

}  // namespace block_model
