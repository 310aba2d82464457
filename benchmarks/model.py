"""The coordinator's decisions alone, with any number of agents in virtual time: messages, bytes and CPU of each kind of event.

Nothing is sent and nobody sleeps.  What is counted is exact and the same on every machine; only CPU seconds are measured.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from horovod.coordinator.core import AgentLost, Cast, Coordinator, Event, JobSubmitted, Report, Send, Tick
from horovod.coordinator.core import events as ev
from horovod.coordinator.core.sessions import PROTOCOL, Hello, SessionBook
from horovod.coordinator.core.values import Announcement, BlockedOn, Kind, OpenRound, RankState, Signature
from horovod.coordinator.wire import cast_items, order_item
from horovod.proto import control_pb2
from horovod.proto.codec import wrap

__all__ = ["Model", "Step", "model_values", "run_all"]


@dataclass(slots=True)
class Step:
    """All events of one kind: ``commands`` as the core gives them, ``orders`` and ``order_bytes`` as agents get them."""

    name: str
    events: int = 0
    commands: int = 0
    orders: int = 0
    order_bytes: int = 0
    cpu_s: float = 0.0


class Model:
    """A coordinator and ``agents`` agents with one rank each."""

    def __init__(self, agents: int) -> None:
        self.core = Coordinator()
        self.book = SessionBook(self.core.incarnation, 10.0)
        self.names = [f"a{number:05}" for number in range(agents)]
        self.now = 0.0
        self.steps: list[Step] = []

    def play(self, name: str, events: Iterable[Event]) -> Step:
        """Tells all events, and counts what they cost."""
        step = Step(name)
        for event in events:
            start = time.process_time()
            commands = self.core.handle(event, self.now)
            step.cpu_s += time.process_time() - start
            step.events += 1
            step.commands += len(commands)
            for command in commands:
                if isinstance(command, (Send, Cast)):
                    self._count(step, command)
        self.steps.append(step)
        return step

    def _count(self, step: Step, command: Send | Cast) -> None:
        if isinstance(command, Cast):
            sizes = [len(item) for _, item in cast_items(command)]
        else:
            order = control_pb2.Order(epoch=command.epoch)
            wrap(order, command.body)
            sizes = [len(order_item(order))]
        step.orders += len(sizes)
        step.order_bytes += sum(sizes)

    def of_all(self, body: object, epoch: int = 1) -> Iterable[Event]:
        """The same report of every agent; ``body`` may be a function of the rank."""
        for rank, name in enumerate(self.names):
            yield Report(name, epoch, body(rank) if callable(body) else body)  # type: ignore[arg-type]

    def begin(self) -> None:
        """All agents have come, and a job has begun."""
        self.play("agents come", self.of_all(lambda rank: ev.Register(self.names[rank], f"h{rank}", 1), 0))
        self.play("a job is submitted", [JobSubmitted(len(self.names), ("train",))])
        self.play("ranks start", self.of_all(lambda rank: ev.RankStarted(rank, 7), 0))
        self.play("the epoch begins", self.of_all(lambda rank: ev.RankHello(rank, 1, 7), 0))

    def negotiate(self, name: str, request: int) -> Step:
        """Every rank announces one tensor."""
        signature = Signature(Kind.ALLREDUCE, name, shapes=((256, 7),))
        return self.play(
            "a tensor is negotiated", self.of_all(lambda r: _announces(Announcement(r, request, signature)))
        )

    def wait_for_last(self, plan: int) -> Step:
        """All but the last rank wait for it, and say so."""
        last = len(self.names) - 1

        def seen(rank: int) -> ev.Observation:
            blocked = rank != last
            rounds = (OpenRound(plan, 3, 2.0, () if blocked else (last,)),)
            states = (RankState(rank, 9, int(blocked), 3, 2.0),)
            return ev.Observation(rounds, states, (plan,), (BlockedOn(rank, plan, 3, "x"),) * blocked)

        return self.play("ranks that wait are observed", self.of_all(seen))

    def hear_heartbeats(self) -> Step:
        """One of each agent, and the look at who was silent."""
        step = Step("heartbeats", events=len(self.names))
        for number, name in enumerate(self.names):
            hello = Hello(PROTOCOL, "x", name, f"h{number}", 1, f"i{number}", 0)
            self.book.hello(hello, number + 1, self.now)
        start = time.process_time()
        for number, name in enumerate(self.names):
            assert self.book.heard(name, number + 1, self.now)
        assert self.book.overdue(self.now) == []
        step.cpu_s = time.process_time() - start
        self.steps.append(step)
        return step

    def join_all(self) -> None:
        """Every rank runs out of data."""
        self.play("ranks join", self.of_all(lambda rank: ev.JoinRequested(rank, 1 << 20)))
        self.play("agents are quiet", self.of_all(ev.JoinQuiet()))
        self.play("join returns", self.of_all(ev.JoinQuiet()))

    def lose_one(self) -> None:
        """The last agent is lost; all ranks are stopped."""
        self.play("an agent is lost", [AgentLost(self.names.pop(), "power")])
        self.play("ranks exit", self.of_all(lambda rank: ev.RankExited(rank, 7, 143, 15), 0))


def _announces(item: Announcement) -> ev.Announcements:
    return ev.Announcements((item,))


def run_all(agents: int) -> Model:
    """Each kind of event once."""
    model = Model(agents)
    model.begin()
    model.negotiate("x", 1)
    assert model.core.epoch is not None
    model.wait_for_last(next(iter(model.core.epoch.plans.table)))
    model.play("a tick while ranks wait", [Tick()])
    model.hear_heartbeats()
    model.join_all()
    model.lose_one()
    return model


def model_values(agents: int, parts: tuple[int, ...] = (10, 1)) -> dict[str, object]:
    """A table by number of agents; ``growth`` is what the most agents cost against the fewest, each divided by its agents."""
    tables = {count: run_all(count).steps for count in (agents // part for part in parts)}
    few, many = min(tables), max(tables)
    growth: dict[str, dict[str, float]] = {}
    for before, after in zip(tables[few], tables[many], strict=True):
        pairs = {name: (getattr(before, name), getattr(after, name)) for name in ("orders", "order_bytes", "cpu_s")}
        growth[after.name] = {name: (b / many) / (a / few) for name, (a, b) in pairs.items() if a}
        cells = "  ".join(f"{name} x{factor:.2f}" for name, factor in growth[after.name].items())
        print(f"{after.name:32}{after.orders:9} orders {after.order_bytes:12} bytes {after.cpu_s:9.4f} s   {cells}")
    return {
        "agents": {str(count): [asdict(step) for step in steps] for count, steps in tables.items()},
        "growth": growth,
    }
