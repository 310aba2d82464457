// Windows, as steps on shared memory: a member whose data lie outside of its arena lets them through a few slots, chunk by chunk.
//
//   fill     the member copies chunk c to slot c % slots and raises `filled`; then the chunk can be claimed, or may travel
//   done     a plan of one host: the chunk's stamp.  Between hosts: kCarried in its `ready` word, which the net stores
//   empty    the member takes the result, from its own slot or from the leader's, and raises `emptied`
//   reuse    a slot takes chunk c + slots when its owner has emptied chunk c; a leader's, when all that read there have
//
// Between hosts the net leaves the result in the leader's memory.  If that is a window, members with windows take it from there:
// nobody copies it for them.  If it lies whole, its owner may go when the round is complete, so the net copies it to each slot.
//
// Who reads a leader's window names the round in a claim slot, then looks whether the round was closed: a leader that leaves a
// failed round closes it, then reads the slots (all seq_cst).  In a round that completes it waits for `emptied` instead.
#pragma once
#include "round.h"

namespace hvd {

bool is_windowed(const EntryMember &member);
bool has_window(const PlanView &plan, uint64_t round);
// All windowed members have filled this chunk.
bool is_filled(const PlanView &plan, uint64_t round, uint32_t chunk);
// `count` chunks are in this member's window, or were; so many results has it taken.
void publish_filled(const RoundSite &site, uint64_t round, uint32_t member, uint32_t count);
void publish_emptied(const RoundSite &site, uint64_t round, uint32_t member, uint32_t count);
// The result of this chunk can be taken.
bool chunk_is_done(const PlanView &plan, uint64_t round, uint32_t chunk);
// The net is through with this chunk.
void publish_carried(const RoundSite &site, uint64_t round, uint32_t chunk, uint64_t negated_status);

// Address of a chunk in a member's memory, in its window if it has one; null when its fields point outside of its arena.
char *find_chunk(const PlanView &plan, const Mapping *arena, const EntryMember &member, uint32_t chunk);
// The member whose memory this windowed member takes results from: itself, or a leader with a window.
uint32_t source_of(const PlanView &plan, uint64_t round, uint32_t member);
// Nobody will read this chunk in this member's window any more: all that take results from there have, or are dead.
bool is_taken(const RoundSite &site, uint64_t round, uint32_t member, uint32_t chunk);

}  // namespace hvd
