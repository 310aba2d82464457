"""The agent's connection to its coordinator: dials, says who it is, carries reports and orders.

What a break, a refusal or a silence means is decided in core/session.py.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import grpc
import horovod
from horovod.agent.core import session as s
from horovod.proto import control_pb2
from horovod.proto.diagnosis import explain
from horovod.proto.link import LinkError
from horovod.proto.pump import Pump
from horovod.proto.security import Address, Security
from horovod.proto.services import SESSION, admission, open_channel, open_stream

__all__ = ["Listener", "Uplink", "UplinkOptions"]

log = logging.getLogger("horovod.agent")

_TICK_S = 0.5
_TRIES_A_DIAGNOSIS = 8
_MOST_KEPT_BYTES = 64 << 20
_JOINED_BYTES = 1 << 20  # announcements are added to a frame that is smaller
_Frame = control_pb2.AgentFrame


@dataclass(frozen=True, slots=True)
class UplinkOptions:
    """Where to, and who this agent is."""

    coordinator: Address
    security: Security
    register: control_pb2.Register
    coordinator_timeout_s: float = 300.0


class Listener(Protocol):
    """Who hears of the coordinator's words.  ``presented``: to a coordinator that was started anew.  ``refused`` ends the agent."""

    def presented(self) -> control_pb2.AgentReport: ...

    def ordered(self, order: control_pb2.Order) -> None: ...

    def abandoned(self, reason: str) -> None: ...

    def refused(self, text: str) -> None: ...


