"""One agreed membership: its process sets, negotiations, plans, joins and waits.

An epoch lives from the moment all ranks of the job have said Hello with the same generation until all of them
have left or are gone.  ``ended`` is set by the first thing that ends it: a shutdown, a loss, a stall.  From then
on every new request is refused with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from horovod.coordinator.core.commands import (
    AllJoined,
    EndEpoch,
    JoinDone,
    JoinedRanks,
    Outbox,
    Refusal,
    SetAdded,
    SetRemoved,
    Warn,
)
from horovod.coordinator.core.config import Config
from horovod.coordinator.core.negotiation import Negotiation, Tombstone, not_while_joined
from horovod.coordinator.core.plans import Plans
from horovod.coordinator.core.process_sets import ProcessSets, SetCall
from horovod.coordinator.core.stalls import Book, Stalls, Wait
from horovod.coordinator.core.tally import Tally
from horovod.coordinator.core.values import (
    Announcement,
    Error,
    ErrorKind,
    Kind,
    ProcessSet,
    RankCount,
    RankPlace,
    RankRequest,
)


class EpochState(Enum):
    """See TRANSITIONS."""

    OPEN = "open"
    CLOSED = "closed"
    FAILED = "failed"


class EpochCause(Enum):
    """What ends an epoch."""

    LEAVE = "first RankLeft: EndEpoch SHUT_DOWN"
    LOSS = "rank or agent lost: EndEpoch LOST"
    STALL = "stall limit or deadlock: EndEpoch STALLED"


TRANSITIONS: dict[EpochState, dict[EpochCause, EpochState]] = {
    EpochState.OPEN: {
        EpochCause.LEAVE: EpochState.CLOSED,
        EpochCause.LOSS: EpochState.FAILED,
        EpochCause.STALL: EpochState.FAILED,
    },
    EpochState.CLOSED: {EpochCause.LOSS: EpochState.FAILED},
    EpochState.FAILED: {},
}
CAUSES = {ErrorKind.SHUT_DOWN: EpochCause.LEAVE, ErrorKind.LOST: EpochCause.LOSS, ErrorKind.STALLED: EpochCause.STALL}


@dataclass(slots=True)
class Epoch:
    """State and rules of one epoch; ``removing`` are the sets that wait for the limits of their plans."""

    number: int
    generation: int
    places: tuple[RankPlace, ...]
    config: Config
    incarnation: int
    tally: Tally = field(default_factory=Tally)
    sets: ProcessSets = field(init=False)
    plans: Plans = field(init=False)
    negotiation: Negotiation = field(init=False)
    stalls: Stalls = field(init=False)
    left: set[int] = field(default_factory=set)
    joined: dict[int, int] = field(default_factory=dict)  # rank -> request, in the order of the calls
    quiet: set[str] = field(default_factory=set)
    zero_plans: set[int] = field(default_factory=set)
    zeros_stopped: bool = False
    removing: dict[int, dict[int, SetCall]] = field(default_factory=dict)
    state: EpochState = EpochState.OPEN
    ended: Error | None = None

    def __post_init__(self) -> None:
        agent_of = {place.rank: place.agent for place in self.places}
        hosts = {place.rank: place.host for place in self.places}
        self.sets = ProcessSets(len(self.places))
        self.plans = Plans(self.incarnation, self.config.cache_capacity, agent_of, self.tally)
        self.negotiation = Negotiation(hosts, agent_of, self.plans, self.tally)
        self.stalls = Stalls(hosts, agent_of)

    @property
    def agents(self) -> tuple[str, ...]:
        """Every agent that has a rank in it."""
        return tuple(dict.fromkeys(place.agent for place in self.places))

    def agent_of(self, rank: int) -> str:
        """The agent of a rank."""
        return self.places[rank].agent

    def to_all(self, out: Outbox, body: EndEpoch | JoinedRanks | AllJoined) -> None:
        """The same message to every agent."""
        for agent in self.agents:
            out.send(agent, body)

    def warn(self, out: Outbox, text: str) -> None:
        """Shown once, where rank 0 lives."""
        out.send(self.agent_of(0), Warn(text))

    def end(self, out: Outbox, error: Error) -> None:
        """Ends the epoch.  Later requests get the first reason, but a loss after a shutdown is passed on too."""
        after = TRANSITIONS[self.state].get(CAUSES[error.kind])
        if after is None:
            return
        self.state = after
        if self.ended is None:
            self.ended = error
            self.tally.epoch_ended(self.number, len(self.places), error)
        self.to_all(out, EndEpoch(error))

    # ---- announcements ---------------------------------------------------------------------------------------

    def announce(self, out: Outbox, item: Announcement, now: float) -> None:
        """A rank announces a signature."""
        self.tally.announcements += 1
        reason = self._reason_against(item)
        if isinstance(reason, Tombstone):
            self.negotiation.refuse(out, [item], reason.error, reason.id)
        elif reason is not None:
            self.negotiation.refuse(out, [item], reason)
        else:
            members = self.sets.sets[item.signature.process_set]
            self.negotiation.announce(out, item, members, frozenset(self.joined), now)

    def _reason_against(self, item: Announcement) -> Error | Tombstone | None:
        if self.ended is not None:
            return self.ended
        signature = item.signature
        members = self.sets.sets.get(signature.process_set)
        if members is None:
            return _invalid(signature.name, f"process set {signature.process_set} does not exist.")
        if item.rank not in members:
            return _invalid(signature.name, f"rank {item.rank} is not in process set {list(members)}.")
        if signature.kind is Kind.BROADCAST and signature.root not in members:
            return _invalid(signature.name, f"root rank {signature.root} is not in process set {list(members)}.")
        joined = frozenset(self.joined).intersection(members)
        if not joined or signature.kind is Kind.ALLREDUCE:
            return None
        # A refusal that all members hear in the same words goes first.
        return self.negotiation.owed(signature.key, item.rank) or not_while_joined(signature, joined)

    # ---- join --------------------------------------------------------------------------------------------------

    def join(self, out: Outbox, rank: int, request: int, now: float) -> None:
        """A rank has run out of data."""
        if self.ended is not None or rank in self.joined:
            error = self.ended or Error(ErrorKind.INVALID, f"Rank {rank} has joined already.")
            out.send(self.agent_of(rank), Refusal((RankRequest(rank, request),), error))
            return
        self.joined[rank] = request
        joined = frozenset(self.joined)
        self.to_all(out, JoinedRanks(tuple(sorted(joined))))
        self.plans.hold_for_join(out, joined)
        self.negotiation.joined_changed(out, joined, now)
        if len(joined) == len(self.places):
            self.quiet, self.zeros_stopped = set(), False
            self.to_all(out, AllJoined())

    def join_quiet(self, out: Outbox, agent: str, plans: Iterable[int]) -> None:
        """Nothing is open on an agent; when none has anything open, join returns everywhere."""
        if len(self.joined) < len(self.places) or self.ended is not None:
            return
        self.quiet.add(agent)
        self.zero_plans.update(plans)
        if self.quiet < set(self.agents):
            return
        if self.zeros_stopped:
            self._release(out)
            return
        self._stop_zeros(out)
        if len(self.agents) == 1:
            self._release(out)

    def _stop_zeros(self, out: Outbox) -> None:
        """No more zeros, no more rounds in plans that had some; a rank may submit again when all agents know that."""
        self.to_all(out, JoinedRanks(()))
        self.plans.retire_now(out, self.zero_plans)
        self.zeros_stopped = True
        if len(self.agents) > 1:
            self.quiet = set()
            self.to_all(out, AllJoined())

    def _release(self, out: Outbox) -> None:
        self.plans.retire_now(out, self.zero_plans)  # with what was reported last
        self.zero_plans.clear()
        last = next(reversed(self.joined))
        for name in self.agents:
            mine = tuple(RankRequest(r, q) for r, q in sorted(self.joined.items()) if self.agent_of(r) == name)
            out.send(name, JoinDone(last, mine))
        self.joined.clear()

    # ---- process sets ------------------------------------------------------------------------------------------

    def set_call(self, out: Outbox, rank: int, call: SetCall, now: float) -> None:
        """A rank adds or removes a process set; done when all ranks have made the same call."""
        if self.ended is not None:
            out.send(self.agent_of(rank), Refusal((RankRequest(rank, call.request),), self.ended))
            return
        calls = self.sets.call(rank, call, now)
        if calls is not None:
            self.decide(out, calls)

    def decide(self, out: Outbox, calls: dict[int, SetCall]) -> None:
        """All ranks have made the same call, or different ones."""
        call = next(iter(calls.values()))
        wishes: dict[str, list[int]] = {}
        for caller, made in sorted(calls.items()):
            wishes.setdefault(made.wish(), []).append(caller)
        if len(wishes) > 1:
            sides = "; ".join(f"rank(s) {', '.join(map(str, ranks))}: {wish}" for wish, ranks in wishes.items())
            self.answer(out, calls, Error(ErrorKind.MISMATCH, f"Mismatched process set calls: {sides}."))
        elif call.remove >= 0:
            self._remove_set(out, call.remove, calls)
        else:
            self.answer(out, calls, self.sets.add(call.ranks))

    def _remove_set(self, out: Outbox, set_id: int, calls: dict[int, SetCall]) -> None:
        error = self.sets.close(set_id)
        if error is not None:
            self.answer(out, calls, error)
            return
        gone = Error(ErrorKind.INVALID, f"Process set {set_id} was removed while this operation waited.")
        self.negotiation.drop_set(out, set_id, gone)
        self.plans.hold_set(out, set_id)
        self.removing[set_id] = calls
        self._finish_removals(out)

    def held(self, out: Outbox, agent: str, plan: int, arrivals: Iterable[RankCount]) -> None:
        """An agent has marked a plan."""
        self.plans.held(out, agent, plan, arrivals)
        if self.ended is None:
            self._finish_removals(out)

    def _finish_removals(self, out: Outbox) -> None:
        # Ranks must hear of the limits first: what they announce anew then is refused before the id can be used again.
        for set_id in [set_id for set_id in self.removing if not self.plans.is_held(set_id)]:
            if set_id not in self.sets.free and set_id not in self.sets.sets:
                self.sets.release(set_id)  # else an earlier coordinator has done so, and only some were told
            self.answer(out, self.removing.pop(set_id), set_id)

    def answer(self, out: Outbox, calls: Mapping[int, SetCall], result: ProcessSet | Error | int) -> None:
        """Each agent hears it for its own ranks (rank -> call)."""
        for agent in self.agents:
            mine = tuple(RankRequest(r, c.request) for r, c in sorted(calls.items()) if self.agent_of(r) == agent)
            if not mine:
                continue
            if isinstance(result, Error):
                out.send(agent, Refusal(mine, result))
            elif isinstance(result, ProcessSet):
                out.send(agent, SetAdded(result, mine))
            else:
                out.send(agent, SetRemoved(result, mine))

    # ---- waits -------------------------------------------------------------------------------------------------

    def look_at_waits(self, out: Outbox, now: float) -> None:
        """After an observation or a tick: warn, report cycles, give up at the limits."""
        if self.ended is not None:
            return
        waits = self.waits(now)
        if self.config.stall_check_s > 0:
            for text in self.stalls.due(waits, self.config.stall_check_s, now):
                self.tally.stall_warnings += 1
                self.warn(out, text)
        limit = self.config.stall_shutdown_s
        if limit > 0 and waits and waits[0].age_s >= limit:
            text = f"{self.stalls.text(waits[0])} The limit HOROVOD_STALL_SHUTDOWN_TIME_SECONDS={limit:g} is reached."
            self.end(out, Error(ErrorKind.STALLED, text))

    def waits(self, now: float) -> list[Wait]:
        """Everything that is not complete, oldest first."""
        return self.stalls.waits(self._book(), now)

    def wait_ages(self, now: float) -> list[float]:
        """Only how old they are."""
        return self.stalls.ages(self._book(), now)

    def _book(self) -> Book:
        return Book(self.plans, self.negotiation, self.sets, self.joined)

    def look_for_cycle(self, out: Outbox, agent: str, now: float) -> None:
        """After an observation of an agent: ranks that wait for each other."""
        if self.ended is not None:
            return
        cycle = self.stalls.find_cycle(self.waits(now), self._book(), agent, now)
        if cycle is None:
            return
        if cycle.reported_at is None:
            cycle.reported_at = now
            self.tally.deadlocks += 1
            self.warn(out, cycle.text)
        elif 0 < self.config.deadlock_grace_s <= now - cycle.seen_at:
            grace = self.config.deadlock_grace_s
            text = f"{cycle.text} Nothing changed for HVD_DEADLOCK_GRACE_SECONDS={grace:g}."
            self.end(out, Error(ErrorKind.STALLED, text))

    def check_invariants(self) -> None:
        """Raises AssertionError when the book is wrong."""
        self.sets.check_invariants()
        self.plans.check_invariants()
        self.negotiation.check_invariants()
        assert self.left <= {place.rank for place in self.places}
        assert self.quiet <= set(self.agents)
        assert (self.ended is None) == (self.state is EpochState.OPEN)


def _invalid(name: str, reason: str) -> Error:
    return Error(ErrorKind.INVALID, f"{name!r}: {reason}")
