#include "model_round.h"

#include <algorithm>
#include <cstring>
#include <unordered_set>
#include <vector>

namespace model {
namespace {

// The claim word: round, then chunks claimed from the high end (2 bits) and from the low end (2 bits).
constexpr uint8_t kNever = 0xff, kWithdrawn = 15, kCancelled = 14, kNoLimit = 9, kOneLow = 1, kOneHigh = 4;

uint8_t word(int round, int code) { return static_cast<uint8_t>(round * 16 + code); }
int round_in(uint8_t claim) { return claim == kNever ? 31 : claim / 16; }
int code_in(uint8_t claim) { return claim % 16; }
int taken_in(uint8_t claim) { return claim % 4 + claim / 4 % 4; }

enum Pc : uint8_t {
  kReadLimit, kReadReads, kArrive, kReadLimitAgain,                     // arrive
  kReadClaim, kReadArrived, kReadLimitToOpen, kOpen,                    // open
  kReadComplete, kReadState, kCloseClaims, kReadSlots, kReadLastTime,   // settle
  kReadWithdrawal, kWithdraw,                                           // leave at the final limit
  kFindChunk, kPublish, kClaim, kReduce, kCountDone, kComplete, kEndClaim, kEndState,  // help
  kNoProgress, kNoteWord, kSleep, kAsleep, kAwake,                      // sleep
  kMarkRead, kRingLook, kRingWake, kFinished,
  kAgentStart, kAgentRead, kAgentLimit                                  // the agent
};

struct Actor {
  Pc pc, after_ring;
  uint8_t round, arrived, seen_claim, seen_slot, seen_word, sleeping, ring_at, unmarked, left;
};

struct State {
  // shared memory
  uint8_t arrived, claim, done, complete, reads, limit, final_limit, failed;
  uint8_t arrivals[kMaxMembers], slots[kMaxMembers], bell[kMaxMembers], sleepers[kMaxMembers];
  Actor actors[kMaxMembers + 1];
  // what the search knows and no actor may read
  uint8_t started[kMaxRounds][kMaxChunks], ended[kMaxRounds][kMaxChunks];
  uint8_t agent_saw[kMaxMembers];
};

class Search {
 public:
  explicit Search(const Setting &setting) : setting_(setting), n_(setting.members) {}
  Result run();

 private:
  State start() const;
  // One step of one actor; false when it cannot move.
  bool step(State &s, int who);
  void member_step(State &s, int who);
  void arrive_step(State &s, Actor &a, int who);
  void open_step(State &s, Actor &a);
  void settle_step(State &s, Actor &a);
  void help_step(State &s, Actor &a, int who);
  void sleep_step(State &s, Actor &a, int who);
  void ring_step(State &s, Actor &a);
  void agent_step(State &s, Actor &a);
  // Members of the upper half begin at the high end.
  bool begins_low(int who) const { return 2 * who < n_; }
  int chunk_of(uint8_t claim, int who) const { return begins_low(who) ? claim % 4 : setting_.chunks - 1 - claim / 4 % 4; }
  bool has_chunk(uint8_t claim) const { return code_in(claim) < kCancelled && taken_in(claim) < setting_.chunks; }
  void begin_chunk(State &s, const Actor &a, int who);
  void mark_read(State &s, Actor &a);
  void ring(Actor &a, Pc after) const;
  void next_round(Actor &a) const;
  static Pc look(const Actor &a) { return a.arrived ? kReadClaim : kReadLimit; }
  void forget_dead_values(State &s) const;
  void check(bool holds, const char *rule);
  void check_end(const State &s);
  bool is(Mistake mistake) const { return setting_.mistake == mistake; }

