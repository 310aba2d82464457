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
    by_agent,
)
from horovod.coordinator.core.config import Config
from horovod.coordinator.core.events import Observation
from horovod.coordinator.core.negotiation import Negotiation, Tombstone, can_miss, not_while_joined
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
    Signature,
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
    agents: tuple[str, ...] = field(init=False)  # every agent that has a rank in it
    names: frozenset[str] = field(init=False)  # the same, to ask for one
    agent_of: dict[int, str] = field(init=False)
    sets: ProcessSets = field(init=False)
    plans: Plans = field(init=False)
    negotiation: Negotiation = field(init=False)
    stalls: Stalls = field(init=False)
    left: set[int] = field(default_factory=set)
    joined: dict[int, int] = field(default_factory=dict)  # rank -> request, in the order of the calls
    joined_on: dict[str, list[int]] = field(default_factory=dict)  # by agent, while zeros stand in for them
    quiet: set[str] = field(default_factory=set)
    zero_plans: set[int] = field(default_factory=set)
    zeros_stopped: bool = False
    extended_join: bool = False  # who has joined takes part in everything, with nothing
    removing: dict[int, dict[int, SetCall]] = field(default_factory=dict)
    state: EpochState = EpochState.OPEN
    ended: Error | None = None

    def __post_init__(self) -> None:
        self.agent_of = agent_of = {place.rank: place.agent for place in self.places}
        self.agents = tuple(dict.fromkeys(agent_of.values()))
        self.names = frozenset(self.agents)
        hosts = {place.rank: place.host for place in self.places}
        self.sets = ProcessSets(len(self.places))
        self.plans = Plans(self.incarnation, self.config.cache_capacity, agent_of, self.tally)
        self.negotiation = Negotiation(hosts, agent_of, self.plans, self.tally)
        self.stalls = Stalls(hosts, agent_of)

    @property
    def has_failed(self) -> bool:
        """Nothing can end it any more."""
        return self.state is EpochState.FAILED

    def to_all(self, out: Outbox, body: EndEpoch | JoinedRanks | AllJoined) -> None:
        """The same message to every agent."""
        out.cast(self.agents, body)

    def warn(self, out: Outbox, text: str) -> None:
        """Shown once, where rank 0 lives."""
        out.send(self.agent_of[0], Warn(text))

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
            self.negotiation.announce(out, item, members, self.joined.keys(), now)

    def _reason_against(self, item: Announcement) -> Error | Tombstone | None:
        if self.ended is not None:
            return self.ended
        signature = item.signature
        members = self.sets.sets.get(signature.process_set)
        if members is None:
            return _invalid(signature.name, f"process set {signature.process_set} does not exist.")
        if item.rank not in self.sets.lookup[signature.process_set]:
            return _invalid(signature.name, f"rank {item.rank} is not in process set {list(members)}.")
        if signature.kind is Kind.BROADCAST and signature.root not in self.sets.lookup[signature.process_set]:
            return _invalid(signature.name, f"root rank {signature.root} is not in process set {list(members)}.")
        reason = self._reason_while_joined(signature, members) if self.joined else None
        # A refusal that all members hear in the same words goes first.
        return reason and (self.negotiation.owed(signature.key, item.rank) or reason)

    def _reason_while_joined(self, signature: Signature, members: tuple[int, ...]) -> Error | None:
        joined = frozenset(self.joined).intersection(members)
        if not joined or can_miss(signature, joined, self.extended_join):
            return None
        return not_while_joined(signature, joined, self.extended_join)

    # ---- join --------------------------------------------------------------------------------------------------

    def join(self, out: Outbox, rank: int, request: int, now: float) -> None:
        """A rank has run out of data."""
        if self.ended is not None or rank in self.joined:
            error = self.ended or Error(ErrorKind.INVALID, f"Rank {rank} has joined already.")
            out.send(self.agent_of[rank], Refusal((RankRequest(rank, request),), error))
            return
        self._tell_of_join(out, rank)
        self.joined[rank] = request
        self.plans.hold_for_join(out, rank, self.sets.lookup, self.extended_join)
        self.negotiation.joined_changed(out, self.joined.keys(), self.extended_join, now)
        if len(self.joined) == len(self.places):
            self.quiet, self.zeros_stopped = set(), False
            self.to_all(out, AllJoined())

    def _tell_of_join(self, out: Outbox, rank: int) -> None:
        """Agents know which of their own ranks have joined; others need hear only of the first one."""
        agent = self.agent_of[rank]
        mine = self.joined_on.setdefault(agent, [])
        mine.append(rank)
        if not self.joined:
            others = tuple(other for other in self.agents if other != agent)
            out.cast(others, JoinedRanks((), extended=self.extended_join))
        out.send(agent, JoinedRanks(tuple(sorted(mine)), extended=self.extended_join))

    def join_quiet(self, out: Outbox, agent: str, plans: Iterable[int]) -> None:
        """Nothing is open on an agent; when none has anything open, join returns everywhere."""
        if len(self.joined) < len(self.places) or self.ended is not None or agent not in self.names:
            return
        self.quiet.add(agent)
        self.zero_plans.update(plans)
        if len(self.quiet) < len(self.agents):
            return
        if self.zeros_stopped:
            self._release(out)
            return
        self._stop_zeros(out)
        if len(self.agents) == 1:
            self._release(out)

    def _stop_zeros(self, out: Outbox) -> None:
        """No more zeros, no more rounds in plans that had some; a rank may submit again when all agents know that."""
        self.joined_on.clear()
        self.to_all(out, JoinedRanks((), anybody=False))
        self.plans.retire_now(out, self.zero_plans)
        self.zeros_stopped = True
        if len(self.agents) > 1:
            self.quiet = set()
            self.to_all(out, AllJoined())

    def _release(self, out: Outbox) -> None:
        self.plans.retire_now(out, self.zero_plans)  # with what was reported last
        self.zero_plans.clear()
        last = next(reversed(self.joined))
        out.cast(self.agents, JoinDone(last, ()), by_agent(self.joined, self.agent_of))
        self.joined.clear()

    # ---- process sets ------------------------------------------------------------------------------------------

    def set_call(self, out: Outbox, rank: int, call: SetCall, now: float) -> None:
        """A rank adds or removes a process set; done when all ranks have made the same call."""
        if self.ended is not None:
            out.send(self.agent_of[rank], Refusal((RankRequest(rank, call.request),), self.ended))
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
        """Each agent of these ranks (rank -> call) hears it."""
        answers = by_agent({rank: call.request for rank, call in calls.items()}, self.agent_of)
        body: Refusal | SetAdded | SetRemoved
        if isinstance(result, Error):
            body = Refusal((), result)
        elif isinstance(result, ProcessSet):
            body = SetAdded(result, ())
        else:
            body = SetRemoved(result, ())
        out.cast(tuple(answers), body, answers)

    # ---- waits -------------------------------------------------------------------------------------------------

    def observe(self, agent: str, seen: Observation) -> None:
        """What waits on an agent; looked at with the next tick, as a thousand agents may say the same at once."""
        self.plans.used(seen.plans_used)
        self.tally.reported(seen.rounds, len(self.places))
        self.stalls.observe(agent, seen.rounds, seen.ranks, seen.blocked_on)

    def look_at_waits(self, out: Outbox, now: float) -> None:
        """With every tick: warn, give up at the limits, report cycles.  Costs little while nothing waits for long."""
        if self.ended is not None:
            return
        limits = [limit for limit in (self.config.stall_check_s, self.config.stall_shutdown_s) if limit > 0]
        is_late = bool(limits) and max(self.wait_ages(now), default=0.0) >= min(limits)
        if not is_late:
            self.stalls.warned.clear()
        if is_late or self.stalls.is_search_due:
            waits = self.waits(now)
            self._look_at_limits(out, waits, now)
            self._look_for_cycle(out, waits, now)

    def _look_at_limits(self, out: Outbox, waits: list[Wait], now: float) -> None:
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

    def _look_for_cycle(self, out: Outbox, waits: list[Wait], now: float) -> None:
        if self.ended is not None or not self.stalls.is_search_due:
            return
        cycle = self.stalls.find_cycle(waits, self._book(), now)
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
        assert self.quiet <= self.names
        assert sorted(rank for ranks in self.joined_on.values() for rank in ranks) in ([], sorted(self.joined))
        assert (self.ended is None) == (self.state is EpochState.OPEN)


def _invalid(name: str, reason: str) -> Error:
    return Error(ErrorKind.INVALID, f"{name!r}: {reason}")
