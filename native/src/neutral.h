// What a host puts into a round in which none of its members has data: zeros for ranks that have joined, and for ranks that take
// no part at all the value that changes no result.
#pragma once
#include "plan.h"

namespace hvd {

// Fills a payload of this cooperative plan, by the flags of the round's members.
void fill_neutral(const PlanView &plan, uint64_t round, char *out);

}  // namespace hvd
