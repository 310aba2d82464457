#include "model_window.h"

#include <cstring>
#include <set>
#include <vector>

namespace window_model {
namespace {

enum Who : int { kLeader, kReader, kNet, kAgent, kActors };
constexpr int kMembers = 2;

enum Pc : uint8_t {
  kLook,                                                              // a member between two steps, chooses what to do
  kFill, kPublishFilled,                                              // copy in
  kHold, kReadClosed, kReadComplete, kTake, kTaken, kEndTake,         // copy out
  kClaim, kReduce, kReduced, kEndClaim,                               // help
  kClose, kReadSlot, kReadNetHold, kReadLastTime,                     // leave a failed round
  kNetHold, kNetReadClosed, kNetLook, kCarry, kCarried, kNetComplete, kNetEnd,
  kFail, kFinished
};

// What lies in the leader's slot: the stage of a chunk; a chunk's stages are 4 apart.
enum Stage : uint8_t { kInput = 1, kSum, kResult };
constexpr uint8_t kForeign = 0xff;  // the slot is free for another op

struct Actor {
  Pc pc;
  uint8_t next_in, next_out, chunk, touches;  // touches: the leader's slot, at this moment
};

struct State {
  // shared memory
  uint8_t filled[kMembers], emptied[kMembers], slots[kMembers], ready[kChunks], carried[kChunks];
  uint8_t claimed, closed, complete, failed, net_hold;
  Actor actors[kActors];
  // what the search knows and no actor may read
  uint8_t content;

  bool operator<(const State &other) const { return std::memcmp(this, &other, sizeof *this) < 0; }
};
static_assert(sizeof(Pc) == 1 && alignof(State) == 1, "compared byte by byte: no padding");

uint8_t lies(int chunk, Stage stage) { return static_cast<uint8_t>(chunk * 4 + stage); }

class Search {
 public:
  explicit Search(const Setting &setting) : setting_(setting) {}
  Result run();

 private:
  State start() const;
  // All states that one step of this actor may lead to.
  void steps(const State &s, int who, std::vector<State> *next);
  void look(const State &s, int who, std::vector<State> *next) const;
  bool step(State &s, int who);
  void fill_step(State &s, Actor &a, int who);
  void take_step(State &s, Actor &a, int who);
  void claim_step(State &s, Actor &a, int who);
  void leave_step(State &s, Actor &a, int who);
  bool net_step(State &s, Actor &a);
  void end(State &s, Actor &a, int who);
  void touch(State &s, Actor &a, bool holds, const char *rule);
  bool can_fill(const State &s, int who) const;
  bool can_claim(const State &s) const;
  bool is_over(const State &s, int who) const;
  bool is(Mistake mistake) const { return setting_.mistake == mistake; }
  void check(bool holds, const char *rule);
  void check_end(const State &s);

