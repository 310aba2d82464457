"""Matches announcements by name inside a process set, whatever their order.

When all members (joined ranks count as present) have announced equal signatures, a plan is made.  When two differ, everybody who has
announced is refused at once and everybody else when they announce, with the same words; then the name is free again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from horovod.coordinator.core.commands import Outbox, Refusal
from horovod.coordinator.core.mismatch import difference, text
from horovod.coordinator.core.plans import Plans
from horovod.coordinator.core.values import Announcement, Error, ErrorKind, Kind, RankRequest, Signature


@dataclass(slots=True)
class Entry:
    """One name that is being negotiated; ``error`` is set once it is refused, ``told`` are the ranks that know."""

    members: tuple[int, ...]
    since: float
    announced: dict[int, Announcement] = field(default_factory=dict)
    error: Error | None = None
    told: set[int] = field(default_factory=set)

    @property
    def first(self) -> Signature:
        """The signature that the others are compared with."""
        return next(iter(self.announced.values())).signature

    def missing(self, joined: frozenset[int]) -> tuple[int, ...]:
        """Members that have neither announced nor joined."""
        return tuple(r for r in self.members if r not in self.announced and r not in joined)


@dataclass(slots=True)
class Negotiation:
    """Open names of an epoch."""

    hosts: Mapping[int, str]
    agent_of: Mapping[int, str]
    plans: Plans
    entries: dict[tuple[int, str], Entry] = field(default_factory=dict)

    def announce(
        self, out: Outbox, item: Announcement, members: tuple[int, ...], joined: frozenset[int], now: float
    ) -> None:
        """A valid announcement of a member."""
        if item.contested_plan:
            self.plans.contest(out, item.contested_plan, item.contested_round)
        entry = self.entries.setdefault(item.signature.key, Entry(members, now))
        if entry.error is not None:
            self._tell(out, item.signature.key, entry, [item])
            return
        if item.rank in entry.announced:
            self.refuse(out, [item], Error(ErrorKind.INVALID, f"Rank {item.rank} has announced {item.signature.name!r} twice."))
            return
        entry.announced[item.rank] = item
        found = difference(item.signature, entry.first)
        if found is not None:
            entry.error = Error(ErrorKind.MISMATCH, self._mismatch(entry, found[0]))
            self._tell(out, item.signature.key, entry, list(entry.announced.values()))
        else:
            self._complete(out, item.signature.key, entry, joined, now)

    def joined_changed(self, out: Outbox, joined: frozenset[int], now: float) -> None:
        """Somebody joined: names may be complete now, and other collectives can't be any more."""
        for key, entry in list(self.entries.items()):
            if entry.error is not None or not joined.intersection(entry.members):
                continue
            if entry.first.kind is Kind.ALLREDUCE:
                self._complete(out, key, entry, joined, now)
            else:
                self.refuse(out, list(entry.announced.values()), not_while_joined(entry.first, joined))
                del self.entries[key]

    def drop_set(self, out: Outbox, set_id: int, error: Error) -> None:
        """The process set is gone."""
        for key in [key for key in self.entries if key[0] == set_id]:
            entry = self.entries.pop(key)
            self.refuse(out, [a for r, a in entry.announced.items() if r not in entry.told], error)

    def refuse(self, out: Outbox, items: list[Announcement], error: Error) -> None:
        """Refusals, one message for each agent."""
        by_agent: dict[str, list[RankRequest]] = {}
        for item in items:
            by_agent.setdefault(self.agent_of[item.rank], []).append(RankRequest(item.rank, item.request))
        for agent, requests in by_agent.items():
            out.send(agent, Refusal(tuple(requests), error))

    def _complete(
        self, out: Outbox, key: tuple[int, str], entry: Entry, joined: frozenset[int], now: float
    ) -> None:
        if not entry.missing(joined):
            del self.entries[key]
            requests = {rank: item.request for rank, item in entry.announced.items()}
            self.plans.make(out, entry.first, entry.members, requests, now)

    def _tell(self, out: Outbox, key: tuple[int, str], entry: Entry, items: list[Announcement]) -> None:
        assert entry.error is not None
        self.refuse(out, items, entry.error)
        entry.told.update(item.rank for item in items)
        if entry.told >= set(entry.members):
            del self.entries[key]

    def _mismatch(self, entry: Entry, what: str) -> str:
        holders: dict[str, list[int]] = {}
        last = next(reversed(entry.announced.values())).signature
        for rank, item in entry.announced.items():
            other = last if item.signature.content() != last.content() else entry.first
            found = difference(item.signature, other)
            holders.setdefault(found[1] if found else "?", []).append(rank)
        return text(entry.first, holders, what, self.hosts)

    def check_invariants(self) -> None:
        """Raises AssertionError when the book is wrong."""
        for key, entry in self.entries.items():
            assert entry.announced, key
            assert set(entry.announced) <= set(entry.members)
            assert (entry.error is None) == (not entry.told)


def not_while_joined(signature: Signature, joined: frozenset[int]) -> Error:
    """Collectives other than allreduce need everybody's data."""
    ranks = ", ".join(map(str, sorted(joined)))
    return Error(
        ErrorKind.NOT_WHILE_JOINED,
        f"{signature.kind.name} is not supported while ranks have joined: rank(s) {ranks} have run out of data and called "
        f"join, {signature.name!r} needs them. Only allreduce works until all ranks have joined.",
    )
