"""Looks at a board without touching it, for metrics and status: what is open, what ranks do, what memory is used.

It also keeps the books: rounds are counted from the arrivals on the board, by whoever looks at them anyway.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field

from horovod import native
from horovod.agent.core import events as ev
from horovod.agent.core.tally import LOCAL, Tally
from horovod.agent.planes.plane import Plane

__all__ = ["Account", "BoardView", "Books"]

_MOST_ROUNDS = 1024
_RISING = (
    "rounds_direct",
    "rounds_doubling",
    "rounds_ring",
    "rounds_pull",
    "frames_sent",
    "frames_received",
    "writes",
    "reads",
)
_BLOCK_BYTES = 512  # of st_blocks, whatever the file system


@dataclass(slots=True)
class Account:
    """A plan's rounds, as far as they are counted.  Rounds at or above ``limit`` do not run."""

    collective: str
    plane: str
    payload: int
    counted: int = 0
    limit: int | None = None


@dataclass(slots=True)
class Books:
    """Of one board.  What others count from 0 on each board is in ``counted``, as far as it is in the tally."""

    tally: Tally
    accounts: dict[int, Account] = field(default_factory=dict)
    counted: dict[tuple[str, str], int] = field(default_factory=dict)

    def opened(self, command: ev.PlanAdd, plane: str) -> None:
        """A plan has a block; ``plane`` carries its rounds."""
        self.tally.plans += 1
        self.accounts[command.plan] = Account(command.collective, plane, command.payload)

    def limited(self, plan: int, limit: int) -> None:
        """A plan is marked."""
        self.accounts[plan].limit = limit

    def arrived(self, plan: int, arrivals: Sequence[int]) -> None:
        """Members have arrived in so many rounds: the ones in which all have are counted."""
        account = self.accounts[plan]
        rounds = min(arrivals, default=0)
        if account.limit is not None:
            rounds = min(rounds, account.limit)
        if rounds > account.counted:
            self.tally.ran(account.collective, account.plane, rounds - account.counted, account.payload)
            account.counted = rounds

    def submitted(self, index: int, submits: int) -> None:
        """A rank has submitted so many operations on this board."""
        self.tally.submissions += self._more("submits", str(index), submits)

    def net(self, info: native.NetInfo) -> None:
        """The net has done so much."""
        for name in _RISING:
            self.tally.net[name] += self._more("net", name, getattr(info, name))

    def neighbour(self, agent: str, info: native.NetPeerInfo) -> None:
        """So much has gone to and come from another agent."""
        self.tally.sent_bytes[agent] += self._more("sent", agent, info.bytes_sent)
        self.tally.received_bytes[agent] += self._more("received", agent, info.bytes_received)
        self.tally.retransmits[agent] += self._more("retransmits", agent, info.retransmits)

    def times(self, algorithm: str, found: native.NetTime | native.BoardTime) -> None:
        """A stage of an algorithm's rounds took so long so often."""
        where = (algorithm, found.stage)
        key = " ".join(where)
        self.tally.stage_ns[where] += self._more("stage ns", key, found.sum_ns)
        for bucket, count in enumerate(found.counts):
            if count:
                self.tally.stages[algorithm, found.stage, bucket] += self._more(key, str(bucket), count)

    def _more(self, kind: str, key: str, count: int) -> int:
        before = self.counted.get((kind, key), 0)
        self.counted[kind, key] = count
        return count - before


class BoardView:
    """What is on the board now; ``board`` is None while there is none, ``plane`` while it is for this host alone."""

    def __init__(self) -> None:
        self.board: native.Board | None = None
        self.arenas: Sequence[int] = ()
        self.plane: Plane | None = None
        self.books = Books(Tally())

    def show(self, board: native.Board, arenas: Sequence[int], books: Books) -> None:
        """There is a board."""
        self.board, self.arenas, self.books = board, arenas, books

    def hide(self) -> None:
        """There is none any more."""
        self.board, self.arenas, self.plane = None, (), None

    def net(self) -> native.NetInfo | None:
        """What the net says of itself, which the books take over; None without a net, or when it is too busy."""
        info = self.plane.stat() if self.plane is not None else None
        if info is not None and self.plane is not None:
            self.books.net(info)
            for agent, stat in self.plane.neighbours():
                self.books.neighbour(agent, stat)
            for times in self.plane.times():
                self.books.times(times.algorithm, times)
        return info

    def times(self) -> None:
        """The books take over how long rounds on this host took."""
        for times in self.board.times() if self.board is not None else ():
            self.books.times(LOCAL, times)

    def rounds(self) -> list[native.RoundInfo]:
        """Open ones, oldest first; of very many, some."""
        return self.board.scan(_MOST_ROUNDS) if self.board is not None else []

    def ranks(self) -> list[native.RankInfo]:
        """What local ranks have published, by local index."""
        board = self.board
        return [board.rank_info(index) for index in range(board.local_size)] if board is not None else []

    def board_bytes(self) -> int:
        """Memory of the board, where it was touched."""
        return _touched_bytes(self.board.fd) if self.board is not None else 0

    def arena_bytes(self) -> list[int]:
        """Memory of each local rank's arena, where it was touched."""
        return [_touched_bytes(descriptor) for descriptor in self.arenas]


def _touched_bytes(descriptor: int) -> int:
    return os.fstat(descriptor).st_blocks * _BLOCK_BYTES
