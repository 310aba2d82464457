"""What the coordinator is told.  Bodies of reports are named and built like the messages of control.proto."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from horovod.coordinator.core.commands import EpochStart, RetirePlan, StartRanks
from horovod.coordinator.core.config import Config
from horovod.coordinator.core.values import (
    Announcement,
    BlockedOn,
    Error,
    Guest,
    OpenRound,
    ProcessSet,
    RankCount,
    RankRequest,
    RankState,
    RoundTrip,
    Signature,
)


@dataclass(frozen=True, slots=True)
class Register:
    """An agent is there."""

    agent: str
    host: str
    slots: int
    labels: Mapping[str, str] = field(default_factory=dict)
    addresses: tuple[str, ...] = ()
    plane: str = ""
    presents: bool = False  # it had a session with an earlier coordinator: Presented follows


@dataclass(frozen=True, slots=True)
class RankHello:
    """A rank calls init."""

    rank: int
    generation: int
    pid: int = 0
    process_sets: tuple[ProcessSet, ...] = ()
    dynamic_process_sets: bool = False
    extended_join: bool = False


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


# ---- what an agent presents to a coordinator that was started anew; at most one value where a tuple stands for a field ----


@dataclass(frozen=True, slots=True)
class RankPresented:
    """A rank on this host; ``left_s`` and ``exited_s``: so long ago."""

    rank: int
    pid: int = 0
    epoch: int = 0
    hello: tuple[RankHello, ...] = ()
    left_epoch: int = 0
    left: tuple[RankLeft, ...] = ()
    left_s: float = 0.0
    exited: tuple[RankExited, ...] = ()
    exited_s: float = 0.0


@dataclass(frozen=True, slots=True)
class PlanPresented:
    """A plan; ``limit`` and ``contest`` are -1 where there is none."""

    plan: int
    signature: Signature
    members: tuple[int, ...]
    held: bool = False
    limit: int = -1
    contest: int = -1


@dataclass(frozen=True, slots=True)
class SetAnswer:
    """What all ranks were told of their n-th call that adds or removes a process set: one of the three."""

    number: int
    added: tuple[ProcessSet, ...] = ()
    removed: tuple[int, ...] = ()
    refused: tuple[Error, ...] = ()


@dataclass(frozen=True, slots=True)
class SetCallPresented:
    """A rank's n-th call, without an answer."""

    rank: int
    request: int
    number: int
    ranks: tuple[int, ...] = ()
    remove: int = -1


@dataclass(frozen=True, slots=True)
class RefusalPresented:
    """A refusal that all members of the set hear at their next use of the name; ``told`` have heard it."""

    id: int
    process_set: int
    name: str
    error: Error
    told: tuple[int, ...]
    joins_done: int = 0


@dataclass(frozen=True, slots=True)
class EpochPresented:
    """What an epoch is on this host."""

    ended: tuple[Error, ...] = ()
    plans: tuple[PlanPresented, ...] = ()
    highest_plan: int = 0
    retired: tuple[RetirePlan, ...] = ()
    announcements: tuple[Announcement, ...] = ()
    sets: tuple[ProcessSet, ...] = ()
    free_sets: tuple[int, ...] = ()
    next_set: int = 1
    set_changes: int = 0
    set_answers: tuple[SetAnswer, ...] = ()
    set_calls: tuple[SetCallPresented, ...] = ()
    set_counts: tuple[RankCount, ...] = ()
    joins: tuple[RankRequest, ...] = ()
    joins_done: int = 0
    last_joined: int = -1
    zero_plans: tuple[int, ...] = ()
    refusals: tuple[RefusalPresented, ...] = ()


@dataclass(frozen=True, slots=True)
class FinishedJob:
    """How the last job ended; ``has_output``: some of it is not confirmed."""

    id: str
    code: int
    text: str
    rank: int = -1
    host: str = ""
    pid: int = 0
    signal: int = 0
    last_lines: str = ""
    has_output: bool = False
    job: int = 0
    started: int = 0


@dataclass(frozen=True, slots=True)
class Presented:
    """All that this agent knows."""

    last_job: str = ""
    start: tuple[StartRanks, ...] = ()
    ranks: tuple[RankPresented, ...] = ()
    last_epoch: int = 0
    epoch_start: tuple[EpochStart, ...] = ()
    epoch: tuple[EpochPresented, ...] = ()
    peer_lost: tuple[PeerLost, ...] = ()
    finished: tuple[FinishedJob, ...] = ()


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
    | Presented
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
    Presented,
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
    id: str = ""
    launcher: str = ""


@dataclass(frozen=True, slots=True)
class JobAwaited:
    """The launcher of a job that this coordinator does not know has come back: its agents may follow."""


@dataclass(frozen=True, slots=True)
class GatheringOpened:
    """A launcher waits for ``size`` ranks that others start; until all of their processes are gone."""

    size: int
    limits: Config | None = None
    id: str = ""
    launcher: str = ""


@dataclass(frozen=True, slots=True)
class JobCancelled:
    """The job must end now, with this exit code (128 + signal of the launcher); ``at_once``: without grace."""

    code: int
    reason: str
    at_once: bool = False


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


Event = Report | AgentLost | JobSubmitted | JobAwaited | GatheringOpened | JobCancelled | Tick
