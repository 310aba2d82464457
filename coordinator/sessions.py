"""The streams of agents: frames in and out; what a session is, is decided in core/sessions.py."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import grpc
from horovod.coordinator.core.sessions import Hello, Refusal, SessionBook, Welcome
from horovod.coordinator.wire import orders_frame
from horovod.proto import control_pb2
from horovod.proto.link import LinkError
from horovod.proto.pump import Pump

__all__ = ["AgentStreams", "Agents", "first_frame", "until_one_ends"]

log = logging.getLogger("horovod.coordinator")

_FIRST_FRAME_S = 10.0
_HEARTBEAT_S = 1.0
_HEARTBEATS = 4  # at least so many in the time-out
_MOST_KEPT_BYTES = 64 << 20
_FRAME_BYTES = 1 << 20  # orders of one turn fill so much of a frame; a single one may be larger


class Agents(Protocol):
    """Who listens to agents.  ``reported`` raises KeyError or ValueError for a report that makes no sense."""

    def came(self, register: control_pb2.Register) -> None: ...

    def reported(self, agent: str, report: control_pb2.AgentReport) -> None: ...

    def lost(self, agent: str, reason: str, leaving: bool) -> None: ...


@dataclass(slots=True)
class _Agent:
    """What outlives the streams of a session; ``refusal`` is the last word to an agent that is cut off."""

    name: str
    instance: str
    pump: Pump[bytes] = field(default_factory=Pump)  # pieces of Orders, as many as one frame holds
    items: list[bytes] = field(default_factory=list)  # those of this turn of the loop
    refusal: str = ""


class AgentStreams:
    """All agents that have a session.  Not thread-safe: it belongs to the running loop."""

    def __init__(self, book: SessionBook, agents: Agents, clock: Callable[[], float]) -> None:
        self._book, self._agents, self._clock = book, agents, clock
        self._sessions: dict[str, _Agent] = {}
        self._unsent: list[_Agent] = []
        self._streams = 0
        self._heartbeat_s = min(_HEARTBEAT_S, book.peer_timeout_s / _HEARTBEATS)
        self.reconnects = 0  # sessions that went on over another stream

    @property
    def incarnation(self) -> int:
        """Of this coordinator, as agents know it."""
        return self._book.incarnation

    def instance(self, name: str) -> str:
        """The start of the agent that has the session, empty without one."""
        agent = self._sessions.get(name)
        return agent.instance if agent is not None else ""

    def silence(self) -> dict[str, float]:
        """Seconds since each agent was heard."""
        now = self._clock()
        return {name: now - session.heard_at for name, session in self._book.sessions.items()}

    def send(self, name: str, item: bytes) -> None:
        """An order (wire.order_item); those of one turn of the loop travel together.  An agent that takes none is cut off."""
        agent = self._sessions.get(name)
        if agent is None:
            return
        if not agent.items:
            if not self._unsent:
                asyncio.get_running_loop().call_soon(self._flush)
            self._unsent.append(agent)
        agent.items.append(item)

    def _flush(self) -> None:
        agents, self._unsent = self._unsent, []
        for agent in agents:
            for items in _frames(agent.items):
                agent.pump.push(items, len(items))
            agent.items = []
            if agent.pump.link.kept_bytes > _MOST_KEPT_BYTES:
                self._cut_off(agent, "it takes no orders any more")

    def tick(self) -> None:
        """Several times a second: agents that were silent for too long are lost."""
        for name, reason in self._book.overdue(self._clock()):
            self._forget(name)
            self._agents.lost(name, reason, False)

    def close(self) -> None:
        """Ends all streams."""
        for name in list(self._sessions):
            self._forget(name)

    def _forget(self, name: str) -> None:
        agent = self._sessions.pop(name, None)
        if agent is not None:
            agent.pump.stop()

    def _cut_off(self, agent: _Agent, reason: str) -> None:
        """The agent does what no agent does: it counts as lost, and is told why."""
        if self._sessions.get(agent.name) is not agent:
            return
        log.warning("Agent %s is cut off: %s.", agent.name, reason)
        agent.refusal = f"The coordinator has ended the session: {reason}."
        self._book.sessions.pop(agent.name, None)
        self._forget(agent.name)
        self._agents.lost(agent.name, reason, False)

    # ---- streams

    async def serve(self, context: Any) -> None:
        """One stream of one agent, to its end."""
        frame = await first_frame(context)
        if frame is None or frame.WhichOneof("body") != "hello":
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "An agent's first frame is a SessionHello.")
            return
        self._streams += 1
        stream = self._streams
        answer = self._book.hello(_hello(frame.hello), stream, self._clock())
        if isinstance(answer, Refusal):
            log.warning("Refused an agent: %s", answer.text)
            await context.write(_refused(answer.text))
            return
        agent = self._session(frame.hello, answer)
        try:
            await self._serve_session(context, agent, stream, answer)
        finally:
            self._book.broken(agent.name, stream)

    def _session(self, hello: control_pb2.SessionHello, answer: Welcome) -> _Agent:
        """The session that goes on, or a new one."""
        name = hello.register.agent
        if answer.resumed:
            agent = self._sessions[name]
            agent.pump.stop()
            self.reconnects += 1
            try:
                agent.pump.link.resume(hello.received)
            except LinkError as error:
                self._cut_off(agent, f"it can't go on: {error}")
            return agent
        if answer.lost:
            self._forget(name)
            self._agents.lost(name, answer.lost, False)
        agent = self._sessions[name] = _Agent(name, hello.instance)
        hello.register.presents = hello.incarnation not in (0, self._book.incarnation)
        self._agents.came(hello.register)
        return agent

    async def _serve_session(self, context: Any, agent: _Agent, stream: int, answer: Welcome) -> None:
        welcome = control_pb2.SessionWelcome(
            incarnation=self._book.incarnation,
            resumed=answer.resumed,
            received=agent.pump.link.received,
            heartbeat_s=self._heartbeat_s,
            peer_timeout_s=self._book.peer_timeout_s,
        )
        if not agent.refusal:
            await context.write(control_pb2.CoordinatorFrame(welcome=welcome))
            await until_one_ends(self._write(context, agent), self._read(context, agent, stream))
        if agent.refusal:
            await context.write(_refused(agent.refusal))

    async def _write(self, context: Any, agent: _Agent) -> None:
        link = agent.pump.link

        async def send(number: int, items: bytes | None) -> None:
            if items is not None:
                await context.write(orders_frame(number, link.received, items))
            else:
                await context.write(control_pb2.CoordinatorFrame(ack=link.received, heartbeat=control_pb2.Heartbeat()))

        await agent.pump.write(send, self._heartbeat_s)

    async def _read(self, context: Any, agent: _Agent, stream: int) -> None:
        while (frame := await context.read()) is not grpc.aio.EOF:
            if not self._book.heard(agent.name, stream, self._clock()):
                return
            try:
                self._take(agent, stream, frame)
            except (LinkError, KeyError, ValueError) as error:
                self._cut_off(agent, f"it sent something that makes no sense ({error})")

    def _take(self, agent: _Agent, stream: int, frame: control_pb2.AgentFrame) -> None:
        agent.pump.link.acknowledge(frame.ack)
        if not frame.seq or not agent.pump.link.accept(frame.seq):
            return
        body = frame.WhichOneof("body")
        if body == "report":
            self._agents.reported(agent.name, frame.report)
        elif body == "goodbye" and self._book.end(agent.name, stream):
            self._forget(agent.name)
            self._agents.lost(agent.name, frame.goodbye.reason or "it has taken leave", True)


async def first_frame(context: Any) -> Any:
    """What a caller says first; None when it says nothing in time."""
    try:
        frame = await asyncio.wait_for(context.read(), _FIRST_FRAME_S)
    except asyncio.TimeoutError:
        return None
    return None if frame is grpc.aio.EOF else frame


async def until_one_ends(*halves: Any) -> None:
    """Runs the halves of a stream; when one ends, the others are ended.  Errors of a broken stream are its end."""
    tasks = [asyncio.ensure_future(half) for half in halves]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError, grpc.RpcError, grpc.aio.BaseError):
                await task


def _frames(items: list[bytes]) -> Iterator[bytes]:
    """As few frames as there may be."""
    start, size = 0, 0
    for at, item in enumerate(items):
        if size and size + len(item) > _FRAME_BYTES:
            yield b"".join(items[start:at])
            start, size = at, 0
        size += len(item)
    yield b"".join(items[start:]) if len(items) - start > 1 else items[start]


def _hello(hello: control_pb2.SessionHello) -> Hello:
    register = hello.register
    return Hello(
        hello.protocol,
        hello.version,
        register.agent,
        register.host,
        register.slots,
        hello.instance,
        hello.incarnation,
        register.plane,
    )


def _refused(text: str) -> control_pb2.CoordinatorFrame:
    return control_pb2.CoordinatorFrame(refused=control_pb2.SessionRefused(text=text))
