"""How far agents are from each other, as far as they have measured it.

Agents of a job measure the way to a few of them, the *landmarks*: that many round trips for each agent, not one for each pair.
The distance of two others is guessed from their ways to the landmarks: by the triangle inequality it is at least how much these
differ, and at most the shortest way over one of them.  Nothing ever waits for a measurement: what is known is used.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from horovod.coordinator.core.values import RoundTrip

LANDMARKS = 8
FRESH_S = 600.0  # measured again after this, with the next job
FEWEST = 4  # rings of three are all the same
FINEST_S = 50e-6  # what is shorter is as near as can be


@dataclass(slots=True)
class Distances:
    """``ways[a][b]`` in seconds, and the same for b and a; ``asked`` holds when somebody was to measure a pair."""

    ways: dict[str, dict[str, float]] = field(default_factory=dict)
    asked: dict[str, dict[str, float]] = field(default_factory=dict)  # as ``ways``

    def wanted(self, agents: Sequence[str], now: float) -> dict[str, tuple[str, ...]]:
        """Who of these agents is to measure the way to whom; they count as asked."""
        if len(agents) < FEWEST:
            return {}
        marks = landmarks(agents)
        wishes = {agent: tuple(mark for mark in marks if self._is_due(agent, mark, now)) for agent in agents}
        return {agent: wish for agent, wish in wishes.items() if wish}

    def _is_due(self, agent: str, mark: str, now: float) -> bool:
        if agent == mark or now - self.asked.get(agent, {}).get(mark, -math.inf) < FRESH_S:
            return False
        self.asked.setdefault(agent, {})[mark] = self.asked.setdefault(mark, {})[agent] = now
        return True

    def learn(self, agent: str, items: Iterable[RoundTrip], known: Iterable[str]) -> None:
        """What an agent has measured; only of agents that are ``known``."""
        here = set(known)
        for item in items:
            if item.agent in here and agent in here and item.agent != agent and 0 <= item.seconds < math.inf:
                self.ways.setdefault(agent, {})[item.agent] = item.seconds
                self.ways.setdefault(item.agent, {})[agent] = item.seconds

    def forget(self, agent: str) -> None:
        """It is gone, or has come anew, perhaps from elsewhere."""
        for table in (self.ways, self.asked):
            for other in table.pop(agent, {}):
                table[other].pop(agent, None)

    def measured(self, one: str, other: str) -> float | None:
        """Seconds, if this pair has been measured."""
        return self.ways.get(one, {}).get(other)

    def guess(self, one: str, other: str) -> float | None:
        """Seconds, measured or guessed; None when nothing is known."""
        mine, theirs = self.ways.get(one, {}), self.ways.get(other, {})
        if other in mine:
            return mine[other]
        common = mine.keys() & theirs.keys()
        if not common:
            return None
        most = min(mine[mark] + theirs[mark] for mark in common)
        least = min(most, max(abs(mine[mark] - theirs[mark]) for mark in common))
        return (least + max(least, most / 2)) / 2  # whoever sees all landmarks alike is probably near

    def check_invariants(self) -> None:
        """Raises AssertionError when the book is wrong."""
        for table in (self.ways, self.asked):
            for one, row in table.items():
                assert one not in row
                assert all(table[other][one] == value for other, value in row.items())


def landmarks(agents: Sequence[str]) -> tuple[str, ...]:
    """Some of the agents, evenly from first to last."""
    count = min(LANDMARKS, len(agents))
    return tuple(agents[number * len(agents) // count] for number in range(count))


def rounded(seconds: float) -> float:
    """One of few values: what agents with equal ones see is alike."""
    return FINEST_S * 1.5 ** max(0, round(math.log(max(seconds, FINEST_S) / FINEST_S, 1.5)))


__all__ = ["FEWEST", "FINEST_S", "FRESH_S", "LANDMARKS", "Distances", "landmarks", "rounded"]
