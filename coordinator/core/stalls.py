"""What waits, since when, for whom; and which ranks wait for each other.

A wait on a live, running rank only warns (once per limit period) and fails at the shutdown limit.  A cycle -
ranks that are all blocked, each on something that another one of them has not submitted - is reported once
every agent concerned has observed the same twice, and ends the epoch when no thread of those ranks submits
anything within the grace.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from horovod.coordinator.core.mismatch import describe, ranks_text
from horovod.coordinator.core.negotiation import Negotiation
from horovod.coordinator.core.plans import Plans
from horovod.coordinator.core.process_sets import ProcessSets
from horovod.coordinator.core.values import BlockedOn, OpenRound, RankState


@dataclass(frozen=True, slots=True)
class Wait:
    """An operation that is not complete."""

    key: str
    what: str
    age_s: float
    missing: tuple[int, ...]
    waiting: tuple[int, ...]
    holders: tuple[int, ...] = ()


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

    def observe(
        self, agent: str, rounds: tuple[OpenRound, ...], ranks: tuple[RankState, ...], blocked: tuple[BlockedOn, ...]
    ) -> None:
        """Replaces what the agent said before."""
        self.rounds[agent] = rounds
        self.ranks.update({state.rank: state for state in ranks})
        for state in ranks:
            self.blocked_on.pop(state.rank, None)
        self.blocked_on.update({item.rank: item for item in blocked})

    def waits(
        self, plans: Plans, negotiation: Negotiation, sets: ProcessSets, joined: frozenset[int], now: float
    ) -> list[Wait]:
        """Everything open, oldest first."""
        found = self._round_waits(plans) + _name_waits(negotiation, joined, now) + _call_waits(sets, now)
        return sorted(found, key=lambda wait: -wait.age_s)

    def _round_waits(self, plans: Plans) -> list[Wait]:
        merged: dict[tuple[int, int], list[OpenRound]] = {}
        for rounds in self.rounds.values():
            for item in rounds:
                merged.setdefault((item.plan, item.round), []).append(item)
        waits = []
        for (plan_id, number), items in merged.items():
            plan = plans.table.get(plan_id)
            if plan is None:
                continue
            missing = tuple(sorted({rank for item in items for rank in item.missing}))
            holders = tuple(sorted({rank for item in items for rank in item.holders}))
            if not missing and not holders:
                continue
            waiting = tuple(rank for rank in plan.members if rank not in missing)
            what = f"{describe(plan.signature)} (round {number})"
            age_s = max(item.age_s for item in items)
            waits.append(Wait(f"{plan_id}/{number}", what, age_s, missing, waiting, holders))
        return waits

    def due(self, waits: list[Wait], period_s: float, now: float) -> list[str]:
        """Warnings to show now: each wait once per period."""
        alive = {wait.key for wait in waits}
        self.warned = {key: at for key, at in self.warned.items() if key in alive}
        texts = []
        for wait in waits:
            if wait.age_s >= period_s and now - self.warned.get(wait.key, -period_s) >= period_s:
                self.warned[wait.key] = now
                texts.append(self.text(wait))
        return texts

    def text(self, wait: Wait) -> str:
        """Who waits, for what, since when, and what the missing ranks do."""
        late = wait.missing or wait.holders
        idle = "runs, it has not submitted this" if wait.missing else "runs"
        doing = "; ".join(f"rank {rank} {self._doing(rank, idle)}" for rank in late)
        verb = "for" if wait.missing else "for a part that is held by"
        return (
            f"{wait.what} has waited {wait.age_s:.0f} s {verb} {ranks_text(late, self.hosts)}: {doing}. "
            f"Submitted by {ranks_text(wait.waiting, self.hosts)}."
        )

    def _doing(self, rank: int, idle: str) -> str:
        state = self.ranks.get(rank)
        if state is None:
            return "has not been observed"
        if state.process_state == "stopped":
            return "is stopped (SIGSTOP, a debugger, or a frozen container)"
        if state.process_state == "dead":
            return "is dead"
        blocked = self.blocked_on.get(rank)
        if state.blocked and blocked is not None:
            return f"is alive and waits for {blocked.name!r} since {state.blocked_s:.0f} s"
        return f"is alive and {idle}"

    def find_cycle(self, waits: list[Wait], negotiation: Negotiation, agent: str, now: float) -> Cycle | None:
        """Keeps the cycle of the last observations; returns it once all its agents have seen it twice."""
        edges = {rank: self._awaited(rank, waits, negotiation) for rank in self.blocked_on if self._is_blocked(rank)}
        ranks = _cycle(edges)
        if not ranks:
            self.cycle = None
            return None
        snapshot = tuple((rank, self.ranks[rank].submits, self.blocked_on[rank]) for rank in ranks)
        if self.cycle is None or self.cycle.snapshot != snapshot:
            self.cycle = Cycle(snapshot, {self.agent_of[rank] for rank in ranks}, self._cycle_text(ranks), now)
            return None
        self.cycle.unsure.discard(agent)
        return None if self.cycle.unsure else self.cycle

    def _is_blocked(self, rank: int) -> bool:
        state = self.ranks.get(rank)
        return state is not None and state.blocked > 0 and state.process_state == "running"

    def _awaited(self, rank: int, waits: list[Wait], negotiation: Negotiation) -> tuple[int, ...]:
        blocked = self.blocked_on[rank]
        if blocked.plan:
            key = f"{blocked.plan}/{blocked.round}"
            return next((wait.missing for wait in waits if wait.key == key), ())
        for (_, name), entry in negotiation.entries.items():
            if name == blocked.name and rank in entry.announced:
                return tuple(r for r in entry.members if r not in entry.announced)
        return ()

    def _cycle_text(self, ranks: tuple[int, ...]) -> str:
        sides = "; ".join(
            f"rank {rank} (host {self.hosts.get(rank, '?')}) waits for {self.blocked_on[rank].name!r}" for rank in ranks
        )
        return (
            f"Ranks {', '.join(map(str, ranks))} wait for each other: {sides}. None of them has submitted what another "
            "one waits for. Submit the same names on all ranks, or submit asynchronously before you wait."
        )


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
        missing = tuple(rank for rank in sets.sets[0] if rank not in calls.made)
        what = f"{calls.made[callers[0]].wish()} (a call that all ranks must make)"
        waits.append(Wait(f"call {number}", what, now - calls.since, missing, callers))
    return waits


def _cycle(edges: Mapping[int, tuple[int, ...]]) -> tuple[int, ...]:
    """Ranks of one cycle of the wait-for graph, ascending; empty when there is none."""
    done: set[int] = set()
    for start in sorted(edges):
        path: list[int] = []
        found = _walk(start, edges, path, done)
        if found:
            return tuple(sorted(found))
    return ()


def _walk(rank: int, edges: Mapping[int, tuple[int, ...]], path: list[int], done: set[int]) -> list[int]:
    if rank in path:
        return path[path.index(rank) :]
    if rank in done or rank not in edges:
        return []
    path.append(rank)
    for other in edges[rank]:
        found = _walk(other, edges, path, done)
        if found:
            return found
    path.pop()
    done.add(rank)
    return []
