"""What waits, since when, for whom; and which ranks wait for each other.

A wait on a live, running rank only warns (once per limit period) and fails at the shutdown limit.  A cycle -
ranks that are all blocked, each on something that another one of them has not submitted - is reported once
every agent concerned has observed the same twice, and ends the epoch when no thread of those ranks submits
anything within the grace.  A rank is blocked in an operation, in join, or in a call that adds or removes a process
set; one that has joined holds up no operation, as zeros stand in for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from horovod.coordinator.core.mismatch import describe, ranks_text
from horovod.coordinator.core.negotiation import Negotiation
from horovod.coordinator.core.plans import Plans
from horovod.coordinator.core.process_sets import ProcessSets
from horovod.coordinator.core.values import BlockedOn, OpenRound, RankState

_NAMED = 3  # of those that wait for the same ranks
_AUTOMATIC = ".noname."
_NAMES_ADVICE = (
    "Numbers behind 'noname' count the calls that a rank has made, so these ranks have made different numbers of calls: some "
    "only on one of them, or on a process set that not all belong to. Give names to operations (name=...), the same on all ranks."
)
_CALLS_ADVICE = (
    "All ranks, members or not, must add and remove process sets in the same order, and none may be in join meanwhile."
)


@dataclass(frozen=True, slots=True)
class Wait:
    """An operation that is not complete."""

    key: str
    what: str
    age_s: float
    missing: tuple[int, ...]
    waiting: tuple[int, ...]
    holders: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Book:
    """What is open in an epoch; ``joined`` maps ranks to the requests of their joins."""

    plans: Plans
    negotiation: Negotiation
    sets: ProcessSets
    joined: Mapping[int, int]


class _Awaited:
    """The ranks without which another one can't go on.  Ranks that wait for the same share one tuple."""

    def __init__(self, book: Book, waits: list[Wait]) -> None:
        joined = book.joined
        self._book = book
        self._missing = {wait.key: tuple(r for r in wait.missing if r not in joined) for wait in waits}
        self._calls = {wait.key: wait.missing for wait in waits}  # joined ranks must make them too
        self._not_joined = tuple(rank for rank in book.sets.sets[0] if rank not in joined)
        self._names: dict[str, list[tuple[int, str]]] = {}
        for key in book.negotiation.entries:
            self._names.setdefault(key[1], []).append(key)

    def by(self, blocked: BlockedOn) -> tuple[int, ...]:
        """What one rank waits for."""
        rank, book = blocked.rank, self._book
        if blocked.call and book.joined.get(rank) == blocked.call:
            return self._not_joined
        if blocked.call:
            number = book.sets.number(rank, blocked.call)
            return self._calls.get(f"call {number}", ()) if number is not None else ()
        if blocked.plan:
            return self._missing.get(f"{blocked.plan}/{blocked.round}", ())
        for set_id, name in self._names.get(blocked.name, ()):
            if rank in book.negotiation.entries[set_id, name].announced:
                return self._missing.get(f"{set_id}:{name}", ())
        return ()


@dataclass(slots=True)
class Cycle:
    """Ranks that wait for each other, as first seen; ``unsure`` are the agents that have not confirmed it."""

    snapshot: tuple[object, ...]
    unsure: set[str]
    text: str
    seen_at: float
    reported_at: float | None = None


