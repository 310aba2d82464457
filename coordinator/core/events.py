"""What the coordinator is told.  Bodies of reports are named and built like the messages of control.proto."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from horovod.coordinator.core.config import Config
from horovod.coordinator.core.values import (
    Announcement,
    BlockedOn,
    Guest,
    OpenRound,
    ProcessSet,
    RankCount,
    RankState,
    RoundTrip,
)


@dataclass(frozen=True, slots=True)
class Register:
    """An agent is there."""

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
    pid: int = 0
    process_sets: tuple[ProcessSet, ...] = ()
    dynamic_process_sets: bool = False


@dataclass(frozen=True, slots=True)
class Announcements:
    """Signatures without a plan."""

    items: tuple[Announcement, ...]


@dataclass(frozen=True, slots=True)
class Held:
    """The plan is marked; these are the arrivals."""

    plan: int
    arrivals: tuple[RankCount, ...]


@dataclass(frozen=True, slots=True)
class PlanRetired:
    """Nobody on this agent refers to the plan."""

    plan: int


@dataclass(frozen=True, slots=True)
class JoinRequested:
    """A rank has run out of data."""

    rank: int
    request: int


@dataclass(frozen=True, slots=True)
class JoinQuiet:
    """Nothing is open on this agent any more; ``plans`` ran with zeros."""

    plans: tuple[int, ...] = ()


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
    """A rank has called shutdown, or has ended; ``reason`` where that was too early."""

    rank: int
    generation: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class RankStarted:
    """The process of a rank runs."""

    rank: int
    pid: int


@dataclass(frozen=True, slots=True)
class RankExited:
    """The process of a rank is gone; ``left``: it owed nobody anything."""

    rank: int
    pid: int
    code: int
    signal: int = 0
    left: bool = True
    last_lines: str = ""
    start_error: str = ""


@dataclass(frozen=True, slots=True)
class Observation:
    """What waits on an agent."""

    rounds: tuple[OpenRound, ...] = ()
    ranks: tuple[RankState, ...] = ()
    plans_used: tuple[int, ...] = ()
    blocked_on: tuple[BlockedOn, ...] = ()


@dataclass(frozen=True, slots=True)
class PeerLost:
    """The data plane of the reporting agent can't go on with this one's."""

    agent: str
    text: str


@dataclass(frozen=True, slots=True)
class Guests:
    """All processes that wait for a rank on the agent; ``resting``: those that were ranks and still are connected."""

    items: tuple[Guest, ...] = ()
    resting: int = 0


@dataclass(frozen=True, slots=True)
class RoundTrips:
    """What MeasureRoundTrips has found; who could not be reached is missing."""

    items: tuple[RoundTrip, ...]


Body = (
    Register
    | RankHello
    | Announcements
    | Held
    | PlanRetired
    | JoinRequested
    | JoinQuiet
    | SetAddRequested
    | SetRemoveRequested
    | RankLeft
    | RankStarted
    | RankExited
    | Observation
    | PeerLost
    | Guests
    | RoundTrips
)
BODIES: tuple[type, ...] = (
    Register,
    RankHello,
    Announcements,
    Held,
    PlanRetired,
    JoinRequested,
    JoinQuiet,
    SetAddRequested,
    SetRemoveRequested,
    RankLeft,
    RankStarted,
    RankExited,
    Observation,
    PeerLost,
    Guests,
    RoundTrips,
)


@dataclass(frozen=True, slots=True)
class Report:
    """A message of an agent; ``epoch`` is the one it speaks of, 0 when it speaks of none."""

    agent: str
    epoch: int
    body: Body


@dataclass(frozen=True, slots=True)
class AgentLost:
    """An agent is gone."""

    agent: str
    reason: str


@dataclass(frozen=True, slots=True)
class JobSubmitted:
    """Somebody wants ``size`` ranks of a command; ``limits`` are the job's own, None: those of the coordinator."""

    size: int
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    directory: str = ""
    limits: Config | None = None


@dataclass(frozen=True, slots=True)
class GatheringOpened:
    """A launcher waits for ``size`` ranks that others start; until all of their processes are gone."""

    size: int
    limits: Config | None = None


@dataclass(frozen=True, slots=True)
class JobCancelled:
    """The job must end now, with this exit code (128 + signal of the launcher); ``at_once``: without grace."""

    code: int
    reason: str
    at_once: bool = False


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


Event = Report | AgentLost | JobSubmitted | GatheringOpened | JobCancelled | Tick
