"""Values that events and commands are made of; field names are those of worker.proto and control.proto."""

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
    """Whose fault a refusal is, which decides the exception that the user sees."""

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
class Guest:
    """A process that others have started and that waits for a rank; ``rank`` and ``size`` as it was told, -1 and 0: any."""

    id: int
    pid: int = 0
    rank: int = -1
    size: int = 0


@dataclass(frozen=True, slots=True)
class ProcessSet:
    """A set of ranks; id 0 is the global one."""

    id: int
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Signature:
    """What a collective is; equal for all members or refused.  Sizes that may differ stand as -1."""

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

    @property
    def key(self) -> tuple[int, str]:
        """Announcements are matched by process set and name."""
        return self.process_set, self.name


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


@dataclass(frozen=True, slots=True)
class RoundTrip:
    """How long a word to an agent and its answer take."""

    agent: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Announcement:
    """A signature without a plan; contested_plan is the live plan of that name with another signature.

    With ``no_room_bytes`` the rank can't take part: it has no shared memory for so much.  With ``input_gone`` neither: its
    input lay there, and a round that came to nothing has written over it.
    """

    rank: int
    request: int
    signature: Signature
    contested_plan: int = 0
    contested_round: int = 0
    no_room_bytes: int = 0
    input_gone: bool = False


@dataclass(frozen=True, slots=True)
class RankCount:
    """Rounds in which a rank has arrived."""

    rank: int
    count: int


@dataclass(frozen=True, slots=True)
class OpenRound:
    """A round that has waited for a while, as one agent sees it; with ``travels`` data still come in there."""

    plan: int
    round: int
    age_s: float
    missing: tuple[int, ...] = ()
    holders: tuple[int, ...] = ()
    travels: bool = False


@dataclass(frozen=True, slots=True)
class RankState:
    """What a rank does; blocked counts its threads that wait."""

    rank: int
    submits: int
    blocked: int
    blocked_request: int
    blocked_s: float
    process_state: str = "running"


@dataclass(frozen=True, slots=True)
class BlockedOn:
    """What the longest-waiting thread of a rank waits for.

    An operation (plan 0 while it is not negotiated), or with ``call`` the answer to this request: join, or a call that
    adds or removes a process set.
    """

    rank: int
    plan: int
    round: int
    name: str
    call: int = 0
