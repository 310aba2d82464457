// Sums between hosts whose results are known exactly, whatever the order in which they are added.
#pragma once
#include <vector>

#include "net_world.h"

namespace world {

struct Case {
  uint32_t op = HVD_SUM, dtype = HVD_FLOAT32;
  uint64_t count = 1;
  uint64_t bytes() const { return count * hvd_dtype_bytes(static_cast<hvd_dtype>(dtype)); }
};

// What a rank has in a round, and what all have then; one byte more than needed, that nobody touches.
std::vector<char> input(const Case &what, uint32_t rank, uint32_t round);
std::vector<char> expected(const Case &what, uint32_t n_ranks, uint32_t round);
// A plan's life: some rounds of it, then it is removed.
void check_case(Cluster &cluster, const Case &what, uint32_t rounds = 3);
// Asynchronous, in place, with `what`'s input for this rank and round.
hvd_op start(NetHost &host, hvd_engine *engine, const PlanOf &plan, const Case &what, std::vector<char> *data);

}  // namespace world
