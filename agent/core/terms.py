"""Values inside the messages of worker.proto and control.proto, with the same names and fields."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class Kind(IntEnum):
    """What a collective does."""

    ALLREDUCE = 0
    ALLGATHER = 1
    BROADCAST = 2
    ALLTOALL = 3
    REDUCESCATTER = 4
    BARRIER = 5


class ErrorKind(IntEnum):
    """Which exception the user sees."""

    MISMATCH = 0
    INVALID = 1
    NOT_WHILE_JOINED = 2
    SHUT_DOWN = 3
    LOST = 4
    STALLED = 5
    NO_ROOM = 6


@dataclass(frozen=True, slots=True)
class Error:
    """A reason that a person can read."""

    kind: ErrorKind
    text: str


@dataclass(frozen=True, slots=True)
class ProcessSet:
    """A set of ranks."""

    id: int
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Signature:
    """What a collective is."""

    kind: Kind
    name: str
    unnamed: bool = False
    dtype: int = 7
    shapes: tuple[tuple[int, ...], ...] = ()
    tensor_names: tuple[str, ...] = ()
    op: int = 1
    prescale: float = 1.0
    postscale: float = 1.0
    root: int = -1
    process_set: int = 0
    device: int = 0


@dataclass(frozen=True, slots=True)
class RankPlace:
    """Where a rank lives."""

    rank: int
    agent: str
    host: str
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int


@dataclass(frozen=True, slots=True)
class RankRequest:
    """A rank's own number for one of its operations."""

    rank: int
    request: int
