"""Process sets of an epoch: static ones from init, dynamic ones added and removed by all ranks in the same order.

Ids: 0 is global, the next ones count up, removed ids are used again, first removed first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from horovod.coordinator.core.values import Error, ErrorKind, ProcessSet


@dataclass(frozen=True, slots=True)
class SetCall:
    """One rank's n-th call: adds ``ranks``, or removes ``remove`` when that is not negative."""

    request: int
    ranks: tuple[int, ...] = ()
    remove: int = -1

    def wish(self) -> str:
        """What all ranks must agree on, as words."""
        return f"remove process set {self.remove}" if self.remove >= 0 else f"add process set {list(self.ranks)}"


@dataclass(slots=True)
class Calls:
    """The same call of every rank, as far as it has come."""

    since: float
    made: dict[int, SetCall] = field(default_factory=dict)


@dataclass(slots=True)
class ProcessSets:
    """Which sets exist; ``calls[n]`` collects the n-th call of every rank."""

    size: int
    sets: dict[int, tuple[int, ...]] = field(default_factory=dict)
    free: deque[int] = field(default_factory=deque)
    next_id: int = 1
    counts: dict[int, int] = field(default_factory=dict)
    calls: dict[int, Calls] = field(default_factory=dict)
    lookup: dict[int, frozenset[int]] = field(default_factory=dict)  # the same as ``sets``, to ask for one rank

    def __post_init__(self) -> None:
        self._open(0, tuple(range(self.size)))

    def _open(self, set_id: int, ranks: tuple[int, ...]) -> None:
        self.sets[set_id], self.lookup[set_id] = ranks, frozenset(ranks)

    def add(self, ranks: tuple[int, ...]) -> ProcessSet | Error:
        """A new set, or why not."""
        reason = fault(ranks, self.size)
        wanted = tuple(sorted(ranks))
        for set_id, members in self.sets.items():
            if members == wanted and not reason:
                what = "the global process set" if set_id == 0 else f"process set {set_id}"
                reason = f"A process set with ranks {list(wanted)} exists already: {what}."
        if reason:
            return Error(ErrorKind.INVALID, reason)
        if self.free:
            set_id = self.free.popleft()
        else:
            set_id, self.next_id = self.next_id, self.next_id + 1
        self._open(set_id, wanted)
        return ProcessSet(set_id, wanted)

    def take_over(self, sets: Iterable[ProcessSet], free: Iterable[int], next_id: int) -> None:
        """Those of an earlier coordinator."""
        self.sets.clear()
        self.lookup.clear()
        for item in sets:
            self._open(item.id, item.ranks)
        self.free, self.next_id = deque(free), next_id

    def close(self, set_id: int) -> Error | None:
        """The set takes nothing new; why not, if not.  Its id stays taken until ``release``."""
        if set_id == 0:
            return Error(ErrorKind.INVALID, "The global process set can't be removed.")
        if set_id not in self.sets:
            return Error(ErrorKind.INVALID, f"There is no process set {set_id}.")
        del self.sets[set_id], self.lookup[set_id]
        return None

    def release(self, set_id: int) -> None:
        """The id may be used again."""
        self.free.append(set_id)

    def call(self, rank: int, call: SetCall, now: float) -> dict[int, SetCall] | None:
        """Books a rank's call; all ranks' calls once everybody has made theirs."""
        number = self.counts.get(rank, 0)
        self.counts[rank] = number + 1
        return self.book(rank, number, call, now)

    def book(self, rank: int, number: int, call: SetCall, now: float) -> dict[int, SetCall] | None:
        """The same for the n-th call."""
        calls = self.calls.setdefault(number, Calls(now))
        calls.made[rank] = call
        if len(calls.made) < self.size:
            return None
        return self.calls.pop(number).made

    def missing(self, calls: Calls) -> tuple[int, ...]:
        """Ranks that have not made this call."""
        return tuple(rank for rank in self.sets[0] if rank not in calls.made)

    def number(self, rank: int, request: int) -> int | None:
        """Which call of all ranks a rank has made with this request, None when it is over."""
        for number, calls in self.calls.items():
            made = calls.made.get(rank)
            if made is not None and made.request == request:
                return number
        return None

    def check_invariants(self) -> None:
        """Raises AssertionError when the book is wrong."""
        assert self.sets[0] == tuple(range(self.size))
        assert not set(self.free) & set(self.sets)
        assert len(set(self.free)) == len(self.free)
        assert len(set(self.sets.values())) == len(self.sets)
        assert self.lookup == {set_id: frozenset(ranks) for set_id, ranks in self.sets.items()}


def fault(ranks: tuple[int, ...], size: int) -> str:
    """What is wrong with a definition, empty when nothing is."""
    if not ranks:
        return "A process set needs at least one rank."
    if len(set(ranks)) != len(ranks):
        return f"Process set {list(ranks)} names a rank twice."
    outside = [rank for rank in ranks if not 0 <= rank < size]
    return f"Process set {list(ranks)} has rank {outside[0]}, the ranks are 0 to {size - 1}." if outside else ""
