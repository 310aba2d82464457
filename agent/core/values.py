"""Messages of worker.proto and control.proto as dataclasses of the same names and fields, and values inside them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
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


# ---- from a rank ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Hello:
    """init: ``descriptors`` says whether pidfd and arena came along."""

    protocol: int
    nonce: str
    rank: int
    pid: int
    generation: int
    arena_bytes: int = 0
    process_sets: tuple[ProcessSet, ...] = ()
    dynamic_process_sets: bool = False
    descriptors: bool = True


@dataclass(frozen=True, slots=True)
class Announce:
    """A signature without a plan."""

    request: int
    signature: Signature
    contested_plan: int = 0
    contested_round: int = 0
    no_room_bytes: int = 0


@dataclass(frozen=True, slots=True)
class RetireAck:
    """Nothing of the rank refers to these plans."""

    plans: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Join:
    """The rank has run out of data."""

    request: int


@dataclass(frozen=True, slots=True)
class AddProcessSet:
    """The rank adds a process set."""

    request: int
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RemoveProcessSet:
    """The rank removes a process set."""

    request: int
    id: int


@dataclass(frozen=True, slots=True)
class Leave:
    """The rank has closed its engine."""

    generation: int


WorkerBody = Hello | Announce | RetireAck | Join | AddProcessSet | RemoveProcessSet | Leave
WORKER_BODIES: tuple[type, ...] = (Hello, Announce, RetireAck, Join, AddProcessSet, RemoveProcessSet, Leave)


# ---- to a rank ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Welcome:
    """The epoch; the shell adds the board and all local arenas."""

    epoch: int
    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int
    homogeneous: bool
    process_sets: tuple[ProcessSet, ...]
    local_ranks: tuple[int, ...]
    hosts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Rejected:
    """This process can't take part."""

    reason: str
    retry: bool = False


@dataclass(frozen=True, slots=True)
class PlanReady:
    """These requests run on this plan."""

    plan: int
    offset: int
    requests: tuple[int, ...]
    signature: Signature


@dataclass(frozen=True, slots=True)
class Refused:
    """This request can't be carried out."""

    request: int
    error: Error


@dataclass(frozen=True, slots=True)
class Retire:
    """Rounds below the limit still run."""

    plan: int
    limit: int


@dataclass(frozen=True, slots=True)
class Joined:
    """join returns."""

    request: int
    last_rank: int


@dataclass(frozen=True, slots=True)
class ProcessSetReady:
    """A process set exists."""

    request: int
    process_set: ProcessSet


@dataclass(frozen=True, slots=True)
class ProcessSetRemoved:
    """A process set exists no more."""

    request: int
    id: int


@dataclass(frozen=True, slots=True)
class EpochEnded:
    """No round will start any more."""

    epoch: int
    error: Error


@dataclass(frozen=True, slots=True)
class Closed:
    """shutdown returns."""

    generation: int


AgentBody = (
    Welcome
    | Rejected
    | PlanReady
    | Refused
    | Retire
    | Joined
    | ProcessSetReady
    | ProcessSetRemoved
    | EpochEnded
    | Closed
)


# ---- to the coordinator -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Register:
    """This agent is there."""

    agent: str
    host: str
    slots: int
    labels: Mapping[str, str] = field(default_factory=dict)
    addresses: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RankHello:
    """A rank calls init."""

    rank: int
    generation: int
    pid: int
    process_sets: tuple[ProcessSet, ...]
    dynamic_process_sets: bool


@dataclass(frozen=True, slots=True)
class Announcement:
    """A rank's Announce."""

    rank: int
    request: int
    signature: Signature
    contested_plan: int = 0
    contested_round: int = 0
    no_room_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Announcements:
    """All announcements of one turn."""

    items: tuple[Announcement, ...]


@dataclass(frozen=True, slots=True)
class RankCount:
    """Rounds in which a rank has arrived."""

    rank: int
    count: int


@dataclass(frozen=True, slots=True)
class Held:
    """The plan is marked; these are the arrivals."""

    plan: int
    arrivals: tuple[RankCount, ...]


@dataclass(frozen=True, slots=True)
class PlanRetired:
    """The plan's block is free."""

    plan: int


@dataclass(frozen=True, slots=True)
class JoinRequested:
    """A rank has run out of data."""

    rank: int
    request: int


@dataclass(frozen=True, slots=True)
class JoinQuiet:
    """No round is open; these plans ran with zeros."""

    plans: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SetAddRequested:
    """A rank adds a process set."""

    rank: int
    request: int
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SetRemoveRequested:
    """A rank removes a process set."""

    rank: int
    request: int
    id: int


