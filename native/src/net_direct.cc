// Direct exchange, for small payloads and barriers among few hosts: each host sends its partial sum to all others and adds up all
// of them in ring order, so that all end with the same bits.
//
// A host keeps what it needs of its own part for the others in a copy, so a round may be complete here while a slow peer has
// not taken our part yet.
#include "net.h"

using hvd::Contribution;
using hvd::NetPlan;
using hvd::NetRound;

void hvd_net::direct_send(NetPlan *plan, uint64_t round, const NetRound &state) {
  if (plan->n_hosts() == 1) return;
  const hvd::OutFrame part = part_of(plan, round, state);
  for (uint32_t host : plan->hosts)
    if (host != spec_.my_host) send_eager(peers_[host].get(), part);
}

void hvd_net::direct_finish(NetPlan *plan, uint64_t round, NetRound *state) {
  if (!state->own_ready || state->n_here + 1 != plan->n_hosts()) return;
  for (const Contribution &from : state->from)
    if (from.status != 0) state->status = from.status;
  if (state->status == 0 && plan->view->bytes != 0) {
    direct_reduce(plan, state);
    copy_to_members(plan, round, state, 0, plan->view->bytes);
  }
  complete(plan, round, state);
}

void hvd_net::direct_reduce(NetPlan *plan, NetRound *state) {
  const hvd::PlanView &view = *plan->view;
  auto dtype = static_cast<hvd_dtype>(view.dtype);
  std::vector<const void *> in(plan->n_hosts());
  std::vector<void *> out(plan->n_hosts());
  for (uint32_t place = 0; place < plan->n_hosts(); ++place)
    in[place] = place == plan->me ? state->leader : state->from[place].data->at();
  out[plan->me] = state->leader;
  hvd_status status = hvd_reduce(dtype, static_cast<hvd_reduce_op>(view.op), 1, view.postscale, in.data(), out.data(),
                                 plan->n_hosts(), view.bytes / hvd_dtype_bytes(dtype));
  if (status != HVD_OK) state->status = static_cast<uint8_t>(-static_cast<int>(status));
}

