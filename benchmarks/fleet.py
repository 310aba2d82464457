"""Many agents in one process, as a coordinator sees them: real calls with real frames, and nothing behind them.

An agent answers orders at once as a real one with instant ranks would: they exit when their epoch fails.  Several share a
connection, as a process may not have thousands; a real agent has its own.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import grpc
from horovod.agent.core.session import PROTOCOL
from horovod.agent.core.values import RankPlace
from horovod.proto import control_pb2
from horovod.proto.places import unpack
from horovod.proto.pump import Pump
from horovod.proto.security import Address, Security
from horovod.proto.services import OUTPUT, RUN, SESSION, open_channel, open_stream

__all__ = ["Announced", "Fleet", "FleetAgent", "Launch"]

_Frame = control_pb2.AgentFrame
_OPENING_AT_ONCE = 64
_LARGE_BYTES = 1 << 15
_NUMBERS = (0x08, 0x10)  # tags of seq and ack, which come first
Announced = list[tuple["FleetAgent", control_pb2.Announcements]]


@dataclass(slots=True)
class _Large:
    """A frame whose orders others have got too."""

    seq: int
    ack: int
    orders: control_pb2.Orders


class _Frames:
    """Reads frames.  Orders that all agents get in the same bytes are read once: many hosts would do that each for itself."""

    _read: ClassVar[dict[bytes, control_pb2.CoordinatorFrame]] = {}

    @staticmethod
    def FromString(data: bytes) -> control_pb2.CoordinatorFrame | _Large:
        """As of a message."""
        if len(data) < _LARGE_BYTES:
            return control_pb2.CoordinatorFrame.FromString(data)
        at = 0
        while data[at] in _NUMBERS:
            at += 1
            while data[at] & 0x80:
                at += 1
            at += 1
        numbers, rest = control_pb2.CoordinatorFrame.FromString(data[:at]), data[at:]
        frame = _Frames._read.get(rest)
        if frame is None:
            _Frames._read.clear()
            frame = _Frames._read[rest] = control_pb2.CoordinatorFrame.FromString(rest)
        return _Large(numbers.seq, numbers.ack, frame.orders)


_SESSION = replace(SESSION, reply=_Frames)  # type: ignore[arg-type]


@dataclass(eq=False)
class FleetAgent:
    """``seen`` counts the orders of each kind; ``rank`` is that of its one rank, -1 without a job."""

    fleet: Fleet
    name: str
    channel: grpc.aio.Channel
    pump: Pump[_Frame] = field(default_factory=Pump)
    seen: Counter[str] = field(default_factory=Counter)
    rank: int = -1
    epoch: int = 0
    over: asyncio.Event = field(default_factory=asyncio.Event)  # the rank of the present job is gone
    lost: bool = False
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    async def connect(self) -> None:
        """Has a session when this returns."""
        call = open_stream(self.channel, _SESSION, Security())
        register = control_pb2.Register(agent=self.name, host=f"host-{self.name}", slots=1)
        hello = control_pb2.SessionHello(
            protocol=PROTOCOL, version="benchmark", register=register, instance=f"i-{self.name}"
        )
        await call.write(_Frame(hello=hello))
        welcome = await call.read()
        assert welcome.WhichOneof("body") == "welcome", welcome
        self.spawn(self._read(call))
        self.spawn(self._write(call, welcome.welcome.heartbeat_s))

    def spawn(self, work: Any) -> None:
        """A task that ends with the agent."""
        self.tasks.append(asyncio.ensure_future(work))

    async def _read(self, call: Any) -> None:
        while (frame := await call.read()) is not grpc.aio.EOF:
            self.pump.link.acknowledge(frame.ack)
            if frame.seq and self.pump.link.accept(frame.seq):
                for order in frame.orders.items:
                    self._take(order)

    async def _write(self, call: Any, heartbeat_s: float) -> None:
        async def send(number: int, kept: _Frame | None) -> None:
            frame = kept or _Frame(heartbeat=control_pb2.Heartbeat())
            frame.seq, frame.ack = number, self.pump.link.received
            await call.write(frame)

        await self.pump.write(send, heartbeat_s)

    def report(self, epoch: int = 0, **body: Any) -> None:
        """Something for the coordinator."""
        self.pump.push(_Frame(report=control_pb2.AgentReport(epoch=epoch, **body)))

    def leave(self) -> None:
        """Takes leave, as an agent that is stopped does: it ends its ranks, and tells the end of their output."""
        self.lost = True
        self.pump.push(_Frame(goodbye=control_pb2.Goodbye(reason="it was stopped")))
        self.over.set()

    def _take(self, order: control_pb2.Order) -> None:
        body = str(order.WhichOneof("body"))
        if body == "start_ranks":
            self.rank, self.over = self.fleet.ranks(order.start_ranks)[self.name], asyncio.Event()
            self.spawn(self._output(order.start_ranks.job))
            self.report(rank_started=control_pb2.RankStarted(rank=self.rank, pid=7))
            self.report(rank_hello=control_pb2.RankHello(rank=self.rank, generation=1, pid=7))
        elif body == "epoch_start":
            self.epoch = order.epoch
        elif body in ("end_epoch", "stop_ranks") and not self.lost and not self.over.is_set():
            self.report(rank_exited=control_pb2.RankExited(rank=self.rank, pid=7, code=1))
            self.over.set()
        self.seen[body] += 1
        self.fleet.saw(self, body)

    async def _output(self, job: int) -> None:
        """The stream of the job's output: nothing, then its end."""
        call = open_stream(self.channel, OUTPUT, Security())
        hello = control_pb2.OutputHello(protocol=PROTOCOL, agent=self.name, instance=f"i-{self.name}", job=job)
        await call.write(control_pb2.OutputFrame(hello=hello))
        await self.over.wait()
        await call.write(control_pb2.OutputFrame(seq=1, end=control_pb2.OutputEnd()))
        with contextlib.suppress(grpc.RpcError):
            while (word := await call.read()) is not grpc.aio.EOF and word.ack < 1:
                continue
        call.cancel()


