"""Shared memory as the native engine has it, one atomic step at a time, and no bytes.

A step ends where another process may come between: ``arrive`` writes, then (later) reads the limit; the agent stores the
limit, then (later) reads the arrivals.  With several hosts a block spans them: a round opens when the members of all
hosts have arrived, which stands for the exchange between the agents.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from enum import Enum

NO_LIMIT = 1 << 60
Steps = Generator[object, None, None]


class BoardState(Enum):
    """Of one host's board."""

    OK = "ok"
    CLOSED = "closed"
    FAILED = "failed"


@dataclass(frozen=True)
class Payload:
    """What an operation brings: the ``use``-th of its name (or unnamed signature) by ``rank``."""

    rank: int
    key: object
    use: int
    content: object


@dataclass
class Entry:
    """One round: who has arrived with what (None stands for zeros), and what became of it."""

    arrived: dict[int, Payload | None] = field(default_factory=dict)
    opened: bool = False
    closed: str = ""
    reads: int = 0


@dataclass
class Block:
    """One plan on the boards of all its hosts."""

    plan: int
    members: tuple[int, ...]
    depth: int
    limits: dict[str, int] = field(default_factory=dict)
    freed: set[str] = field(default_factory=set)
    arrivals: dict[int, int] = field(default_factory=dict)
    entries: dict[int, Entry] = field(default_factory=dict)

    def entry(self, number: int) -> Entry:
        return self.entries.setdefault(number, Entry())

    def is_below_limit(self, host: str, number: int) -> bool:
        return number < self.limits[host]

    def is_free(self, number: int) -> bool:
        """The ring's entry can be used: its round before was read by everybody."""
        before = self.entries.get(number - self.depth)
        return number < self.depth or (before is not None and before.reads == len(self.members))

    def can_open(self, number: int) -> bool:
        entry = self.entries.get(number)
        return (
            entry is not None
            and not entry.closed
            and len(entry.arrived) == len(self.members)
            and all(number < limit for limit in self.limits.values())
        )


class ModelError(AssertionError):
    """What must never happen has happened."""


@dataclass
class Board:
    """One host's board of one epoch; ``blocks`` by offset, which are used again."""

    host: str
    shared: dict[int, Block]  # of all hosts, by plan
    local: tuple[int, ...]
    state: BoardState = BoardState.OK
    reason: str = ""
    blocks: dict[int, Block] = field(default_factory=dict)
    offsets: dict[int, int] = field(default_factory=dict)
    on_open: Callable[[int, int, dict[int, Payload | None]], None] = lambda plan, number, arrived: None
    watch: bool = False
    rang: bool = False

    def add(self, plan: int, depth: int, members: tuple[int, ...], everybody: tuple[int, ...]) -> int:
        block = self.shared.setdefault(plan, Block(plan, everybody, depth))
        if plan in self.offsets or self.host in block.freed:
            raise ModelError(f"plan {plan} was added twice on {self.host}")
        if not set(members) <= set(everybody) & set(self.local):
            raise ModelError(f"members {members} of plan {plan} are not local")
        block.limits[self.host] = NO_LIMIT
        offset = next(at for at in range(64, 1 << 30, 64) if at not in self.blocks)
        self.blocks[offset], self.offsets[plan] = block, offset
        return offset

    def block(self, plan: int) -> Block:
        return self.blocks[self.offsets[plan]]

    def remove(self, plan: int) -> None:
        block = self.blocks.pop(self.offsets.pop(plan))
        block.freed.add(self.host)

    def ring(self) -> None:
        self.rang = self.rang or self.watch

    # ---- rounds

    def arrive(self, block: Block, number: int, rank: int, payload: Payload | None) -> Steps:
        """The caller has seen that the round is below the limit and its entry free."""
        self.touch(block)
        entry = block.entry(number)
        if rank in entry.arrived:
            raise ModelError(f"rank {rank} arrived twice in round {number} of plan {block.plan}")
        entry.arrived[rank] = payload
        block.arrivals[rank] = number + 1
        yield "arrived"
        self.open_round(block, number)
        self.ring()

    def open_round(self, block: Block, number: int) -> bool:
        """Looks at the limits (again), then opens what is complete."""
        self.touch(block)
        entry = block.entry(number)
        if not entry.opened and block.can_open(number):
            entry.opened = True
            self.on_open(block.plan, number, dict(entry.arrived))
        return entry.opened

    def close_unopened(self, block: Block, number: int, how: str) -> bool:
        self.touch(block)
        entry = block.entry(number)
        if entry.opened:
            return False
        entry.closed = entry.closed or how
        return True

    def arrive_zeros(self, block: Block, rank: int) -> Steps:
        """Leaves the number of rounds in ``zeros``."""
        first = block.arrivals.get(rank, 0)
        most = min(max(block.arrivals.values(), default=0), first + block.depth)
        self.zeros = 0
        for number in range(first, most):
            if not block.is_below_limit(self.host, number) or not block.is_free(number):
                break
            yield from self.arrive(block, number, rank, None)
            block.entry(number).reads += 1
            self.zeros += 1

    zeros: int = 0

    def touch(self, block: Block) -> None:
        if self.host in block.freed:
            raise ModelError(f"plan {block.plan} was used on {self.host} after its block was freed")

    def open_rounds(self) -> list[tuple[Block, int, Entry]]:
        """Rounds with an arrival that are not complete; closed ones wait for their ops to go elsewhere."""
        return [
            (block, number, entry)
            for block in self.blocks.values()
            for number, entry in block.entries.items()
            if entry.arrived and not entry.closed and not entry.opened
        ]
