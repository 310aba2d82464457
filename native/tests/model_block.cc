#include "model_block.h"

#include <cstring>
#include <set>
#include <vector>

namespace block_model {
namespace {

// The claim word counts the chunks claimed in round 0; never: round 0 has not opened.
constexpr uint8_t kNever = 0xff, kFree = 0, kHeld = 1;
constexpr uint8_t kOldLooks = 2;

enum Pc : uint8_t {
  kUnborn, kReadToOpen, kOpen,                                          // a member until round 0 of plan 2 is open
  kReadClaim, kPublish, kReadId, kClaim, kReduce, kEndClaim, kFinished, // claiming, with either view
  kLimit, kReadSlots, kDropId, kReadSlotsAgain, kRestoreId,             // the agent removes plan 1
  kWipe, kFormatClaim, kFormatId                                        // and writes plan 2
};

struct Actor {
  Pc pc;
  uint8_t seen_claim, seen_slot, looks, reduces;  // reduces: the plan whose chunk it holds, 0: none
};

struct State {
  // shared memory; the slots name a block and a round, not a plan
  uint8_t claim, id, limit, slots[kMaxClaimers];
  Actor actors[kMaxClaimers + 1];
  // what the search knows and no actor may read
  uint8_t owner, reduced[kChunks];  // whose block it is; how often each chunk of plan 2 was reduced

  bool operator<(const State &other) const { return std::memcmp(this, &other, sizeof *this) < 0; }
};
static_assert(sizeof(Pc) == 1 && alignof(State) == 1, "compared byte by byte: no padding");

class Search {
 public:
  explicit Search(const Setting &setting) : setting_(setting), claimers_(setting.helpers + setting.members) {}
  Result run();

 private:
  State start() const;
  // One step of one actor; false when it cannot move.
  bool step(State &s, int who);
  bool open_step(State &s, Actor &a);
  void look_step(State &s, Actor &a, int who);
  void claim_step(State &s, Actor &a, int who);
  void agent_step(State &s, Actor &a);
  void read_slot(const State &s, Actor &a, Pc when_held, Pc when_free);
  void look_again(Actor &a, int who) const;
  void reformat(State &s);
  bool has_old_view(int who) const { return who < setting_.helpers; }
  uint8_t plan_of(int who) const { return has_old_view(who) ? 1 : 2; }
  uint8_t new_id() const { return is(Mistake::kSameId) ? 1 : 2; }
  uint8_t id_of(int who) const { return has_old_view(who) ? 1 : new_id(); }
  bool is(Mistake mistake) const { return setting_.mistake == mistake; }
  void check(bool holds, const char *rule);
  void check_end(const State &s);

