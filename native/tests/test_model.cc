// All interleavings of the models keep the rules; each seeded mistake breaks one.
#include <string>

#include "check.h"
#include "model_block.h"
#include "model_round.h"
#include "model_window.h"

using model::Agent;
using model::Mistake;
using model::Setting;

namespace {

void check_correct(const Setting &setting) {
  model::Result result = model::explore(setting);
  std::printf("  %d members, %d rounds, %d chunks, agent %d: %llu states %s\n", setting.members, setting.rounds,
              setting.chunks, static_cast<int>(setting.agent), static_cast<unsigned long long>(result.states),
              result.problem.c_str());
  std::fflush(stdout);
  CHECK(result.problem.empty());
  CHECK(result.states > 100);
}

void test_two_members_two_rounds() {
  for (Agent agent : {Agent::kNothing, Agent::kFails, Agent::kMarks})
    for (int chunks : {1, 2}) check_correct({2, 2, chunks, agent, Mistake::kNone});
}

// Two of the three claim from the same end.
void test_three_members() {
  for (int chunks : {1, 2}) check_correct({3, 1, chunks, Agent::kNothing, Mistake::kNone});
}

// Some minutes and gigabytes: run by hand with --deep.
void test_three_members_deep() {
  for (Agent agent : {Agent::kFails, Agent::kMarks}) check_correct({3, 1, 1, agent, Mistake::kNone});
}

void check_caught(Mistake mistake, Agent agent, const std::string &problem, int members = 2) {
  model::Result result = model::explore({members, members == 2 ? 2 : 1, 2, agent, mistake});
  std::printf("  mistake %d: %s\n", static_cast<int>(mistake), result.problem.c_str());
  std::fflush(stdout);
  CHECK(result.problem == problem);
}

void test_seeded_mistakes_are_caught() {
  check_caught(Mistake::kPublishAfterClaim, Agent::kFails, "a member left a round in which a chunk is held");
  check_caught(Mistake::kLeaveWithClaims, Agent::kFails, "a member left a round in which a chunk is held");
  check_caught(Mistake::kSleepWithoutLook, Agent::kNothing, "an actor sleeps for ever");
  check_caught(Mistake::kReuseUnread, Agent::kNothing, "an entry is used again although a member has not read it");
  check_caught(Mistake::kLimitReadOnce, Agent::kMarks, "an arrival was neither marked nor seen");
  check_caught(Mistake::kOpenWithoutCas, Agent::kNothing, "a chunk is reduced twice");
  check_caught(Mistake::kClaimWithoutRound, Agent::kNothing, "a chunk is reduced twice", 3);
}

void test_block_goes_to_another_plan() {
  for (int helpers : {1, 2})
    for (int members : {1, 2})
      for (int old_left : {0, 1, 2}) {
        block_model::Result result = block_model::explore({helpers, members, old_left, block_model::Mistake::kNone});
        std::printf("  %d old views, %d members, %d chunks left: %llu states %s\n", helpers, members, old_left,
                    static_cast<unsigned long long>(result.states), result.problem.c_str());
        CHECK(result.problem.empty());
        CHECK(result.states > 100);
      }
}

void check_block_caught(block_model::Mistake mistake, int members, const std::string &problem) {
  block_model::Result result = block_model::explore({1, members, 1, mistake});
  std::printf("  mistake %d, %d members: %s\n", static_cast<int>(mistake), members, result.problem.c_str());
  std::fflush(stdout);
  CHECK(result.problem == problem);
}

void test_seeded_mistakes_of_the_block_are_caught() {
  using block_model::Mistake;
  for (Mistake mistake : {Mistake::kNoLookAtId, Mistake::kSlotsReadOnlyBefore, Mistake::kPublishAfterLook, Mistake::kSameId})
    check_block_caught(mistake, 1, "a chunk is reduced with the view of another plan");
  for (Mistake mistake : {Mistake::kSlotsReadOnlyBefore, Mistake::kPublishAfterLook})
    check_block_caught(mistake, 0, "a block is written anew while a claim in it is held");
}

void test_windows_of_a_travelling_round() {
  for (bool fails : {false, true}) {
    window_model::Result result = window_model::explore({fails, window_model::Mistake::kNone});
    std::printf("  fails %d: %llu states %s\n", fails, static_cast<unsigned long long>(result.states), result.problem.c_str());
    CHECK(result.problem.empty());
    CHECK(result.states > 100);
  }
}

void check_window_caught(window_model::Mistake mistake, bool fails, const std::string &problem) {
  window_model::Result result = window_model::explore({fails, mistake});
  std::printf("  mistake %d: %s\n", static_cast<int>(mistake), result.problem.c_str());
  std::fflush(stdout);
  CHECK(result.problem == problem);
}

void test_seeded_mistakes_of_windows_are_caught() {
  using window_model::Mistake;
  check_window_caught(Mistake::kFillUntaken, false, "the leader's slot is filled while somebody touches it");
  check_window_caught(Mistake::kEndUntaken, false, "the leader's slot is given away while somebody touches it");
  check_window_caught(Mistake::kReadUnheld, true, "the leader's slot is given away while somebody touches it");
  check_window_caught(Mistake::kHoldAfterLook, true, "the leader's slot is given away while somebody touches it");
  check_window_caught(Mistake::kClosedIsOver, true, "an actor waits for ever");
  check_window_caught(Mistake::kLeaveWithNet, true, "the leader's slot is given away while somebody touches it");
  check_window_caught(Mistake::kCarriedEarly, false, "what is taken is not the result");
  check_window_caught(Mistake::kReduceUnfilled, false, "what is reduced is not the input");
}

}  // namespace

int main(int argc, char **argv) {
  RUN(test_two_members_two_rounds);
  RUN(test_three_members);
  RUN(test_seeded_mistakes_are_caught);
  RUN(test_block_goes_to_another_plan);
  RUN(test_seeded_mistakes_of_the_block_are_caught);
  RUN(test_windows_of_a_travelling_round);
  RUN(test_seeded_mistakes_of_windows_are_caught);
  if (argc > 1 && std::string(argv[1]) == "--deep") RUN(test_three_members_deep);
}
