"""Matches announcements by name inside a process set, whatever their order.

When all members (joined ranks count as present) have announced equal signatures, a plan is made.  When two
differ, or one rank has no memory for its data, everybody who has announced is refused at once and everybody else at
their next announcement of that name, with the same words (a tombstone says who is owed them).  A rank that has been
told may use the name again at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field

from horovod.coordinator.core.commands import Outbox, Refusal
from horovod.coordinator.core.mismatch import difference, text
from horovod.coordinator.core.plans import Plans
from horovod.coordinator.core.tally import Tally
from horovod.coordinator.core.values import Announcement, Error, ErrorKind, Kind, RankRequest, Signature


@dataclass(slots=True)
class Entry:
    """One name that is being negotiated."""

    members: tuple[int, ...]
    since: float
    announced: dict[int, Announcement] = field(default_factory=dict)

    @property
    def first(self) -> Signature:
        """The signature that the others are compared with."""
        return next(iter(self.announced.values())).signature

    def missing(self, joined: Set[int]) -> tuple[int, ...]:
        """Members that have neither announced nor joined."""
        return tuple(r for r in self.members if r not in self.announced and r not in joined)

    def is_complete(self, joined: Set[int]) -> bool:
        """Whether nobody is missing; looks at all members only when that may be so."""
        if len(self.announced) + len(joined) < len(self.members):
            return False
        return len(self.announced) == len(self.members) or not self.missing(joined)


@dataclass(slots=True)
class Tombstone:
    """A refused name; ``owed`` are the members that have not been told."""

    error: Error
    owed: set[int]
    id: int = 0


@dataclass(slots=True)
class Negotiation:
    """Open names of an epoch; ``tombstones`` of a name are in the order of its refusals."""

    hosts: Mapping[int, str]
    agent_of: Mapping[int, str]
    plans: Plans
    tally: Tally = field(default_factory=Tally)
    entries: dict[tuple[int, str], Entry] = field(default_factory=dict)
    tombstones: dict[tuple[int, str], list[Tombstone]] = field(default_factory=dict)
    refused: int = 0  # refusals that all members hear, each with a number

    def announce(self, out: Outbox, item: Announcement, members: tuple[int, ...], joined: Set[int], now: float) -> None:
        """A valid announcement of a member."""
        if item.contested_plan:
            self.plans.contest(out, item.contested_plan, item.contested_round)
        key = item.signature.key
        owed = self.owed(key, item.rank)
        if owed is not None:
            self.refuse(out, [item], owed.error, owed.id)
            return
        entry = self.entries.get(key)
        if entry is None:
            entry = self.entries[key] = Entry(members, now)
        if item.rank in entry.announced:
            twice = f"Rank {item.rank} has announced {item.signature.name!r} twice."
            self.refuse(out, [item], Error(ErrorKind.INVALID, twice))
            return
        entry.announced[item.rank] = item
        first = entry.first
        same = item.signature is first or item.signature == first
        found = None if same else difference(item.signature, first)
        if found is not None:
            what, mine, others = found
            holders = {others: [rank for rank in entry.announced if rank != item.rank], mine: [item.rank]}
            words = text(entry.first, holders, what, self.hosts)
            self._refuse_all(out, key, Error(ErrorKind.MISMATCH, words), joined)
        elif item.no_room_bytes or item.input_gone:
            self._refuse_all(out, key, _unable(item, self.hosts.get(item.rank, "?")), joined)
        else:
            self._complete(out, key, entry, joined, now)

    def joined_changed(self, out: Outbox, joined: Set[int], extended: bool, now: float) -> None:
        """Somebody joined: names may be complete now, and what needs everybody's data can't be any more."""
        self._forgive(joined)
        for key, entry in list(self.entries.items()):
            if joined.isdisjoint(entry.members):
                continue
            if can_miss(entry.first, joined, extended):
                self._complete(out, key, entry, joined, now)
            else:
                self.refuse(out, list(entry.announced.values()), not_while_joined(entry.first, joined, extended))
                del self.entries[key]

    def drop_set(self, out: Outbox, set_id: int, error: Error) -> None:
        """The process set is gone."""
        for key in [key for key in self.entries if key[0] == set_id]:
            self.refuse(out, list(self.entries.pop(key).announced.values()), error)
        for key in [key for key in self.tombstones if key[0] == set_id]:
            del self.tombstones[key]

    def refuse(self, out: Outbox, items: list[Announcement], error: Error, number: int = 0) -> None:
        """Refusals, one message for each agent."""
        self.tally.refusals[error.kind] += len(items)
        by_agent: dict[str, list[RankRequest]] = {}
        for item in items:
            by_agent.setdefault(self.agent_of[item.rank], []).append(RankRequest(item.rank, item.request))
        for agent, requests in by_agent.items():
            out.send(agent, Refusal(tuple(requests), error, number))

    def _complete(self, out: Outbox, key: tuple[int, str], entry: Entry, joined: Set[int], now: float) -> None:
        if entry.is_complete(joined):
            del self.entries[key]
            requests = {rank: item.request for rank, item in entry.announced.items()}
            self.plans.make(out, entry.first, entry.members, requests, now)

    def _refuse_all(self, out: Outbox, key: tuple[int, str], error: Error, joined: Set[int]) -> None:
        self.tally.mismatches += 1
        entry = self.entries.pop(key)
        self.refused += 1
        self.refuse(out, list(entry.announced.values()), error, self.refused)
        owed = set(entry.missing(joined))
        if owed:
            self.tombstones.setdefault(key, []).append(Tombstone(error, owed, self.refused))

    def owed(self, key: tuple[int, str], rank: int) -> Tombstone | None:
        """The oldest refusal of this name that the rank has not heard of; it counts as told then."""
        for tombstone in self.tombstones.get(key, ()):
            if rank in tombstone.owed:
                tombstone.owed.discard(rank)
                self._sweep(key)
                return tombstone
        return None

    def _forgive(self, joined: Set[int]) -> None:
        # A rank that joins has no call left that could be meant by an old refusal.
        for key, tombstones in list(self.tombstones.items()):
            for tombstone in tombstones:
                tombstone.owed.difference_update(joined)
            self._sweep(key)

    def _sweep(self, key: tuple[int, str]) -> None:
        left = [tombstone for tombstone in self.tombstones[key] if tombstone.owed]
        if left:
            self.tombstones[key] = left
        else:
            del self.tombstones[key]

    def check_invariants(self) -> None:
        """Raises AssertionError when the book is wrong."""
        for key, entry in self.entries.items():
            assert entry.announced, key
            assert set(entry.announced) <= set(entry.members)
            assert set(entry.announced) == {item.rank for item in entry.announced.values()}
        for key, tombstones in self.tombstones.items():
            assert tombstones, key
            assert all(tombstone.owed for tombstone in tombstones)


def _unable(item: Announcement, host: str) -> Error:
    refused = f"{item.signature.name!r} was refused on all ranks: rank {item.rank} (host {host}) "
    if item.input_gone:
        why = (
            "can't start it again: it was under way when an operation before it was refused, and what was summed up by then "
            "lies where its input was, in shared memory. See to the first error; compute the input anew and submit it again "
            "on all ranks."
        )
    else:
        why = (
            f"has no room for {item.no_room_bytes} bytes in its shared memory. Set HVD_ARENA_BYTES to more (memory limits of "
            "the container count too), or wait for operations that are open before you start others."
        )
    return Error(ErrorKind.NO_ROOM, refused + why)


def can_miss(signature: Signature, joined: Set[int], extended: bool) -> bool:
    """Whether a collective goes without the data of ranks that have joined; ``extended`` is HOROVOD_JOIN_MODE."""
    return signature.root not in joined if extended else signature.kind is Kind.ALLREDUCE


def not_while_joined(signature: Signature, joined: Set[int], extended: bool) -> Error:
    """Collectives other than allreduce need everybody's data; with ``extended``, only those of a root need the root's."""
    return Error(ErrorKind.NOT_WHILE_JOINED, _root_joined(signature) if extended else _not_supported(signature, joined))


def _root_joined(signature: Signature) -> str:
    return (
        f"{signature.kind.name} {signature.name!r} can't run: its root, rank {signature.root}, has run out of data and called "
        "join. Give a root that has not joined, or wait until all ranks have joined."
    )


def _not_supported(signature: Signature, joined: Set[int]) -> str:
    ranks = ", ".join(map(str, sorted(joined)))
    return (
        f"{signature.kind.name} is not supported while ranks have joined: rank(s) {ranks} have run out of data and "
        f"called join, {signature.name!r} needs them. Only allreduce works until all ranks have joined. "
        "HOROVOD_JOIN_MODE=extended, on all ranks, lets the others go on without them."
    )