  Setting setting_;
  int n_;
  std::string problem_;
};

void Search::check(bool holds, const char *rule) {
  if (!holds && problem_.empty()) problem_ = rule;
}

State Search::start() const {
  State s;
  std::memset(&s, 0, sizeof s);
  s.claim = kNever;
  s.limit = s.final_limit = kNoLimit;
  for (int i = 0; i < n_; ++i) s.actors[i].pc = kReadLimit;
  s.actors[n_].pc = setting_.agent == Agent::kNothing ? kFinished : kAgentStart;
  return s;
}

void Search::ring(Actor &a, Pc after) const {
  a.ring_at = 0;
  a.after_ring = after;
  a.pc = kRingLook;
}

void Search::next_round(Actor &a) const {
  ++a.round;
  a.arrived = 0;
  a.pc = a.round == setting_.rounds ? kFinished : kReadLimit;
}

void Search::arrive_step(State &s, Actor &a, int who) {
  switch (a.pc) {
    case kReadLimit:
      a.pc = a.round < s.limit ? kReadReads : kReadState;
      return;
    case kReadReads:
      a.pc = s.reads >= n_ * a.round || is(Mistake::kReuseUnread) ? kArrive : kReadState;
      return;
    case kArrive:  // fields, arrivals[m] and `arrived`: only the last is read by others to decide
      check(s.reads >= n_ * a.round, "an entry is used again although a member has not read it");
      a.arrived = 1;
      s.arrivals[who] = static_cast<uint8_t>(a.round + 1);
      ++s.arrived;
      a.pc = is(Mistake::kLimitReadOnce) ? kReadClaim : kReadLimitAgain;
      if (is(Mistake::kLimitReadOnce)) a.unmarked = static_cast<uint8_t>(a.round + 1);
      return;
    default:  // kReadLimitAgain
      if (a.round < s.limit) a.unmarked = static_cast<uint8_t>(a.round + 1);
      a.pc = kReadClaim;
      return;
  }
}

void Search::open_step(State &s, Actor &a) {
  switch (a.pc) {
    case kReadClaim:
      a.seen_claim = s.claim;
      a.pc = round_in(s.claim) == a.round ? kReadComplete : kReadArrived;
      return;
    case kReadArrived:
      a.pc = s.arrived >= n_ * (a.round + 1) ? kReadLimitToOpen : kReadState;
      return;
    case kReadLimitToOpen:
      a.pc = a.round < s.limit || is(Mistake::kLimitReadOnce) ? kOpen : kReadState;
      return;
    default:  // kOpen
      if (s.claim != a.seen_claim && !is(Mistake::kOpenWithoutCas)) {
        a.pc = kReadComplete;
        return;
      }
      s.claim = word(a.round, 0);
      ring(a, kReadComplete);
      return;
  }
}

void Search::mark_read(State &s, Actor &a) {
  for (int c = 0; c < setting_.chunks; ++c) check(s.ended[a.round][c] == 1, "a round is complete without all chunks");
  ++s.reads;
  bool last = s.reads == n_ * (a.round + 1);
  next_round(a);
  if (last) ring(a, a.pc);
}

void Search::settle_step(State &s, Actor &a) {
  switch (a.pc) {
    case kReadComplete:
      a.pc = s.complete == a.round + 1 ? kMarkRead : kReadState;
      return;
    case kMarkRead:
      return mark_read(s, a);
    case kReadState:
      if (s.failed)
        a.pc = kCloseClaims;
      else
        a.pc = s.final_limit <= a.round ? kReadWithdrawal : kFindChunk;
      if (s.failed && !a.arrived) a.left = 1, a.pc = kFinished;
      return;
    case kCloseClaims:
      if (!is(Mistake::kLeaveWithClaims) && !(round_in(s.claim) == a.round && code_in(s.claim) >= kCancelled))
        s.claim = word(a.round, kCancelled);
      a.seen_slot = 0;
      a.pc = kReadSlots;
      return;
    case kReadSlots:
      if (s.slots[a.seen_slot] == a.round + 1)
        a.pc = kNoProgress;
      else if (++a.seen_slot == n_)
        a.pc = kReadLastTime;
      return;
    default:  // kReadLastTime
      if (s.complete == a.round + 1) {
        a.pc = kMarkRead;
        return;
      }
      a.left = 1;
      a.pc = kFinished;
      return;
  }
}

void Search::begin_chunk(State &s, const Actor &a, int who) {
  int round = round_in(a.seen_claim), chunk = chunk_of(a.seen_claim, who);
  check(s.started[round][chunk] == 0, "a chunk is reduced twice");
  check(s.complete <= round, "a chunk is reduced after its round");
  check(s.arrived >= n_ * (round + 1), "a chunk is reduced before all have arrived");
  s.started[round][chunk] = 1;
}

void Search::help_step(State &s, Actor &a, int who) {
  int chunk = chunk_of(a.seen_claim, who);
  switch (a.pc) {
    case kFindChunk: {
      a.seen_claim = s.claim;
      bool open = a.arrived && round_in(s.claim) == a.round && has_chunk(s.claim);
      a.pc = !open ? kNoProgress : is(Mistake::kPublishAfterClaim) ? kClaim : kPublish;
      return;
    }
    case kPublish:
      s.slots[who] = static_cast<uint8_t>(a.round + 1);
      a.pc = is(Mistake::kPublishAfterClaim) ? kReduce : kClaim;
      return;
    case kClaim: {
      bool won = s.claim == a.seen_claim || (is(Mistake::kClaimWithoutRound) && has_chunk(s.claim));
      if (won) {
        a.seen_claim = is(Mistake::kClaimWithoutRound) ? a.seen_claim : s.claim;
        s.claim = static_cast<uint8_t>(s.claim + (begins_low(who) ? kOneLow : kOneHigh));
        begin_chunk(s, a, who);
      }
      a.pc = !won ? kEndClaim : is(Mistake::kPublishAfterClaim) ? kPublish : kReduce;
      return;
    }
    case kReduce:
      for (int i = 0; i < n_; ++i)
        check(!(s.actors[i].left && s.actors[i].round == a.round), "a member left a round in which a chunk is held");
      s.ended[a.round][chunk] = 1;
      a.pc = kCountDone;
      return;
    case kCountDone:
      ++s.done;
      if (s.done == setting_.chunks)
        a.pc = kComplete;
      else
        ring(a, kEndClaim);
      return;
    case kComplete:
      s.done = 0;
      s.complete = static_cast<uint8_t>(a.round + 1);
      ring(a, kEndClaim);
      return;
    case kEndClaim:
      s.slots[who] = 0;
      a.pc = kEndState;
      return;
    default:  // kEndState
      a.pc = look(a);
      if (s.failed) ring(a, a.pc);
      return;
  }
}

void Search::sleep_step(State &s, Actor &a, int who) {
  switch (a.pc) {
    case kNoProgress:
      if (a.sleeping) {
        a.pc = kSleep;
        return;
      }
      ++s.sleepers[who];
      a.sleeping = 1;
      a.pc = kNoteWord;
      return;
    case kNoteWord:
      a.seen_word = s.bell[who];
      a.pc = is(Mistake::kSleepWithoutLook) ? kSleep : look(a);
      return;
    case kSleep:  // futex_wait compares and sleeps in one step
      a.pc = s.bell[who] == a.seen_word ? kAsleep : kAwake;
      return;
    default:  // kAwake
      --s.sleepers[who];
      a.sleeping = 0;
      a.pc = look(a);
      return;
  }
}

void Search::ring_step(State &s, Actor &a) {
  if (a.pc == kRingLook && s.sleepers[a.ring_at] != 0) {
    a.pc = kRingWake;
    return;
  }
  if (a.pc == kRingWake) {
    ++s.bell[a.ring_at];
    Actor &target = s.actors[a.ring_at];
    if (target.pc == kAsleep) target.pc = kAwake;
  }
  a.pc = ++a.ring_at == n_ ? a.after_ring : kRingLook;
}

void Search::member_step(State &s, int who) {
  Actor &a = s.actors[who];
  if (a.pc <= kReadLimitAgain) return arrive_step(s, a, who);
  if (a.pc <= kOpen) return open_step(s, a);
  if (a.pc == kReadWithdrawal) {  // a member that has not arrived simply takes its op elsewhere
    a.pc = a.arrived ? kWithdraw : kFinished;
    return;
  }
  if (a.pc == kWithdraw) {
    bool closed = code_in(s.claim) >= kCancelled && round_in(s.claim) == a.round;
    check(closed || round_in(s.claim) != a.round, "a round above the final limit has opened");
    s.claim = word(a.round, kWithdrawn);
    a.pc = kFinished;
    return;
  }
  if (a.pc <= kReadLastTime || a.pc == kMarkRead) return settle_step(s, a);
  if (a.pc <= kEndState) return help_step(s, a, who);
  sleep_step(s, a, who);
}

void Search::agent_step(State &s, Actor &a) {
  if (a.pc == kAgentStart && setting_.agent == Agent::kFails) {
    s.failed = 1;
    return ring(a, kFinished);
  }
  if (a.pc == kAgentStart) {
    s.limit = 0;
    a.pc = kAgentRead;
  } else if (a.pc == kAgentRead) {  // reads one member's arrivals at a time
    s.agent_saw[a.ring_at] = s.arrivals[a.ring_at];
    if (++a.ring_at == n_) a.pc = kAgentLimit;
  } else {
    uint8_t most = 0;
    for (int i = 0; i < n_; ++i) most = std::max(most, s.agent_saw[i]);
    s.limit = s.final_limit = most;  // one message carries it to all; the board has it before
    for (int i = 0; i < n_; ++i) check(s.actors[i].unmarked <= most, "an arrival was neither marked nor seen");
    ring(a, kFinished);
  }
}

bool Search::step(State &s, int who) {
  Actor &a = s.actors[who];
  if (a.pc == kFinished || a.pc == kAsleep) return false;
  if (a.pc == kRingLook || a.pc == kRingWake)
    ring_step(s, a);
  else if (who == n_)
    agent_step(s, a);
  else
    member_step(s, who);
  return true;
}

// Nobody can move: everybody must have finished.
void Search::check_end(const State &s) {
  for (int i = 0; i <= n_; ++i) check(s.actors[i].pc == kFinished, "an actor sleeps for ever");
}

// States that differ only in what no step will read again are one state.
void Search::forget_dead_values(State &s) const {
  for (int i = 0; i < n_; ++i) {
    Actor &a = s.actors[i];
    bool rings = a.pc == kRingLook || a.pc == kRingWake, claims = a.pc >= kPublish && a.pc <= kReduce;
    if (!rings) a.ring_at = 0, a.after_ring = kReadLimit;
    if (!claims && a.pc != kReadArrived && a.pc != kReadLimitToOpen && a.pc != kOpen) a.seen_claim = 0;
    if (a.pc != kReadSlots) a.seen_slot = 0;
    s.bell[i] = a.sleeping && a.pc != kNoteWord && s.bell[i] != a.seen_word ? 1 : 0;
    a.seen_word = 0;
    if (setting_.agent != Agent::kMarks) a.unmarked = s.arrivals[i] = 0;
  }
}

struct Fingerprint {
  uint64_t a, b;
  bool operator==(const Fingerprint &other) const { return a == other.a && b == other.b; }
};
struct TakeFirst {
  size_t operator()(const Fingerprint &print) const { return print.a; }
};

// 128 bits stand for a state: with some millions of states a clash is out of the question.
Fingerprint print_of(const State &s) {
  uint64_t a = 0x9e3779b97f4a7c15, b = 0xc2b2ae3d27d4eb4f;
  for (size_t i = 0; i < sizeof s; ++i) {
    uint8_t byte = reinterpret_cast<const uint8_t *>(&s)[i];
    a = (a ^ byte) * 0x100000001b3;
    b = (b + byte) * 0xd6e8feb86659fd93;
    b ^= b >> 29;
  }
  return {a ^ (a >> 32), b};
}

Result Search::run() {
  std::unordered_set<Fingerprint, TakeFirst> seen;
  std::vector<State> stack{start()};
  seen.insert(print_of(stack.back()));
  while (!stack.empty() && problem_.empty()) {
    State at = stack.back();
    stack.pop_back();
    bool moved = false;
    for (int who = 0; who <= n_; ++who) {
      State next = at;
      if (!step(next, who)) continue;
      moved = true;
      forget_dead_values(next);
      if (seen.insert(print_of(next)).second) stack.push_back(next);
    }
    if (!moved) check_end(at);
  }
  return {seen.size(), problem_};
}

}  // namespace

Result explore(const Setting &setting) { return Search(setting).run(); }

}  // namespace model
