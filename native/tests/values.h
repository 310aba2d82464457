// What ranks put in and what must come out.  The thread sanitizer leaves this code out: it would spend most of a test's time here,
// on memory that one thread has for itself.
#pragma once
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <vector>

#define HVD_UNWATCHED __attribute__((no_sanitize("thread")))

namespace world {

// A rank's float32 input of a round; float32 holds the sums of up to 16 ranks exactly.
std::vector<float> data_of(uint32_t rank, uint64_t count, uint32_t round = 0);
std::vector<float> sum_of(uint32_t n_ranks, uint64_t count, uint32_t round = 0);
// A rank's bytes of a pull round.
std::vector<uint8_t> bytes_of(uint32_t rank, uint64_t size, uint32_t round);
std::vector<float> ones(uint64_t count, float value = 1);

// Bit by bit, in one call that sanitizers know.
template <class T>
bool same(const std::vector<T> &left, const std::vector<T> &right) {
  return left.size() == right.size() && (left.empty() || std::memcmp(left.data(), right.data(), left.size() * sizeof(T)) == 0);
}

// All of these; the first and the last for the thread sanitizer, which looks for races, slowly, and not at values.
template <class T>
std::vector<T> few(std::initializer_list<T> all) {
#ifdef __SANITIZE_THREAD__
  if (all.size() > 2) return {*all.begin(), *(all.end() - 1)};
#endif
  return all;
}

}  // namespace world
