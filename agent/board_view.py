"""Looks at a board without touching it, for metrics and status: what is open, what ranks do, what memory is used.

It also keeps the books: rounds are counted from the arrivals on the board, by whoever looks at them anyway.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field

from horovod import native
from horovod.agent.core import events as ev
from horovod.agent.core.tally import Tally

__all__ = ["Account", "BoardView", "Books"]

_MOST_ROUNDS = 1024
_BLOCK_BYTES = 512  # of st_blocks, whatever the file system


@dataclass(slots=True)
class Account:
    """A plan's rounds, as far as they are counted.  Rounds at or above ``limit`` do not run."""

    collective: str
    plane: str
    payload: int
    counted: int = 0
    limit: int | None = None


def open_account(command: ev.PlanAdd) -> Account:
    """For a new plan; rounds with members on other hosts go over TCP."""
    return Account(command.collective, "local" if command.remote is None else "tcp", command.payload)


@dataclass(slots=True)
class Books:
    """Of one board: ``submits`` are those of each local rank that are counted."""

    tally: Tally
    accounts: dict[int, Account] = field(default_factory=dict)
    submits: dict[int, int] = field(default_factory=dict)

    def opened(self, command: ev.PlanAdd) -> None:
        """A plan has a block."""
        self.tally.plans += 1
        self.accounts[command.plan] = open_account(command)

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
        self.tally.submissions += submits - self.submits.get(index, 0)
        self.submits[index] = submits


class BoardView:
    """What is on the board now; ``board`` is None while there is none."""

    def __init__(self) -> None:
        self.board: native.Board | None = None
        self.arenas: Sequence[int] = ()

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
