"""What the agent tells the coordinator: bodies of AgentReport in control.proto as dataclasses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from horovod.agent.core.terms import ProcessSet, Signature


@dataclass(frozen=True, slots=True)
class Register:
    """This agent is there."""

    agent: str
    host: str
    slots: int
    labels: Mapping[str, str] = field(default_factory=dict)
    addresses: tuple[str, ...] = ()
    presents: bool = False


@dataclass(frozen=True, slots=True)
class RankHello:
    """A rank calls init."""

    rank: int
    generation: int
    pid: int
    process_sets: tuple[ProcessSet, ...]
    dynamic_process_sets: bool
    extended_join: bool = False


@dataclass(frozen=True, slots=True)
class Announcement:
    """A rank's Announce."""

    rank: int
    request: int
    signature: Signature
    contested_plan: int = 0
    contested_round: int = 0
    no_room_bytes: int = 0
    input_gone: bool = False


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
    """A rank has called shutdown, or has ended; ``reason`` where that was too early."""

    rank: int
    generation: int
    reason: str = ""


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
    travels: bool = False


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


@dataclass(frozen=True, slots=True)
class Guest:
    """A process that others have started and that waits for a rank; ``rank`` and ``size`` as it was told, -1 and 0: any."""

    id: int
    pid: int
    rank: int
    size: int


@dataclass(frozen=True, slots=True)
class Guests:
    """All of them; ``resting``: those that were ranks and still are connected."""

    items: tuple[Guest, ...] = ()
    resting: int = 0