  Setting setting_;
  int claimers_;
  std::string problem_;
};

void Search::check(bool holds, const char *rule) {
  if (!holds && problem_.empty()) problem_ = rule;
}

State Search::start() const {
  State s;
  std::memset(&s, 0, sizeof s);
  s.claim = static_cast<uint8_t>(kChunks - setting_.old_left);
  s.id = s.owner = s.limit = 1;
  for (int i = 0; i < claimers_; ++i) {
    s.actors[i].pc = has_old_view(i) ? kReadClaim : kUnborn;
    s.actors[i].looks = has_old_view(i) ? kOldLooks : 0;
  }
  s.actors[claimers_].pc = kLimit;
  return s;
}

// Members get the offset of plan 2 when it is written.
bool Search::open_step(State &s, Actor &a) {
  switch (a.pc) {
    case kUnborn:
      a.pc = kReadToOpen;
      return s.owner == 2 && s.id == new_id();
    case kReadToOpen:
      a.seen_claim = s.claim;
      a.pc = s.claim == kNever && s.limit != 0 ? kOpen : kReadClaim;
      return true;
    default:  // kOpen
      if (s.claim == a.seen_claim) s.claim = 0;
      a.pc = kReadClaim;
      return true;
  }
}

void Search::look_again(Actor &a, int who) const {
  a.pc = has_old_view(who) && --a.looks == 0 ? kFinished : kReadClaim;
}

// claim() in help.cc: publish, look at the id, compare and swap.
void Search::look_step(State &s, Actor &a, int who) {
  bool late = is(Mistake::kPublishAfterLook);
  switch (a.pc) {
    case kReadClaim:
      a.seen_claim = s.claim;
      if (s.claim < kChunks)
        a.pc = late ? kReadId : kPublish;
      else if (has_old_view(who))
        look_again(a, who);
      else
        a.pc = kFinished;
      return;
    case kPublish:
      s.slots[who] = kHeld;
      a.pc = late || is(Mistake::kNoLookAtId) ? kClaim : kReadId;
      return;
    default:  // kReadId
      a.pc = s.id != id_of(who) ? kEndClaim : late ? kPublish : kClaim;
      return;
  }
}

void Search::claim_step(State &s, Actor &a, int who) {
  switch (a.pc) {
    case kClaim:
      a.pc = kEndClaim;
      if (s.claim != a.seen_claim) return;
      ++s.claim;
      a.reduces = s.owner;
      a.pc = kReduce;
      return;
    case kReduce:
      check(a.reduces == plan_of(who), "a chunk is reduced with the view of another plan");
      if (a.reduces == 2) ++s.reduced[a.seen_claim];
      a.pc = kEndClaim;
      return;
    default:  // kEndClaim
      s.slots[who] = kFree;
      a.reduces = 0;
      look_again(a, who);
      return;
  }
}

void Search::read_slot(const State &s, Actor &a, Pc when_held, Pc when_free) {
  bool held = s.slots[a.seen_slot] == kHeld;
  if (!held && ++a.seen_slot < claimers_) return;
  a.seen_slot = 0;
  a.pc = held ? when_held : when_free;
}

void Search::reformat(State &s) {
  for (int i = 0; i < claimers_; ++i) check(s.actors[i].reduces == 0, "a block is written anew while a claim in it is held");
  s.owner = 2;
}

// plan_remove tries until no slot is held; then plan_add: memory is zeroed, and zero is a word with nothing claimed.
void Search::agent_step(State &s, Actor &a) {
  switch (a.pc) {
    case kLimit:
      s.limit = 0;
      a.pc = kReadSlots;
      return;
    case kReadSlots:
      return read_slot(s, a, kReadSlots, kDropId);
    case kDropId:
      s.id = 0;
      a.pc = is(Mistake::kSlotsReadOnlyBefore) ? kWipe : kReadSlotsAgain;
      return;
    case kReadSlotsAgain:
      return read_slot(s, a, kRestoreId, kWipe);
    case kRestoreId:
      s.id = 1;
      a.pc = kReadSlots;
      return;
    case kWipe:
      reformat(s);
      s.claim = 0;
      s.limit = 1;
      a.pc = kFormatClaim;
      return;
    case kFormatClaim:
      s.claim = kNever;
      a.pc = kFormatId;
      return;
    default:  // kFormatId
      s.id = new_id();
      a.pc = kFinished;
      return;
  }
}

bool Search::step(State &s, int who) {
  Actor &a = s.actors[who];
  if (a.pc == kFinished) return false;
  if (a.pc <= kOpen) return open_step(s, a);
  if (a.pc <= kReadId)
    look_step(s, a, who);
  else if (a.pc <= kEndClaim)
    claim_step(s, a, who);
  else
    agent_step(s, a);
  return true;
}

// Nobody can move.  The agent tries again only while a slot is held, and who holds one moves: so this is reached.
void Search::check_end(const State &s) {
  for (int i = 0; i <= claimers_; ++i) check(s.actors[i].pc == kFinished, "an actor waits for ever");
  uint8_t wanted = setting_.members == 0 ? 0 : 1;
  for (uint8_t times : s.reduced) check(times == wanted, "a chunk of the new plan is not reduced once");
}

Result Search::run() {
  std::set<State> seen{start()};
  std::vector<State> stack{start()};
  while (!stack.empty() && problem_.empty()) {
    State at = stack.back();
    stack.pop_back();
    bool moved = false;
    for (int who = 0; who <= claimers_; ++who) {
      State next = at;
      if (!step(next, who)) continue;
      moved = true;
      if (seen.insert(next).second) stack.push_back(next);
    }
    if (!moved) check_end(at);
  }
  return {seen.size(), problem_};
}

}  // namespace

Result explore(const Setting &setting) { return Search(setting).run(); }

}  // namespace block_model