class Uplink:
    """Not thread-safe: it belongs to the running loop."""

    def __init__(self, options: UplinkOptions, listener: Listener, chance: Callable[[], float] = random.random) -> None:
        self._options, self._listener, self._chance = options, listener, chance
        self._loop = asyncio.get_running_loop()
        self.instance = secrets.token_hex(16)
        self.core = s.Uplink(coordinator_timeout_s=options.coordinator_timeout_s)
        self.sessions = 0
        self._pump: Pump[_Frame] = Pump()
        self._heartbeat_s = 1.0
        self._task: asyncio.Task[None] | None = None
        self._call: Any = None
        self._reason = ""
        self._dialling: asyncio.TimerHandle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._settled = asyncio.Event()
        self._leaving = self._closed = False

    @property
    def is_up(self) -> bool:
        """Whether there is a stream with a session."""
        return self.core.phase is s.Phase.UP

    @property
    def unconfirmed_bytes(self) -> int:
        """Reports that the coordinator may not have."""
        return self._pump.link.kept_bytes

    @property
    def incarnation(self) -> int:
        """Of the coordinator whose session this is, 0 without one."""
        return self.core.incarnation

    def start(self) -> None:
        """Dials from now on."""
        self._tick()
        self._dial()

    def report(self, report: control_pb2.AgentReport) -> None:
        """Something for the coordinator; dropped while there is no session.  Announcements that wait travel together."""
        link = self._pump.link
        last = link.last_unsent(_JOINED_BYTES)
        if last is not None and _can_join(last, report):
            last.report.announcements.items.extend(report.announcements.items)
            link.grow_last(report.ByteSize())
        else:
            self._push(_Frame(report=report))

    async def leave(self, reason: str, limit_s: float) -> None:
        """Says goodbye, if there is anybody to hear it."""
        self._push(_Frame(goodbye=control_pb2.Goodbye(reason=reason)))
        self._leaving = True
        if self.core.phase is s.Phase.UP:
            try:
                await asyncio.wait_for(self._settled.wait(), limit_s)
            except asyncio.TimeoutError:
                log.info("The coordinator did not hear the goodbye.")

    async def close(self) -> None:
        """Lets the connection go."""
        self._closed = True
        for timer in (self._timer, self._dialling):
            if timer is not None:
                timer.cancel()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _push(self, frame: _Frame) -> None:
        if not self.core.incarnation or self._closed:
            return
        self._settled.clear()
        self._pump.push(frame, frame.ByteSize())
        if self._pump.link.kept_bytes > _MOST_KEPT_BYTES:
            self._hang_up("the coordinator confirms nothing any more")

    # ---- what the core wants

    def _tick(self) -> None:
        self._timer = self._loop.call_later(_TICK_S, self._tick)
        self._tell(s.Tick())

    def _tell(self, event: s.Event) -> None:
        for command in self.core.handle(event, time.monotonic()):
            self._do(command)

    def _do(self, command: s.Command) -> None:
        if isinstance(command, s.Dial):
            self._dialling = self._loop.call_later(command.after_s, self._dial)
        elif isinstance(command, s.HangUp):
            self._hang_up(command.reason)
        elif isinstance(command, s.Begin):
            self.sessions += 1
            self._pump.stop()
            self._pump = Pump()
            if command.presents:
                log.warning("The coordinator was started anew: this agent presents itself.")
                self._push(_Frame(report=self._listener.presented()))
        elif isinstance(command, s.Abandon):
            log.warning("The session with the coordinator is over: %s.", command.reason)
            self._pump.stop()
            self._pump = Pump()
            self._listener.abandoned(command.reason)
        elif isinstance(command, s.Tell):
            log.warning(command.text)
        elif isinstance(command, s.GiveUp):
            self._listener.refused(command.text)

    def _hang_up(self, reason: str) -> None:
        self._reason = reason
        if self._call is not None:
            self._call.cancel()

    # ---- one stream

    def _dial(self) -> None:
        if self._closed or self._leaving:
            return
        self._tell(s.Dialled())
        self._reason = ""
        self._task = self._loop.create_task(self._stream())

    async def _stream(self) -> None:
        refused, reason, confused, advice = "", "", False, ""
        try:
            refused = await self._talk()
        except grpc.aio.AioRpcError as error:
            refused, reason = _meaning(error)
            if error.code() is grpc.StatusCode.UNAVAILABLE and self.core.tries % _TRIES_A_DIAGNOSIS == 0:
                advice = await explain(self._options.coordinator, self._options.security)
        except (grpc.RpcError, grpc.aio.BaseError, asyncio.InvalidStateError) as error:
            reason = str(error)
        except LinkError as error:
            reason, confused = str(error), True
        except asyncio.CancelledError:
            if self._closed:
                raise
        self._call = None
        self._settled.set()
        if self._leaving:
            return  # the coordinator ends the stream when it has heard the goodbye
        if refused:
            self._tell(s.Refused(refused, self._chance()))
        else:
            reason = advice or self._reason or reason or "it has ended the connection"
            self._tell(s.Broken(reason, self._chance(), confused, bool(advice)))

    async def _talk(self) -> str:
        """The stream to its end; the coordinator's refusal, if there was one."""
        async with open_channel(self._options.coordinator, self._options.security) as channel:
            call = self._call = open_stream(channel, SESSION, self._options.security)
            try:
                await admission(call)
                await call.write(_Frame(hello=self._hello()))
                frame = await call.read()
                if frame is grpc.aio.EOF:
                    return ""
                if frame.WhichOneof("body") != "welcome":
                    return str(frame.refused.text) or "The coordinator speaks another language."
                if not self._welcome(frame.welcome):
                    return ""
                return await self._exchange(call)
            finally:
                call.cancel()

    def _hello(self) -> control_pb2.SessionHello:
        return control_pb2.SessionHello(
            protocol=s.PROTOCOL,
            version=horovod.__version__,
            register=self._options.register,
            instance=self.instance,
            incarnation=self.core.incarnation,
            received=self._pump.link.received,
        )

    def _welcome(self, welcome: control_pb2.SessionWelcome) -> bool:
        """Whether the stream may go on."""
        self._heartbeat_s = welcome.heartbeat_s
        self._tell(s.Welcomed(welcome.incarnation, welcome.resumed, welcome.peer_timeout_s))
        if self.core.phase is not s.Phase.UP:
            return False
        if welcome.resumed:
            self._pump.link.resume(welcome.received)
        else:
            log.info("Connected with coordinator %s.", self._options.coordinator)
        return True

    async def _exchange(self, call: Any) -> str:
        pump = self._pump
        writer = self._loop.create_task(self._write(call, pump))
        try:
            while (frame := await call.read()) is not grpc.aio.EOF:
                self._tell(s.Heard())
                if frame.WhichOneof("body") == "refused":
                    return str(frame.refused.text)
                if pump is self._pump:
                    self._take(pump, frame)
            return ""
        finally:
            pump.stop()
            writer.cancel()
            await asyncio.gather(writer, return_exceptions=True)

    async def _write(self, call: Any, pump: Pump[_Frame]) -> None:
        async def send(number: int, kept: _Frame | None) -> None:
            frame = kept or _Frame(heartbeat=control_pb2.Heartbeat())
            frame.seq, frame.ack = number, pump.link.received
            await call.write(frame)

        await pump.write(send, self._heartbeat_s)

    def _take(self, pump: Pump[_Frame], frame: control_pb2.CoordinatorFrame) -> None:
        pump.link.acknowledge(frame.ack)
        if pump.link.is_settled:
            self._settled.set()
        if frame.seq and pump.link.accept(frame.seq):
            for order in frame.orders.items:
                self._listener.ordered(order)


def _can_join(frame: _Frame, report: control_pb2.AgentReport) -> bool:
    """Whether both are announcements of one epoch."""
    waiting = frame.report
    both = report.HasField("announcements") and waiting.HasField("announcements")
    return both and waiting.epoch == report.epoch


def _meaning(error: grpc.aio.AioRpcError) -> tuple[str, str]:
    """A refusal that people must do something about, or else the reason of a break."""
    text = error.details() or error.code().name
    if error.code() is grpc.StatusCode.UNAUTHENTICATED:
        return text, ""
    if error.code() is grpc.StatusCode.UNIMPLEMENTED:
        return f"What listens there is no coordinator of this version of hvd ({text}).", ""
    return "", text
