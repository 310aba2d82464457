"""An agent core on its own: the test plays ranks, board and coordinator."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

from horovod.agent.core import AgentCore, AgentInfo
from horovod.agent.core import events as ev
from horovod.agent.core import values as v

T = TypeVar("T")
SUM = v.Signature(v.Kind.ALLREDUCE, "allreduce.x", shapes=((3,),))
UNNAMED = v.Signature(v.Kind.ALLREDUCE, "allreduce.noname.1", unnamed=True, shapes=((3,),))


def places(*agents: str) -> tuple[v.RankPlace, ...]:
    """One rank for each letter, on the agent of that name."""
    return tuple(
        v.RankPlace(rank, name, f"host-{name}", agents[:rank].count(name), agents.count(name), 0, len(set(agents)))
        for rank, name in enumerate(agents)
    )


def ring(*agents: str) -> tuple[v.Host, ...]:
    """Their hosts in alphabetical order."""
    return tuple(v.Host(name, f"host-{name}", (f"{name}:7000",)) for name in sorted(set(agents)))


@dataclass
class World:
    """Connection ``10 + rank`` is that rank's.  Commands since the last look are in ``out``."""

    agents: tuple[str, ...] = ("a", "a")
    core: AgentCore = field(default_factory=lambda: AgentCore(AgentInfo("a", "host-a", 2, "unix:@a", "secret")))
    out: list[ev.Command] = field(default_factory=list)
    arrivals: dict[int, int] = field(default_factory=dict)
    removable: bool = True
    connects: bool = True
    seen: ev.Seen = field(default_factory=lambda: ev.Seen((), ()))
    swept: ev.Swept = field(default_factory=lambda: ev.Swept((), True))
    now: float = 0.0

    def tell(self, event: ev.Event) -> list[ev.Command]:
        """Handles an event, answers board commands; returns all commands of this turn."""
        start = len(self.out)
        commands = self.core.handle(event, self.now)
        self.out += commands
        for command in commands:
            outcome = self._outcome(command)
            if outcome is not None:
                self.tell(outcome)
        self.core.check_invariants()
        return self.out[start:]

    def _outcome(self, command: ev.Command) -> ev.Event | None:
        if isinstance(command, ev.PlaneOpen):
            return ev.PlaneReady(command.epoch) if self.connects else None
        if isinstance(command, ev.PlanAdd):
            return ev.PlanPlaced(command.plan, 64 * command.plan)
        if isinstance(command, ev.PlanLimit) and command.read:
            return ev.Arrivals(command.plan, self.arrivals)
        if isinstance(command, ev.PlanRemove):
            return ev.PlanRemoved(command.plan, self.removable)
        if isinstance(command, ev.Sweep):
            return self.swept
        if isinstance(command, ev.SweepSoon):
            return ev.Bell()
        return self.seen if isinstance(command, ev.Look) else None

    # ---- the story so far

    def order(self, body: object, epoch: int = 1) -> list[ev.Command]:
        """The coordinator speaks."""
        return self.tell(ev.FromCoordinator(epoch, body))

    def rank(self, rank: int, body: v.WorkerBody) -> list[ev.Command]:
        """A rank speaks."""
        return self.tell(ev.FromRank(10 + rank, body))

    def start(self) -> list[ev.Command]:
        """The processes run."""
        mine = tuple(place for place in places(*self.agents) if place.agent == "a")
        commands = self.order(
            v.StartRanks(("python", "train.py"), {"PATH": "/bin"}, "/home", len(self.agents), mine), 0
        )
        for place in mine:
            self.tell(ev.ProcessStarted(place.rank, 100 + place.rank))
        return commands

    def hello(self, rank: int, **other: object) -> v.Hello:
        """What the rank's process says first."""
        fields: dict[str, object] = {
            "protocol": 1,
            "nonce": self.core.slots[rank].nonce,
            "rank": rank,
            "pid": 100 + rank,
        }
        return v.Hello(**{**fields, "generation": 1, **other})  # type: ignore[arg-type]

    def begin(self, epoch: int = 1) -> list[ev.Command]:
        """Everybody is in the epoch."""
        if not self.core.slots:
            self.start()
        for rank in self.core.slots:
            self.rank(rank, self.hello(rank, generation=epoch))
        everybody = v.ProcessSet(0, tuple(range(len(self.agents))))
        return self.order(v.EpochStart(places(*self.agents), (everybody,), ring(*self.agents), b"key"), epoch)

    def plan(
        self, plan: int = 7, signature: v.Signature = SUM, requests: tuple[tuple[int, int], ...] = ((0, 1), (1, 1))
    ) -> list[ev.Command]:
        """The coordinator has made a plan."""
        return self.order(v.PlanMade(plan, signature, tuple(v.RankRequest(*item) for item in requests)))


def of(commands: list[ev.Command], kind: type[T]) -> list[T]:
    """The commands of one kind."""
    return [command for command in commands if isinstance(command, kind)]


def to_rank(commands: list[ev.Command], kind: type[T]) -> dict[int, T]:
    """Messages of one kind by rank."""
    return {c.connection - 10: c.body for c in of(commands, ev.ToRank) if isinstance(c.body, kind)}


def reports(commands: list[ev.Command], kind: type[T]) -> list[T]:
    """Reports of one kind."""
    return [c.body for c in of(commands, ev.ToCoordinator) if isinstance(c.body, kind)]