@dataclass(slots=True)
class Stalls:
    """The latest observation of every agent, and what was said about it."""

    hosts: Mapping[int, str]
    agent_of: Mapping[int, str]
    rounds: dict[str, tuple[OpenRound, ...]] = field(default_factory=dict)
    ranks: dict[int, RankState] = field(default_factory=dict)
    blocked_on: dict[int, BlockedOn] = field(default_factory=dict)
    warned: dict[str, float] = field(default_factory=dict)
    cycle: Cycle | None = None
    fresh: set[str] = field(default_factory=set)  # agents that have observed since the last search for a cycle

    def observe(
        self, agent: str, rounds: tuple[OpenRound, ...], ranks: tuple[RankState, ...], blocked: tuple[BlockedOn, ...]
    ) -> None:
        """Replaces what the agent said before."""
        self.fresh.add(agent)
        self.rounds[agent] = rounds
        self.ranks.update({state.rank: state for state in ranks})
        for state in ranks:
            self.blocked_on.pop(state.rank, None)
        self.blocked_on.update({item.rank: item for item in blocked})

    def waits(self, book: Book, now: float) -> list[Wait]:
        """Everything open, oldest first."""
        names = _name_waits(book.negotiation, frozenset(book.joined), now)
        found = self._round_waits(book.plans) + names + _call_waits(book.sets, now)
        return sorted(found, key=lambda wait: -wait.age_s)

    def ages(self, book: Book, now: float) -> list[float]:
        """How old each of the waits is, in no order; cheaper than all that ``waits`` says of them."""
        rounds: dict[tuple[int, int], float] = {}
        for key, said in self._said().items():
            plan = book.plans.table.get(key[0])
            late = any(item.missing or item.holders for item in said.values())
            if plan is not None and (late or self._silent(plan.members, said)):
                rounds[key] = max(item.age_s for item in said.values())
        starts = [entry.since for entry in book.negotiation.entries.values()]
        starts += [calls.since for calls in book.sets.calls.values()]
        return [*rounds.values(), *(now - start for start in starts)]

    def _round_waits(self, plans: Plans) -> list[Wait]:
        waits = []
        for (plan_id, number), said in self._said().items():
            plan = plans.table.get(plan_id)
            if plan is None or 0 <= plan.limit <= number:
                continue  # what waited there is announced anew
            items = said.values()
            missing = tuple(
                sorted({rank for item in items for rank in item.missing} | self._silent(plan.members, said))
            )
            holders = tuple(sorted({rank for item in items for rank in item.holders}))
            if not missing and not holders:
                continue
            waiting = tuple(rank for rank in plan.members if rank not in missing)
            what = f"{describe(plan.signature)} (round {number})"
            age_s = max(item.age_s for item in items)
            waits.append(Wait(f"{plan_id}/{number}", what, age_s, missing, waiting, holders))
        return waits

    def _said(self) -> dict[tuple[int, int], dict[str, OpenRound]]:
        """What agents say of each round."""
        merged: dict[tuple[int, int], dict[str, OpenRound]] = {}
        for agent, rounds in self.rounds.items():
            for item in rounds:
                merged.setdefault((item.plan, item.round), {})[agent] = item
        return merged

    def _silent(self, members: tuple[int, ...], said: Mapping[str, OpenRound]) -> set[int]:
        """Members on hosts whose agents know nothing of a round that some host has done its part of: none has arrived.

        Or all that was theirs is done: then data still come in where the round is known.
        """
        items = said.values()
        if any(item.travels for item in items) or all(item.missing or item.holders for item in items):
            return set()
        return {rank for rank in members if self.agent_of[rank] not in said}

    def due(self, waits: list[Wait], period_s: float, now: float) -> list[str]:
        """Warnings to show now: one of all waits for the same ranks, once per period."""
        alive = {wait.key for wait in waits}
        self.warned = {key: at for key, at in self.warned.items() if key in alive}
        groups: dict[tuple[object, ...], list[Wait]] = {}
        for wait in waits:
            groups.setdefault((wait.missing, wait.holders), []).append(wait)
        texts = []
        for group in groups.values():
            last = max(self.warned.get(wait.key, -period_s) for wait in group)
            if group[0].age_s >= period_s and now - last >= period_s:
                self.warned.update((wait.key, now) for wait in group)
                texts.append(self.text(group[0], group[1:]))
        return texts

    def text(self, wait: Wait, others: Sequence[Wait] = ()) -> str:
        """Who waits, for what, since when, and what the missing ranks do; ``others`` wait for the same ranks."""
        late = wait.missing or wait.holders
        idle = "runs, it has not submitted this" if wait.missing else "runs"
        doing = "; ".join(f"rank {rank} {self._doing(rank, idle)}" for rank in late)
        verb = "for" if wait.missing else "for a part that is held by"
        return (
            f"{wait.what} has waited {wait.age_s:.0f} s {verb} {ranks_text(late, self.hosts)}: {doing}. "
            f"Submitted by {ranks_text(wait.waiting, self.hosts)}.{_others_text(others)}"
        ) + _advice_on_names([wait.what, *(self.blocked_on[rank].name for rank in late if rank in self.blocked_on)])

    def _doing(self, rank: int, idle: str) -> str:
        state = self.ranks.get(rank)
        if state is None:
            return "has not been observed"
        if state.process_state == "stopped":
            return "is stopped (SIGSTOP, a debugger, or a frozen container)"
        if state.process_state == "dead":
            return "is dead"
        blocked = self.blocked_on.get(rank)
        if state.blocked:
            what = repr(blocked.name) if blocked is not None else "another operation"
            return f"is alive and waits for {what} since {state.blocked_s:.0f} s"
        return f"is alive and {idle}"

    @property
    def is_search_due(self) -> bool:
        """Whether there are blocked ranks, and something new was heard of them since the last search for a cycle."""
        return bool(self.fresh) and bool(self.blocked_on)

    def find_cycle(self, waits: list[Wait], book: Book, now: float) -> Cycle | None:
        """Keeps the cycle of the last observations; returns it once all its agents have seen it twice."""
        agents, self.fresh = self.fresh, set()
        awaited = _Awaited(book, waits)
        blocked = {rank: item for rank, item in self.blocked_on.items() if self._is_blocked(rank)}
        ranks = _cycle({rank: awaited.by(item) for rank, item in blocked.items()})
        if not ranks:
            self.cycle = None
            return None
        snapshot = tuple((rank, self.ranks[rank].submits, self.blocked_on[rank]) for rank in ranks)
        if self.cycle is None or self.cycle.snapshot != snapshot:
            self.cycle = Cycle(snapshot, {self.agent_of[rank] for rank in ranks}, self._cycle_text(ranks), now)
            return None
        self.cycle.unsure -= agents
        return None if self.cycle.unsure else self.cycle

    def _is_blocked(self, rank: int) -> bool:
        state = self.ranks.get(rank)
        return state is not None and state.blocked > 0 and state.process_state == "running"

    def _cycle_text(self, ranks: tuple[int, ...]) -> str:
        sides = "; ".join(
            f"rank {rank} (host {self.hosts.get(rank, '?')}) waits for {self.blocked_on[rank].name!r}" for rank in ranks
        )
        text = (
            f"Ranks {', '.join(map(str, ranks))} wait for each other: {sides}. None of them has submitted what another "
            "one waits for. Submit the same names on all ranks, or submit asynchronously before you wait."
        )
        if any(self.blocked_on[rank].call for rank in ranks):
            text = f"{text} {_CALLS_ADVICE}"
        return text + _advice_on_names(self.blocked_on[rank].name for rank in ranks)


