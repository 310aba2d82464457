"""What ranks and their agent say to each other: the messages of worker.proto as dataclasses."""

from __future__ import annotations

from dataclasses import dataclass

from horovod.agent.core.terms import Error, ProcessSet, Signature

# ---- from a rank ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Hello:
    """init: ``descriptors`` says whether pidfd and arena came along.

    Without a nonce, ``rank`` and ``size`` are what the process was told: -1 and 0 where it was not.
    """

    protocol: int
    nonce: str
    rank: int
    pid: int
    generation: int
    arena_bytes: int = 0
    process_sets: tuple[ProcessSet, ...] = ()
    dynamic_process_sets: bool = False
    descriptors: bool = True
    size: int = 0
    extended_join: bool = False


@dataclass(frozen=True, slots=True)
class Announce:
    """A signature without a plan."""

    request: int
    signature: Signature
    contested_plan: int = 0
    contested_round: int = 0
    no_room_bytes: int = 0
    input_gone: bool = False


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
    """The rank has closed its engine; ``reason`` where an exception ended its program, ``finished`` where it is at its end."""

    generation: int
    reason: str = ""
    finished: bool = False


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


@dataclass(frozen=True, slots=True)
class Waiting:
    """What a process waits for that waits for a rank."""

    text: str


@dataclass(frozen=True, slots=True)
class Warning:
    """For a person to read."""

    text: str


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
    | Waiting
    | Warning
)
