// Recursive doubling: with whom a host is paired, one after the other.  Pure: knows numbers of hosts, no rounds and no bytes.
//
// Places are folded to a power of two first: of the first couples (0, 1), (2, 3), ... the lower place gives its part to the upper
// one, which speaks for both and hands the result back at the end.  Who is left is numbered anew, in order, and swaps sums with the
// number that differs in the lowest bit, then in the next one: after each swap both hold the sum of twice as many parts.
//
// The parts of a sum are always those of neighbouring places, so lower ones can come before upper ones, whoever adds them: both
// ends of a swap make the same bits, and so do all hosts.  No place hears another twice.
#pragma once
#include <cstdint>
#include <vector>

namespace hvd {

struct Pairing {
  enum class Kind : uint8_t {
    kGive,   // sends what it has
    kTake,   // receives a part and adds it
    kSwap,   // both
    kAdopt,  // receives the result
  };
  Kind kind = Kind::kSwap;
  uint32_t place = 0;      // of the other
  bool completes = false;  // what is added here makes the sum of all

  bool sends() const { return kind == Kind::kGive || kind == Kind::kSwap; }
  bool receives() const { return kind != Kind::kGive; }
};

// How many of them follow each other at most.
uint32_t doubling_steps(uint32_t n);
// Of the host at place `me` of `n`, in order; none if it is alone.
std::vector<Pairing> pairings(uint32_t n, uint32_t me);

}  // namespace hvd
