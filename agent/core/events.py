"""What the agent core is told, and what it wants done.  The outcome of a board command is told before anything else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from horovod.agent.core import values as v

# ---- events ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FromRank:
    """A message on a connection."""

    connection: int
    body: v.WorkerBody


@dataclass(frozen=True, slots=True)
class ConnectionClosed:
    """A connection is over."""

    connection: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class FromCoordinator:
    """An order."""

    epoch: int
    body: object


@dataclass(frozen=True, slots=True)
class ProcessStarted:
    """A rank's process runs."""

    rank: int
    pid: int


@dataclass(frozen=True, slots=True)
class ProcessEnded:
    """A rank's process has ended; ``last_lines`` are the end of its stderr."""

    rank: int
    code: int
    signal: int = 0
    start_error: str = ""
    last_lines: str = ""


@dataclass(frozen=True, slots=True)
class PlanPlaced:
    """Outcome of PlanAdd."""

    plan: int
    offset: int


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Outcome of PlanLimit with ``read``: rounds by local index."""

    plan: int
    counts: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class PlanRemoved:
    """Outcome of PlanRemove; not ``done`` while a claim refers to the block."""

    plan: int
    done: bool


@dataclass(frozen=True, slots=True)
class Swept:
    """Outcome of Sweep: plans that ran with zeros, and whether nothing is open."""

    plans: tuple[int, ...]
    quiet: bool


@dataclass(frozen=True, slots=True)
class SeenRound:
    """An open round of the board: local indices that are missing or hold a claim."""

    plan: int
    round: int
    age_s: float
    missing: tuple[int, ...]
    holders: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SeenRank:
    """What a local rank has published: ``tag`` is a plan id or a request."""

    local_index: int
    submits: int
    blocked: int
    tag: int
    blocked_s: float
    process_state: str


@dataclass(frozen=True, slots=True)
class Seen:
    """Outcome of Look; ``moved`` says whether data have come from other hosts since the last one, more than signs of life."""

    rounds: tuple[SeenRound, ...]
    ranks: tuple[SeenRank, ...]
    plans_used: tuple[int, ...] = ()
    moved: bool = False


@dataclass(frozen=True, slots=True)
class PlaneReady:
    """Outcome of PlaneOpen: every other agent is connected."""

    epoch: int


@dataclass(frozen=True, slots=True)
class PlaneLost:
    """The plane can't be opened, or can't go on: ``host`` is the place of the other agent in the ring."""

    epoch: int
    host: int
    text: str


@dataclass(frozen=True, slots=True)
class PlaneAborted:
    """Another agent has ended the epoch on its side and said why; the coordinator's word is on its way, as a rule."""

    epoch: int
    host: int
    text: str


@dataclass(frozen=True, slots=True)
class Wanted:
    """Another host has data for a round in which nobody here has arrived."""

    plan: int
    round: int


@dataclass(frozen=True, slots=True)
class Bell:
    """A rank has arrived while somebody is joined, or a SweepSoon is due."""


