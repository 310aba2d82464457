#include "doubling.h"

namespace hvd {
namespace {

uint32_t largest_power(uint32_t n) {
  uint32_t power = 1;
  while (power <= n / 2) power *= 2;
  return power;
}

}  // namespace

uint32_t doubling_steps(uint32_t n) {
  uint32_t steps = 0;
  while (n >> (steps + 1) != 0) ++steps;
  return largest_power(n) == n ? steps : steps + 2;
}

std::vector<Pairing> pairings(uint32_t n, uint32_t me) {
  using Kind = Pairing::Kind;
  const uint32_t power = largest_power(n), couples = n - power;
  const bool is_coupled = me < 2 * couples, is_lower = me % 2 == 0;
  if (is_coupled && is_lower) return {{Kind::kGive, me + 1, false}, {Kind::kAdopt, me + 1, false}};
  std::vector<Pairing> found;
  if (is_coupled) found.push_back({Kind::kTake, me - 1, false});
  const uint32_t number = is_coupled ? me / 2 : me - couples;
  for (uint32_t bit = 1; bit < power; bit *= 2) {
    uint32_t other = number ^ bit;
    uint32_t place = other < couples ? 2 * other + 1 : other + couples;
    found.push_back({Kind::kSwap, place, bit * 2 == power});
  }
  if (is_coupled) found.push_back({Kind::kGive, me - 1, false});
  return found;
}

}  // namespace hvd
