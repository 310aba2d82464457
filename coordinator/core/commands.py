"""What the coordinator wants done.  Bodies of Send are named and built like the messages of control.proto."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from horovod.coordinator.core.config import Config
from horovod.coordinator.core.values import Error, ProcessSet, RankPlace, RankRequest, Signature


@dataclass(frozen=True, slots=True)
class Registered:
    """The agent belongs to the cluster."""

    incarnation: int


@dataclass(frozen=True, slots=True)
class StartRanks:
    """Start those of these ranks that are yours; what follows ``guests`` is for a coordinator that is started later.

    ``guests``: there is no command, these waiting processes get the places, one each; ``id`` then ends with a number of this job.
    """

    command: tuple[str, ...]
    environment: Mapping[str, str]
    directory: str
    size: int
    places: tuple[RankPlace, ...]
    job: int
    guests: tuple[int, ...] = ()
    id: str = ""
    started: int = 0
    launcher: str = ""
    limits: Config = field(default_factory=Config)


@dataclass(frozen=True, slots=True)
class StopRanks:
    """End every rank: SIGTERM, after the grace SIGKILL."""

    reason: str
    grace_s: float


@dataclass(frozen=True, slots=True)
class Host:
    """An agent as the others reach its data plane."""

    agent: str
    host: str
    addresses: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class EpochStart:
    """All ranks have met; ``key`` proves to other agents of the ring who one is."""

    places: tuple[RankPlace, ...]
    process_sets: tuple[ProcessSet, ...]
    ring: tuple[Host, ...] = ()
    key: bytes = b""


@dataclass(frozen=True, slots=True)
class RankRejected:
    """This rank can't take part."""

    rank: int
    reason: str
    retry: bool = False


@dataclass(frozen=True, slots=True)
class PlanMade:
    """All ranks of the signature's process set agree: these requests run on this plan."""

    plan: int
    signature: Signature
    requests: tuple[RankRequest, ...]


@dataclass(frozen=True, slots=True)
class Refusal:
    """These requests can't be carried out; ``id`` where other ranks hear the same at their next use of the name."""

    requests: tuple[RankRequest, ...]
    error: Error
    id: int = 0


@dataclass(frozen=True, slots=True)
class Hold:
    """Mark the plan, then say who had arrived."""

    plan: int


@dataclass(frozen=True, slots=True)
class RetirePlan:
    """Rounds below the limit still run; then the plan is over."""

    plan: int
    limit: int


@dataclass(frozen=True, slots=True)
class JoinedRanks:
    """Ranks of the agent that have joined and are not released; ``anybody``: whether there are such ranks anywhere.

    ``extended``: they take part in every collective, with nothing; else in allreduces, with zeros.
    """

    ranks: tuple[int, ...]
    anybody: bool = True
    extended: bool = False


@dataclass(frozen=True, slots=True)
class AllJoined:
    """Everybody has joined, or zeros have stopped everywhere: answer with JoinQuiet when nothing is open."""


@dataclass(frozen=True, slots=True)
class JoinDone:
    """Join returns."""

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
    """What the agent's waiting processes wait for."""

    text: str


@dataclass(frozen=True, slots=True)
class GuestRejected:
    """This waiting process gets no rank."""

    guest: int
    reason: str


@dataclass(frozen=True, slots=True)
class MeasureRoundTrips:
    """Say how far these are, when you know it."""

    peers: tuple[Host, ...]


Body = (
    Registered
    | StartRanks
    | StopRanks
    | EpochStart
    | RankRejected
    | PlanMade
    | Refusal
    | Hold
    | RetirePlan
    | JoinedRanks
    | AllJoined
    | JoinDone
    | SetAdded
    | SetRemoved
    | EndEpoch
    | Warn
    | JobFinished
    | Gathering
    | GuestRejected
    | MeasureRoundTrips
)


@dataclass(frozen=True, slots=True)
class Send:
    """A message to an agent; ``cause`` is the number of the event that led to it."""

    agent: str
    epoch: int
    body: Body
    cause: int = 0


@dataclass(frozen=True, slots=True)
class JobEnded:
    """The job is over; ``failure`` is None when every rank exited with 0."""

    code: int
    text: str
    rank: int = -1
    host: str = ""
    pid: int = 0
    signal: int = 0
    last_lines: str = ""
    cause: int = 0


@dataclass(frozen=True, slots=True)
class JobAdopted:
    """A job of an earlier coordinator goes on here; ``agents`` still have output of it.  Without an ``id`` it has no launcher."""

    id: str
    job: int
    size: int
    command: tuple[str, ...]
    launcher: str
    agents: tuple[str, ...]
    cause: int = 0


@dataclass(frozen=True, slots=True)
class JobFormed:
    """A job of processes that others have started begins."""

    places: tuple[RankPlace, ...]
    cause: int = 0


@dataclass(frozen=True, slots=True)
class GatheringSeen:
    """For the launcher that has opened the gathering: who is there."""

    text: str
    cause: int = 0


@dataclass(frozen=True, slots=True)
class Cast:
    """One message to many agents.  ``answers``: each one's own requests, which stand in its copy of the body."""

    agents: tuple[str, ...]
    epoch: int
    body: Body
    answers: Mapping[str, tuple[RankRequest, ...]] | None = None
    cause: int = 0

    def sends(self) -> Iterator[Send]:
        """What each agent gets."""
        for agent in self.agents:
            yield Send(agent, self.epoch, self.body_for(agent), self.cause)

    def body_for(self, agent: str) -> Body:
        """With the agent's own requests."""
        if self.answers is None:
            return self.body
        assert isinstance(self.body, (PlanMade, Refusal, JoinDone, SetAdded, SetRemoved))
        return replace(self.body, requests=self.answers.get(agent, ()))


Command = Send | Cast | JobEnded | JobAdopted | JobFormed | GatheringSeen


def sends(commands: Iterable[Command]) -> Iterator[Send]:
    """All messages to agents, one by one."""
    for command in commands:
        if isinstance(command, Send):
            yield command
        elif isinstance(command, Cast):
            yield from command.sends()


@dataclass(slots=True)
class Outbox:
    """Collects the commands of one event."""

    cause: int = 0
    epoch: int = 0
    commands: list[Command] = field(default_factory=list)

    def send(self, agent: str, body: Body) -> None:
        """To one agent."""
        self.commands.append(Send(agent, self.epoch, body, self.cause))

    def cast(
        self, agents: tuple[str, ...], body: Body, answers: Mapping[str, tuple[RankRequest, ...]] | None = None
    ) -> None:
        """The same to all of these."""
        if not agents:
            return
        self.commands.append(Cast(agents, self.epoch, body, answers, self.cause))


def by_agent(requests: Mapping[int, int], agent_of: Mapping[int, str]) -> dict[str, tuple[RankRequest, ...]]:
    """Requests (rank -> request) as the answers of a Cast, those of an agent by rank."""
    found: dict[str, tuple[RankRequest, ...]] = {}
    for rank, request in sorted(requests.items()):
        agent = agent_of[rank]
        found[agent] = (*found.get(agent, ()), RankRequest(rank, request))
    return found