@dataclass(frozen=True, slots=True)
class RankLeft:
    """A rank has called shutdown."""

    rank: int
    generation: int


@dataclass(frozen=True, slots=True)
class RankStarted:
    """A rank's process runs."""

    rank: int
    pid: int


@dataclass(frozen=True, slots=True)
class RankExited:
    """A rank's process is gone."""

    rank: int
    pid: int
    code: int
    signal: int = 0
    left: bool = True
    last_lines: str = ""
    start_error: str = ""


@dataclass(frozen=True, slots=True)
class OpenRound:
    """A round that waits."""

    plan: int
    round: int
    age_s: float
    missing: tuple[int, ...] = ()
    holders: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class RankState:
    """What a rank does."""

    rank: int
    submits: int
    blocked: int
    blocked_request: int
    blocked_s: float
    process_state: str


@dataclass(frozen=True, slots=True)
class BlockedOn:
    """What a blocked rank waits for: an operation, or the answer to ``call``."""

    rank: int
    plan: int
    round: int
    name: str
    call: int = 0


@dataclass(frozen=True, slots=True)
class Observation:
    """What waits here."""

    rounds: tuple[OpenRound, ...] = ()
    ranks: tuple[RankState, ...] = ()
    plans_used: tuple[int, ...] = ()
    blocked_on: tuple[BlockedOn, ...] = ()


@dataclass(frozen=True, slots=True)
class PeerLost:
    """The data plane can't go on with another agent's."""

    agent: str
    text: str


# ---- from the coordinator -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Registered:
    """This agent belongs to the cluster."""

    incarnation: int


@dataclass(frozen=True, slots=True)
class StartRanks:
    """Start these ranks."""

    command: tuple[str, ...]
    environment: Mapping[str, str]
    directory: str
    size: int
    places: tuple[RankPlace, ...]
    job: int = 0


@dataclass(frozen=True, slots=True)
class StopRanks:
    """End all ranks."""

    reason: str
    grace_s: float


@dataclass(frozen=True, slots=True)
class Host:
    """An agent as others reach its data plane."""

    agent: str
    host: str
    addresses: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class EpochStart:
    """All ranks have met; ``ring`` are the agents in the order of the ring."""

    places: tuple[RankPlace, ...]
    process_sets: tuple[ProcessSet, ...]
    ring: tuple[Host, ...] = ()
    key: bytes = b""


@dataclass(frozen=True, slots=True)
class RankRejected:
    """A rank can't take part."""

    rank: int
    reason: str
    retry: bool = False


@dataclass(frozen=True, slots=True)
class PlanMade:
    """The members agree."""

    plan: int
    signature: Signature
    members: tuple[int, ...]
    requests: tuple[RankRequest, ...]


@dataclass(frozen=True, slots=True)
class Refusal:
    """These requests can't be carried out."""

    requests: tuple[RankRequest, ...]
    error: Error


@dataclass(frozen=True, slots=True)
class Hold:
    """Mark the plan, then read the arrivals."""

    plan: int


@dataclass(frozen=True, slots=True)
class RetirePlan:
    """Rounds below the limit still run; then the plan is over."""

    plan: int
    limit: int


@dataclass(frozen=True, slots=True)
class JoinedRanks:
    """All ranks that have joined."""

    ranks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class AllJoined:
    """Answer with JoinQuiet when nothing is open."""


@dataclass(frozen=True, slots=True)
class JoinDone:
    """join returns."""

    last_rank: int
    requests: tuple[RankRequest, ...]


@dataclass(frozen=True, slots=True)
class SetAdded:
    """A process set exists."""

    process_set: ProcessSet
    requests: tuple[RankRequest, ...]


@dataclass(frozen=True, slots=True)
class SetRemoved:
    """A process set exists no more."""

    id: int
    requests: tuple[RankRequest, ...]


@dataclass(frozen=True, slots=True)
class EndEpoch:
    """Fail what is open."""

    error: Error


@dataclass(frozen=True, slots=True)
class Warn:
    """For a person to read."""

    text: str


@dataclass(frozen=True, slots=True)
class JobFinished:
    """Every rank is gone."""

    code: int
    text: str


ORDER_BODIES: tuple[type, ...] = (
    Registered,
    StartRanks,
    StopRanks,
    EpochStart,
    RankRejected,
    PlanMade,
    Refusal,
    Hold,
    RetirePlan,
    JoinedRanks,
    AllJoined,
    JoinDone,
    SetAdded,
    SetRemoved,
    EndEpoch,
    Warn,
    JobFinished,
)