@dataclass(eq=False)
class _Wait:
    """Everybody of ``left`` has yet to see the order for the ``count``-th time."""

    body: str
    counts: dict[FleetAgent, int]
    done: asyncio.Future[None]


class Fleet:
    """All agents; ``seen_by_all`` waits."""

    def __init__(self, address: Address, agents: int, per_channel: int) -> None:
        self.channels = [open_channel(address, Security()) for _ in range(-(-agents // per_channel))]
        self.agents = [FleetAgent(self, f"a{n:05}", self.channels[n // per_channel]) for n in range(agents)]
        self._waits: list[_Wait] = []
        self._ranks: tuple[int, dict[str, int]] = (-1, {})

    def ranks(self, start: control_pb2.StartRanks) -> dict[str, int]:
        """By agent; read once for all, as many hosts would do that each for itself."""
        if self._ranks[0] != start.job:
            self._ranks = (start.job, {place.agent: place.rank for place in unpack(RankPlace, start.places)})
        return self._ranks[1]

    async def connect(self) -> None:
        """All sessions; some at once."""
        door = asyncio.Semaphore(_OPENING_AT_ONCE)

        async def enter(agent: FleetAgent) -> None:
            async with door:
                await agent.connect()

        registered = self.seen_by_all("registered")
        await asyncio.gather(*map(enter, self.agents))
        await registered

    @property
    def here(self) -> list[FleetAgent]:
        """Those that are not lost."""
        return [agent for agent in self.agents if not agent.lost]

    def seen_by_all(self, body: str, more: int = 1) -> asyncio.Future[None]:
        """Done when everybody who is here has got so many more orders of this kind."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        counts = {agent: agent.seen[body] + more for agent in self.here}
        self._waits.append(_Wait(body, counts, done))
        return done

    def saw(self, agent: FleetAgent, body: str) -> None:
        """An agent has got an order."""
        for wait in list(self._waits):
            if wait.body == body and agent.seen[body] >= wait.counts.get(agent, 1 << 60):
                del wait.counts[agent]
                if not wait.counts:
                    self._waits.remove(wait)
                    wait.done.set_result(None)

    def announcements(self, signatures: Sequence[control_pb2.Announcement], per_frame: int) -> Announced:
        """What every rank has to say to announce these, in frames of that many; made beforehand, as making it is no load."""
        made: Announced = []
        for agent in self.here:
            for start in range(0, len(signatures), per_frame):
                message = control_pb2.Announcements(items=signatures[start : start + per_frame])
                for item in message.items:
                    item.rank = agent.rank
                made.append((agent, message))
        return made

    def announce(self, made: Announced) -> None:
        """Every agent sends its own."""
        for agent, message in made:
            agent.report(agent.epoch, announcements=message)

    async def close(self) -> None:
        """Ends all calls and connections."""
        tasks = [task for agent in self.agents for task in agent.tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await _close(self.channels)


class Launch:
    """A launcher with one job."""

    def __init__(self, address: Address, size: int) -> None:
        self._channel = open_channel(address, Security())
        self._call = open_stream(self._channel, RUN, Security())
        self._size = size
        self.said: list[str] = []

    async def submit(self) -> None:
        """The job is accepted when this returns."""
        submit = control_pb2.JobSubmit(protocol=PROTOCOL, size=self._size, command=[b"train"], launcher="benchmark")
        await self._call.write(control_pb2.JobFrame(submit=submit))
        await self._until("accepted")

    async def ended(self) -> None:
        """Every rank is gone, all output is there."""
        await self._until("ended")

    async def _until(self, body: str) -> None:
        while (update := await self._call.read()) is not grpc.aio.EOF:
            if update.agent:
                taken = control_pb2.OutputTaken(taken={update.agent: update.seq})
                await self._call.write(control_pb2.JobFrame(taken=taken))
            self.said.append(str(update.WhichOneof("body")))
            if self.said[-1] == body:
                return
            assert self.said[-1] != "refused", update.refused.text
        raise AssertionError(f"the coordinator ended the call; it said {self.said}")

    async def close(self) -> None:
        """Ends the connection."""
        self._call.cancel()
        await _close([self._channel])


async def _close(channels: Iterable[grpc.aio.Channel]) -> None:
    await asyncio.gather(*(channel.close() for channel in channels))