def _others_text(others: Sequence[Wait]) -> str:
    """The first few by name."""
    if not others:
        return ""
    named = "; ".join(wait.what for wait in others[:_NAMED])
    rest = f"; and {len(others) - _NAMED} more" if len(others) > _NAMED else ""
    return f" {len(others)} more {'waits' if len(others) == 1 else 'wait'} for the same: {named}{rest}."


def _advice_on_names(names: Iterable[str]) -> str:
    """For ranks that wait in operations without a name of the user's: most likely one has made more calls than another."""
    return f" {_NAMES_ADVICE}" if sum(_AUTOMATIC in name for name in names) > 1 else ""


def _name_waits(negotiation: Negotiation, joined: frozenset[int], now: float) -> list[Wait]:
    waits = []
    for (set_id, name), entry in negotiation.entries.items():
        missing = entry.missing(joined)
        if missing:
            what = f"{describe(entry.first)} (not negotiated yet)"
            waits.append(Wait(f"{set_id}:{name}", what, now - entry.since, missing, tuple(entry.announced)))
    return waits


def _call_waits(sets: ProcessSets, now: float) -> list[Wait]:
    waits = []
    for number, calls in sets.calls.items():
        callers = tuple(sorted(calls.made))
        missing = sets.missing(calls)
        what = f"{calls.made[callers[0]].wish()} (a call that all ranks must make)"
        waits.append(Wait(f"call {number}", what, now - calls.since, missing, callers))
    return waits


def _cycle(edges: Mapping[int, tuple[int, ...]]) -> tuple[int, ...]:
    """Ranks of one cycle of the wait-for graph, ascending; empty when there is none.

    A tuple of edges that led to no cycle is not walked again for another rank: thousands may share it.
    """
    done: set[int] = set()
    explored: set[int] = set()
    for start in sorted(edges):
        path = {start: iter(edges[start])} if start not in done else {}
        while path:
            rank = next(reversed(path))
            other = next(path[rank], None)
            if other is None:
                del path[rank]
                done.add(rank)
                explored.add(id(edges[rank]))
            elif other in path:
                ranks = list(path)
                return tuple(sorted(ranks[ranks.index(other) :]))
            elif other in edges and other not in done and id(edges[other]) not in explored:
                path[other] = iter(edges[other])
    return ()
