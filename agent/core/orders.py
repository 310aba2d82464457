"""What the coordinator tells the agent: bodies of Order in control.proto as dataclasses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from horovod.agent.core.terms import Error, ProcessSet, RankPlace, RankRequest, Signature


@dataclass(frozen=True, slots=True)
class Registered:
    """This agent belongs to the cluster."""

    incarnation: int


@dataclass(frozen=True, slots=True)
class JobLimits:
    """Those of the job, as its launcher gave them."""

    stall_check_s: float = 0.0
    stall_shutdown_s: float = 0.0
    deadlock_grace_s: float = 0.0
    cache_capacity: int = 0
    start_warning_s: float = 0.0
    start_timeout_s: float = 0.0
    deterministic: bool = False


@dataclass(frozen=True, slots=True)
class StartRanks:
    """Start those of these ranks that are yours; what follows ``guests`` is kept for a coordinator that was started anew.

    ``guests``: there is no command, these waiting processes get the places.
    """

    command: tuple[str, ...]
    environment: Mapping[str, str]
    directory: str
    size: int
    places: tuple[RankPlace, ...]
    job: int = 0
    guests: tuple[int, ...] = ()
    id: str = ""
    started: int = 0
    launcher: str = ""
    limits: JobLimits = JobLimits()


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
    """All ranks of the signature's process set agree."""

    plan: int
    signature: Signature
    requests: tuple[RankRequest, ...]


@dataclass(frozen=True, slots=True)
class Refusal:
    """These requests can't be carried out."""

    requests: tuple[RankRequest, ...]
    error: Error
    id: int = 0


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
    """Ranks of this agent that have joined; ``anybody``: whether there are such ranks anywhere.

    ``extended``: they take part in every collective, with nothing; else in allreduces, with zeros.
    """

    ranks: tuple[int, ...] = ()
    anybody: bool = True
    extended: bool = False


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
    rank: int = -1
    host: str = ""
    pid: int = 0
    signal: int = 0
    last_lines: str = ""


@dataclass(frozen=True, slots=True)
class Gathering:
    """What the processes wait for that wait for a rank."""

    text: str


@dataclass(frozen=True, slots=True)
class GuestRejected:
    """This one gets no rank."""

    guest: int
    reason: str


@dataclass(frozen=True, slots=True)
class MeasureRoundTrips:
    """Say how far these are; the daemon's task, whatever the core is doing."""

    peers: tuple[Host, ...]


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
    Gathering,
    GuestRejected,
    MeasureRoundTrips,
)
