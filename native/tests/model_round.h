// A model of one entry of a plan's ring (depth 1, so that round 1 reuses what round 0 used) and of the ranks around it.
// Every access to shared memory is one step; a search takes the steps in all orders.  It mirrors round.cc, help.cc and the
// waiting loop of the engine by hand; `Mistake` breaks one rule at a time, to show that the search would notice.
#pragma once
#include <cstdint>
#include <string>

namespace model {

constexpr int kMaxMembers = 3, kMaxRounds = 2, kMaxChunks = 2;

enum class Mistake { kNone, kPublishAfterClaim, kSleepWithoutLook, kReuseUnread, kLimitReadOnce, kLeaveWithClaims,
                     kOpenWithoutCas, kClaimWithoutRound };
// What the agent does, once, at any moment.
enum class Agent { kNothing, kFails, kMarks };

struct Setting {
  int members = 2, rounds = 2, chunks = 2;
  Agent agent = Agent::kNothing;
  Mistake mistake = Mistake::kNone;
};

struct Result {
  uint64_t states = 0;
  std::string problem;  // empty: every order of steps keeps every rule
};

Result explore(const Setting &setting);

}  // namespace model
