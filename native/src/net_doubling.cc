// Recursive doubling, for small payloads among more hosts than can all send to each other: doubling.h says who is paired with whom.
//
// The sum grows in the leader's buffer, and what is sent is a copy: the sum grows on while the copy travels.  A part may come before
// its pairing's turn: it waits, at most one from each host that we are paired with.
#include <cstring>

#include "net.h"

using hvd::Contribution;
using hvd::Pairing;
using hvd::NetPlan;
using hvd::NetRound;

// Goes from pairing to pairing until a part is missing; the last one ends the round.
void hvd_net::doubling_go_on(NetPlan *plan, uint64_t round, NetRound *state) {
  if (!state->own_ready) return;
  for (; state->n_paired < plan->pairings.size(); ++state->n_paired) {
    const Pairing &pairing = plan->pairings[state->n_paired];
    if (pairing.sends() && !state->said) {
      send_eager(peers_[plan->hosts[pairing.place]].get(), part_of(plan, round, *state));
      state->said = true;
    }
    if (pairing.receives() && !state->from[pairing.place].here) return;
    if (pairing.receives()) doubling_add(plan, state, pairing);
    state->said = false;
  }
  if (state->status == 0) copy_to_members(plan, round, state, 0, plan->view->bytes);
  complete(plan, round, state);
}

// What one of both could not make, nobody has: of two reasons both keep the same.
void hvd_net::doubling_add(NetPlan *plan, NetRound *state, const Pairing &pairing) {
  const hvd::PlanView &view = *plan->view;
  Contribution &from = state->from[pairing.place];
  const bool is_result = pairing.kind == Pairing::Kind::kAdopt, is_lower = pairing.place < plan->me;
  if (is_result || state->status == 0 || (!is_lower && from.status != 0)) state->status = from.status;
  hvd::SharedBytes data = std::move(from.data);
  if (state->status != 0 || from.status != 0 || view.bytes == 0) return;
  if (is_result) {
    std::memcpy(state->leader, data->at(), view.bytes);
    return;
  }
  auto dtype = static_cast<hvd_dtype>(view.dtype);
  const void *in[2] = {is_lower ? data->at() : state->leader, is_lower ? state->leader : data->at()};
  void *out[2] = {is_lower ? nullptr : state->leader, is_lower ? state->leader : nullptr};
  hvd_status status = hvd_reduce(dtype, static_cast<hvd_reduce_op>(view.op), 1, pairing.completes ? view.postscale : 1, in, out, 2,
                                 view.bytes / hvd_dtype_bytes(dtype));
  if (status != HVD_OK) state->status = static_cast<uint8_t>(-static_cast<int>(status));
}
