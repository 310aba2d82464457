"""Processes that others have started and that wait for a rank: who they are, which ones are taken, and in which places.

Owns the book of waiting processes ("guests"), by agent; forms no job itself.  Theory.  A job of n ranks begins when n guests wait,
wherever they are: the first n that came.  Ranks are numbered then, not before: agents in the order of the ring, each one's
guests in a row, so that the ranks of a host are neighbours and local and cross values are those of a launched job.  A guest that
names its rank gets that one; the others fill what is free.  An agent reports its whole list whenever it changes; a report
may have been on its way while guests were taken or refused, so those are remembered until the agent lists them no more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from horovod.coordinator.core.values import Guest, RankPlace

__all__ = ["Gathering", "Key", "Placed", "number_ranks"]

Key = tuple[str, int]  # agent, and its number of the guest


@dataclass(frozen=True, slots=True)
class Placed:
    """A guest and its place."""

    guest: Guest
    place: RankPlace


@dataclass(slots=True)
class Gathering:
    """``standing``: the size of jobs that form at any time; ``attached``: of the submission that is open, it comes first."""

    standing: int = 0
    attached: int = 0
    waiting: dict[Key, Guest] = field(default_factory=dict)  # in the order in which they came
    settled: set[Key] = field(default_factory=set)  # taken or refused, as far as the agent may still list them
    lists: dict[str, tuple[int, ...]] = field(default_factory=dict)  # of each agent, in its order
    resting: dict[str, int] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Of the next job; 0 while nobody has asked for one."""
        return self.attached or self.standing

    def report(self, agent: str, items: Sequence[Guest], resting: int) -> None:
        """The whole list of an agent."""
        listed = {(agent, item.id): item for item in items}
        self.lists[agent] = tuple(item.id for item in items)
        self.resting[agent] = resting
        self.settled = {key for key in self.settled if key[0] != agent or key in listed}
        for key in [key for key in self.waiting if key[0] == agent and key not in listed]:
            del self.waiting[key]
        for key, item in listed.items():
            if key not in self.settled:
                self.waiting[key] = item

    def forget(self, agent: str) -> None:
        """The agent is gone, or begins anew."""
        self.report(agent, (), 0)
        del self.lists[agent], self.resting[agent]

    def settle(self, key: Key) -> Guest:
        """It waits no more."""
        self.settled.add(key)
        return self.waiting.pop(key)

    def misfits(self) -> list[tuple[Key, str]]:
        """Guests that no job of this size has a place for, with the reason."""
        found: list[tuple[Key, str]] = []
        wishes: dict[int, str] = {}
        for key, guest in self.waiting.items() if self.size else ():
            who = f"process {guest.pid} (agent {key[0]})"
            if guest.size not in (0, self.size):
                text = f"HOROVOD_SIZE={guest.size}, but the job has {self.size} ranks: leave HOROVOD_SIZE out, or make them equal."
            elif guest.rank >= self.size:
                text = f"HOROVOD_RANK={guest.rank}, but the job has ranks 0 to {self.size - 1}: leave HOROVOD_RANK out."
            elif guest.rank >= 0 and guest.rank in wishes:
                text = f"HOROVOD_RANK={guest.rank} is {wishes[guest.rank]} already: leave HOROVOD_RANK out, or choose another."
            else:
                wishes[guest.rank] = who
                continue
            found.append((key, f"{who[0].upper()}{who[1:]} can't be a rank: {text}"))
        return found

    def first(self) -> list[Key]:
        """The guests of the next job, in the order in which they came; empty while there are too few."""
        keys = list(self.waiting)[: self.size]
        return keys if self.size and len(keys) == self.size else []

    def in_row(self, keys: Sequence[Key], ring: Sequence[str]) -> list[Key]:
        """These guests as ranks are numbered: by agent in the order of the ring, then as the agent lists them."""

        def place(key: Key) -> tuple[int, int]:
            listed = self.lists.get(key[0], ())
            return ring.index(key[0]), listed.index(key[1]) if key[1] in listed else len(listed)

        return sorted(keys, key=place)

    def check_invariants(self) -> None:
        """Raises AssertionError when the book is wrong."""
        assert not self.settled & set(self.waiting)
        assert all(key[1] in self.lists[key[0]] for key in self.waiting)


def number_ranks(row: Sequence[tuple[str, Guest]], hosts: Mapping[str, str]) -> list[Placed]:
    """Places by rank: those that name their rank get it (no two the same), the others fill the free ranks in this order."""
    wished = {guest.rank: (agent, guest) for agent, guest in row if guest.rank >= 0}
    others = iter([(agent, guest) for agent, guest in row if guest.rank < 0])
    by_rank = [wished[rank] if rank in wished else next(others) for rank in range(len(row))]
    ranks: dict[str, list[int]] = {}
    for rank, (agent, _) in enumerate(by_rank):
        ranks.setdefault(agent, []).append(rank)
    placed: list[Placed] = []
    for rank, (agent, guest) in enumerate(by_rank):
        local = ranks[agent].index(rank)
        sharing = [name for name, own in ranks.items() if len(own) > local]
        cross = (sharing.index(agent), len(sharing))
        placed.append(Placed(guest, RankPlace(rank, agent, hosts[agent], local, len(ranks[agent]), *cross)))
    return placed