  Setting setting_;
  std::string problem_;
};

void Search::check(bool holds, const char *rule) {
  if (!holds && problem_.empty()) problem_ = rule;
}

State Search::start() const {
  State s;
  std::memset(&s, 0, sizeof s);
  s.content = lies(0, kInput);
  s.actors[kNet].pc = kNetHold;
  s.actors[kAgent].pc = setting_.fails ? kFail : kFinished;
  return s;
}

void Search::touch(State &s, Actor &a, bool holds, const char *rule) {
  check(holds, rule);
  a.touches = 1;
  int touching = 0;
  for (const Actor &actor : s.actors) touching += actor.touches;
  bool both_read = s.actors[kLeader].pc == kTake || s.actors[kLeader].pc == kTaken;
  check(touching == 1 || both_read, "two touch the leader's slot at once");
}

bool Search::can_fill(const State &s, int who) const {
  const Actor &a = s.actors[who];
  if (a.next_in == kChunks || a.next_in > a.next_out) return false;
  return who == kReader || a.next_in == 0 || s.emptied[kReader] >= a.next_in || is(Mistake::kFillUntaken);
}

bool Search::can_claim(const State &s) const {
  if (s.closed || s.claimed == kChunks) return false;
  return s.filled[kLeader] > s.claimed && (s.filled[kReader] > s.claimed || is(Mistake::kReduceUnfilled));
}

bool Search::is_over(const State &s, int who) const {
  if (!s.complete || s.actors[who].next_out != kChunks) return false;
  return who == kReader || s.emptied[kReader] == kChunks || is(Mistake::kEndUntaken);
}

// A member may do whatever there is to do now, in any order: several threads of it look.
void Search::look(const State &s, int who, std::vector<State> *next) const {
  const Actor &a = s.actors[who];
  auto go = [&](Pc pc) {
    State to = s;
    to.actors[who].pc = pc;
    to.actors[who].chunk = pc == kClaim ? s.claimed : pc == kFill ? a.next_in : a.next_out;
    next->push_back(to);
  };
  bool is_closed = s.closed && (!s.complete || is(Mistake::kClosedIsOver));
  if (is_over(s, who)) go(kFinished);
  if (s.failed && !s.complete) go(kClose);
  if (can_fill(s, who) && !is_closed) go(kFill);
  bool can_take = a.next_out < a.next_in && s.carried[a.next_out];
  if (can_take && (!is_closed || who == kLeader)) go(who == kLeader ? kTake : is(Mistake::kHoldAfterLook) ? kReadClosed : kHold);
  if (can_claim(s)) go(kClaim);
}

void Search::end(State &s, Actor &a, int who) {
  a.pc = kFinished;
  if (who != kLeader) return;
  for (const Actor &actor : s.actors) check(!actor.touches, "the leader's slot is given away while somebody touches it");
  s.content = kForeign;
}

void Search::fill_step(State &s, Actor &a, int who) {
  if (a.pc == kFill) {
    if (who == kLeader) {
      for (const Actor &actor : s.actors) check(!actor.touches, "the leader's slot is filled while somebody touches it");
      s.content = lies(a.chunk, kInput);
    }
    a.pc = kPublishFilled;
    return;
  }
  s.filled[who] = ++a.next_in;
  a.pc = kLook;
}

// Reading in driving.cc: name the round, look whether it was closed.
void Search::take_step(State &s, Actor &a, int who) {
  bool late = is(Mistake::kHoldAfterLook);
  switch (a.pc) {
    case kHold:
      if (!is(Mistake::kReadUnheld)) s.slots[who] = 1;
      a.pc = late ? kTake : kReadClosed;
      return;
    case kReadClosed:
      a.pc = s.closed ? kReadComplete : late ? kHold : kTake;
      return;
    case kReadComplete:
      a.pc = !s.complete ? kEndTake : late ? kHold : kTake;
      return;
    case kTake:
      touch(s, a, s.content == lies(a.chunk, kResult), "what is taken is not the result");
      a.pc = kTaken;
      return;
    case kTaken:
      check(s.content == lies(a.chunk, kResult), "what is taken is not the result");
      a.touches = 0;
      s.emptied[who] = ++a.next_out;
      a.pc = who == kLeader ? kLook : kEndTake;
      return;
    default:  // kEndTake
      s.slots[who] = 0;
      // Not held, and not complete: it looks again when something has changed.
      a.pc = kLook;
      return;
  }
}

void Search::claim_step(State &s, Actor &a, int who) {
  switch (a.pc) {
    case kClaim:  // the slot was published before, and the word is what was seen
      s.slots[who] = 1;
      if (s.closed || s.claimed != a.chunk) {
        a.pc = kEndClaim;
        return;
      }
      ++s.claimed;
      a.pc = kReduce;
      return;
    case kReduce:
      touch(s, a, s.content == lies(a.chunk, kInput) && s.filled[kReader] > a.chunk, "what is reduced is not the input");
      a.pc = kReduced;
      return;
    case kReduced:
      s.content = lies(a.chunk, kSum);
      a.touches = 0;
      s.ready[a.chunk] = 1;
      a.pc = kEndClaim;
      return;
    default:  // kEndClaim
      s.slots[who] = 0;
      a.pc = kLook;
      return;
  }
}

// leave_round in settle.cc; it is tried again from the start, so a hold found is a step back.
void Search::leave_step(State &s, Actor &a, int who) {
  switch (a.pc) {
    case kClose:
      s.closed = 1;
      a.pc = kReadSlot;
      return;
    case kReadSlot:
      a.pc = s.slots[1 - who] ? kReadSlot : kReadNetHold;
      return;
    case kReadNetHold:
      a.pc = s.net_hold && !is(Mistake::kLeaveWithNet) ? kReadSlot : kReadLastTime;
      return;
    default:  // kReadLastTime
      if (s.complete)
        a.pc = kLook;
      else
        end(s, a, who);
      return;
  }
}

bool Search::net_step(State &s, Actor &a) {
  switch (a.pc) {
    case kNetHold:
      s.net_hold = 1;
      a.pc = kNetReadClosed;
      return true;
    case kNetReadClosed:
      a.pc = s.closed || s.failed ? kNetEnd : kNetLook;
      return true;
    case kNetLook:  // drops everything when it sees the failure, or carries the next chunk that is ready
      if (s.failed && !s.ready[a.chunk]) a.pc = kNetEnd;
      else if (s.ready[a.chunk]) a.pc = kCarry;
      else return false;
      return true;
    case kCarry:
      touch(s, a, s.content == lies(a.chunk, kSum), "what travels is not the sum");
      if (is(Mistake::kCarriedEarly)) s.carried[a.chunk] = 1;
      a.pc = kCarried;
      return true;
    case kCarried:
      s.content = lies(a.chunk, kResult);
      a.touches = 0;
      s.carried[a.chunk] = 1;
      a.pc = ++a.chunk == kChunks ? kNetComplete : kNetLook;
      return true;
    case kNetComplete:
      s.complete = 1;
      a.pc = kNetEnd;
      return true;
    default:  // kNetEnd
      s.net_hold = 0;
      a.pc = kFinished;
      return true;
  }
}

bool Search::step(State &s, int who) {
  Actor &a = s.actors[who];
  if (a.pc == kFail) {
    s.failed = 1;
    a.pc = kFinished;
    return true;
  }
  if (a.pc == kFinished) return false;
  if (a.pc >= kNetHold) return net_step(s, a);
  if (a.pc == kReadSlot && s.slots[1 - who]) return false;
  if (a.pc == kReadNetHold && s.net_hold && !is(Mistake::kLeaveWithNet)) return false;
  if (a.pc <= kPublishFilled)
    fill_step(s, a, who);
  else if (a.pc <= kEndTake)
    take_step(s, a, who);
  else if (a.pc <= kEndClaim)
    claim_step(s, a, who);
  else
    leave_step(s, a, who);
  return true;
}

void Search::steps(const State &s, int who, std::vector<State> *next) {
  if (s.actors[who].pc == kLook) {
    look(s, who, next);
    for (State &to : *next)
      if (to.actors[who].pc == kFinished && who == kLeader) end(to, to.actors[who], who);
    return;
  }
  State to = s;
  if (step(to, who)) next->push_back(to);
}

// Nobody can move.
void Search::check_end(const State &s) {
  for (const Actor &actor : s.actors) check(actor.pc == kFinished, "an actor waits for ever");
  if (setting_.fails) return;
  for (int who : {kLeader, kReader}) check(s.actors[who].next_out == kChunks, "a member ends without its results");
}

Result Search::run() {
  std::set<State> seen{start()};
  std::vector<State> stack{start()};
  while (!stack.empty() && problem_.empty()) {
    State at = stack.back();
    stack.pop_back();
    bool moved = false;
    for (int who = 0; who < kActors; ++who) {
      std::vector<State> next;
      steps(at, who, &next);
      moved = moved || !next.empty();
      for (const State &to : next)
        if (seen.insert(to).second) stack.push_back(to);
    }
    if (!moved) check_end(at);
  }
  return {seen.size(), problem_};
}

}  // namespace

Result explore(const Setting &setting) { return Search(setting).run(); }

}  // namespace window_model
