// The life of a round, as steps on shared memory.  No process-local state, no locks, no waiting.
//
//   arrive   each member writes its fields, raises arrivals[m] and `arrived`
//   open     once: the claim word goes from an older round to (round, 0).  Only if all have arrived and round < limit
//   claim    one more chunk from the low or from the high end: whoever succeeds reduces it.  All that was read before is
//            valid then, because a round number never repeats in an entry and the round cannot end while a chunk is not done
//   done     the last chunk done stores `complete`
//   read     a member that needs nothing of the entry any more raises `reads`; the entry is free when all have
//   close    instead of claims: the claim word goes to (round, withdrawn) or (round, cancelled); no claim succeeds after.  The
//            net takes back a round that is open here only
//
// Rounds between hosts: a cooperative one has one leader here, the member whose buffer takes what is reduced locally.  A chunk
// that is reduced locally is `ready`, which the net sees; the net completes the round.  In a pull round the net arrives for
// members on other hosts.  What the net must look at again is signalled (layout.h).
//
// Open and close compete for one word, so a round is opened or closed before opening, never both.  A round without
// chunks (pull, barrier) is complete when it is open.
//
// Order: arrive, then read the limit; the agent stores the limit, then reads the arrivals (all seq_cst): at least one
// of the two sees the other.  A holder publishes its claim slot, then claims; who leaves a failed round closes it, then
// reads the slots (all seq_cst): no claim is missed.
#pragma once
#include "plan.h"

namespace hvd {

struct RoundSite {
  const BoardView &board;
  const PlanView &plan;
};

struct MemberFields {
  uint64_t data_offset, data_bytes, meta_offset;
  uint32_t n_meta, flags;
  uint64_t reads_offset = 0;
  uint32_t n_reads = 0;
};

enum class Arrival { kArrived, kMarked, kArrivedMarked, kRingFull };

// The entry of this round is free: all rounds that used it before were read by all members.
bool entry_is_free(const PlanView &plan, uint64_t round);
bool all_arrived(const PlanView &plan, uint64_t round);
// A pull round between hosts in which all members of this host have arrived; false for any other.
bool locals_have_arrived(const PlanView &plan, uint64_t round);
bool is_below_limit(const PlanView &plan, uint64_t round);
// One call at a time for each member.
Arrival arrive(const RoundSite &site, uint64_t round, uint32_t member, const MemberFields &fields);
// Opens the round if all have arrived, it is below the limit and nobody opened or closed it; true if it is open now.
bool open_round(const RoundSite &site, uint64_t round);

enum class Phase { kMissing, kOpen, kComplete, kWithdrawn, kCancelled };
// kOpen: chunks may be left to claim or to finish.
Phase phase_of(const PlanView &plan, uint64_t round);
// Status of a complete round.
hvd_status status_of(const PlanView &plan, uint64_t round);

// Withdrawn or cancelled.
bool is_closed(const PlanView &plan, uint64_t round);
// Withdrawn after it had opened: a member's data may not be its input any more.
bool was_taken_back(const PlanView &plan, uint64_t round);
// Closes a round that is not open, for good; false when it is open (or complete).
bool close_unopened(const RoundSite &site, uint64_t round, uint32_t how);
// Stops further claims in a round, open or not.  Chunks held now go on: see BoardView::has_holder.
void close_claims(const RoundSite &site, uint64_t round, uint32_t how = kCancelled);

// This member needs the entry no more.  The last one to say so wakes members that wait for a free entry.
void mark_read(const RoundSite &site, uint64_t round);
bool all_read(const PlanView &plan, uint64_t round);

// Tells sleeping members here that something of this plan changed.
void ring_locals(const RoundSite &site);
// The same, and sleeping helpers of the agent, and the net.
void ring_members(const RoundSite &site);
// Tells the net alone; nothing for a plan of this host.
void signal_net(const RoundSite &site);

// The member whose buffer takes a remote cooperative round's partial sums: the first with memory; n_members if there is none.
uint32_t leader_of(const PlanView &plan, uint64_t round);
// Address of `length` bytes at `skip` of a member's data; null when that lies outside of its arena or is not aligned.
char *find_data(const PlanView &plan, const Mapping *arena, const EntryMember &member, uint64_t skip, uint64_t length);
// Ends a round for good: the net does it for rounds between hosts, the last chunk for others.
void complete_round(const PlanView &plan, uint64_t round, uint64_t negated_status);
// Somebody may still touch members' memory for this round: a live holder of a claim, or the net.
bool round_has_holder(const RoundSite &site, uint64_t round);

// While it is held, members that leave a failed round wait for the net as they do for holders of claims: the net publishes,
// then looks at the claim word; who leaves closes the round, then looks here (all seq_cst).  Not a claim slot: the net works on
// more rounds at once than there are slots.
bool take_net_hold(const RoundSite &site, uint64_t round);
void end_net_hold(const RoundSite &site, uint64_t round);

// Which chunks a helper takes first; windows are filled from the low end, so there the end makes no difference.
enum class End { kLow, kHigh };
// The end at which this member starts, so that it finds in its caches what it left there a round ago.
inline End end_of(const PlanView &plan, uint32_t member) { return 2 * member < plan.n_members ? End::kLow : End::kHigh; }
// A chunk can be claimed now.
bool is_claimable(const PlanView &plan, uint64_t round);
// Claims one chunk and reduces it; false when there was none to get.
bool help_round(const RoundSite &site, const ArenaMappings &arenas, ClaimSlots &slots, uint64_t round, End end);

}  // namespace hvd