@dataclass(frozen=True, slots=True)
class Abandoned:
    """The coordinator is gone for good, or this agent ends: of processes that others have started."""

    reason: str


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed (about every half second)."""


Event = (
    FromRank
    | ConnectionClosed
    | FromCoordinator
    | ProcessStarted
    | ProcessEnded
    | PlanPlaced
    | Arrivals
    | PlanRemoved
    | Swept
    | Seen
    | PlaneReady
    | PlaneLost
    | PlaneAborted
    | Wanted
    | Bell
    | Abandoned
    | Tick
)

# ---- commands -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ToRank:
    """A message on a connection; a Welcome takes the board and all local arenas along."""

    connection: int
    body: v.AgentBody


@dataclass(frozen=True, slots=True)
class ToCoordinator:
    """A report."""

    epoch: int
    body: object


@dataclass(frozen=True, slots=True)
class CloseConnection:
    """Ends a connection."""

    connection: int
    reason: str


@dataclass(frozen=True, slots=True)
class BoardCreate:
    """A board for these connections, by local index; their arenas came with their Hellos.

    ``shared``: other agents take part, so the board gets an arena for what comes from them.
    """

    epoch: int
    connections: tuple[int, ...]
    shared: bool = False


@dataclass(frozen=True, slots=True)
class PlaneOpen:
    """Connects this agent, at ``place`` in the ring, with all others; answered with PlaneReady or PlaneLost."""

    epoch: int
    ring: tuple[v.Host, ...]
    place: int
    key: bytes


@dataclass(frozen=True, slots=True)
class BoardClose:
    """Nobody uses the board any more."""


@dataclass(frozen=True, slots=True)
class RemotePart:
    """Members of a plan on other hosts: its hosts in ring order and, for pulls, the host of each member."""

    ring: tuple[int, ...]
    member_hosts: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class PlanAdd:
    """Makes a plan's block; answered with PlanPlaced.  Fields as in hvd_plan_spec.

    Members on other hosts, which only pulls list, stand as the number of local ranks.  ``collective`` and ``payload`` (bytes of
    a member, 0: told in each round) are for those who count.
    """

    plan: int
    kind: int
    dtype: int
    op: int
    prescale: float
    postscale: float
    nbytes: int
    depth: int
    members: tuple[int, ...]
    remote: RemotePart | None = None
    collective: str = ""
    payload: int = 0


@dataclass(frozen=True, slots=True)
class PlanLimit:
    """Stores the limit; with ``read`` then reads the arrivals, answered with Arrivals."""

    plan: int
    limit: int
    read: bool


@dataclass(frozen=True, slots=True)
class PlanRemove:
    """Frees the block; answered with PlanRemoved."""

    plan: int


@dataclass(frozen=True, slots=True)
class BoardFail:
    """Ends the epoch on the board; ``closed`` lets rounds finish in which all have arrived."""

    closed: bool
    text: str


@dataclass(frozen=True, slots=True)
class RankDead:
    """The process of this local rank is gone."""

    local_index: int


@dataclass(frozen=True, slots=True)
class Sweep:
    """Arrives with zeros for the joined local indices in these plans; answered with Swept.

    ``due``: (plan, local index, rounds): that rank was told to run so many rounds itself.  Before it has arrived in them
    it gets no zeros there, and nothing counts as quiet.  ``absent``: they take part with nothing instead of zeros.
    ``left``: (plan, limit): nobody here waits in it any more; what others have for rounds from the limit on opens nothing.
    """

    plans: tuple[int, ...]
    joined: tuple[int, ...]
    due: tuple[tuple[int, int, int], ...] = ()
    absent: bool = False
    left: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class SweepSoon:
    """Answered with a Bell, one for all that come before it: a sweep looks at every plan."""


@dataclass(frozen=True, slots=True)
class WatchArrivals:
    """Whether arrivals ring."""

    on: bool


@dataclass(frozen=True, slots=True)
class Look:
    """Scans the board; answered with Seen."""


@dataclass(frozen=True, slots=True)
class StartProcess:
    """Starts a rank."""

    rank: int
    command: tuple[str, ...]
    environment: Mapping[str, str]
    directory: str


@dataclass(frozen=True, slots=True)
class EndProcess:
    """Ends a rank's tree: SIGTERM, after the grace SIGKILL; at once with ``kill``."""

    rank: int
    kill: bool = False


@dataclass(frozen=True, slots=True)
class EndGuest:
    """Kills a process that others have started: it holds a claim in an epoch that is over."""

    connection: int


@dataclass(frozen=True, slots=True)
class Show:
    """A text for a person."""

    text: str


@dataclass(frozen=True, slots=True)
class JobOver:
    """The coordinator says that every rank of the job is gone."""

    code: int
    text: str


Command = (
    ToRank
    | ToCoordinator
    | CloseConnection
    | BoardCreate
    | BoardClose
    | PlaneOpen
    | PlanAdd
    | PlanLimit
    | PlanRemove
    | BoardFail
    | RankDead
    | Sweep
    | SweepSoon
    | WatchArrivals
    | Look
    | StartProcess
    | EndProcess
    | EndGuest
    | Show
    | JobOver
)
