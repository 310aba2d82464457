"""What an epoch has been told and need not know any more, but a coordinator that was started anew must.

Orders reach the agents one after the other, so a coordinator that is killed may have told some what others have not heard.
Whoever has heard it remembers it here: limits of plans that are gone, answers to set calls, refusals that other ranks
have yet to hear, the last join.  All of it is bounded, and nothing is decided by it on this host.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass, field, replace
from typing import Any

from horovod.agent.core import values as v
from horovod.agent.core.presentation import RefusalPresented, SetAnswer

# An agent may be behind another one by as many orders as were on their way to it when the coordinator died.
MOST_LIMITS = 16_384
MOST_ANSWERS = 64
MOST_REFUSALS = 256


@dataclass(slots=True)
class History:
    """``sets`` by id; ``set_counts`` are the calls that each rank has made."""

    sets: dict[int, v.ProcessSet] = field(default_factory=dict)
    free_sets: list[int] = field(default_factory=list)
    next_set: int = 1
    set_changes: int = 0
    set_counts: Counter[int] = field(default_factory=Counter)
    set_answers: OrderedDict[int, SetAnswer] = field(default_factory=OrderedDict)
    highest_plan: int = 0
    limits: OrderedDict[int, int] = field(default_factory=OrderedDict)
    refusals: OrderedDict[int, RefusalPresented] = field(default_factory=OrderedDict)
    joins_done: int = 0
    last_joined: int = -1

    def begin(self, sets: tuple[v.ProcessSet, ...]) -> None:
        """With the sets that init has made."""
        self.sets = {item.id: item for item in sets}
        self.next_set = max(self.sets, default=0) + 1

    def numbered(self, rank: int) -> int:
        """The number of a call that adds or removes a set, as all ranks count them."""
        self.set_counts[rank] += 1
        return self.set_counts[rank] - 1

    def answered(self, answer: SetAnswer) -> None:
        """All ranks of this host are told the same."""
        for added in answer.added:
            self.set_changes += 1
            self.sets[added.id] = added
            if added.id in self.free_sets:
                self.free_sets.remove(added.id)
            self.next_set = max(self.next_set, added.id + 1)
        for removed in answer.removed:
            self.set_changes += 1
            self.sets.pop(removed, None)
            self.free_sets.append(removed)
        self.set_answers[answer.number] = answer
        _bound(self.set_answers, MOST_ANSWERS)

    def gone(self, plan: int, limit: int) -> None:
        """A plan's block is free."""
        self.limits[plan] = limit
        _bound(self.limits, MOST_LIMITS)

    def refused(self, number: int, announced: v.Announcement, error: v.Error) -> None:
        """A rank is told a refusal that others hear too."""
        signature = announced.signature
        known = self.refusals.pop(number, None) or RefusalPresented(
            number, signature.process_set, signature.name, error, (), self.joins_done
        )
        self.refusals[number] = replace(known, told=(*known.told, announced.rank))
        _bound(self.refusals, MOST_REFUSALS)

    def joined(self, last_rank: int) -> None:
        """Everybody had joined: nobody is owed an old refusal any more."""
        self.joins_done += 1
        self.last_joined = last_rank
        self.refusals.clear()


def _bound(book: OrderedDict[int, Any], most: int) -> None:
    while len(book) > most:
        book.popitem(last=False)


__all__ = ["History"]
