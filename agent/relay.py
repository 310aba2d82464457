"""Carries the output of a job's ranks to the coordinator: numbered, kept until it is confirmed, over one connection of its own.

To the ranks' streams it looks like the writer to a console.  Bytes count as written when the coordinator has confirmed them,
which it does as fast as the launcher takes them: so a slow launcher slows the ranks, here memory stays small, and what a broken
connection lost is sent again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import grpc
from horovod.agent.output import Target
from horovod.proto import control_pb2
from horovod.proto.link import LinkError
from horovod.proto.pump import Pump
from horovod.proto.security import Address, Security
from horovod.proto.services import OUTPUT, admission, open_channel, open_stream

__all__ = ["Relay", "RelayOptions"]

log = logging.getLogger("horovod.agent")

_PROTOCOL = 1
_PAUSES_S = (0.1, 0.2, 0.5, 1.0)
_IDLE_S = 3600.0
_HANG_UP_S = 1.0
_STREAMS = {"stdout": 1, "stderr": 2}
_Written = Callable[[int, bool], None]


@dataclass(frozen=True, slots=True)
class RelayOptions:
    """Where to, and whose output it is."""

    coordinator: Address
    security: Security
    agent: str
    instance: str
    job: int
    incarnation: Callable[[], int] = lambda: 0  # of the coordinator that has the session now


@dataclass(frozen=True, slots=True)
class _RankTarget:
    """Stands for a stream of a rank, or for the agent's own words (rank -1)."""

    rank: int
    stream: int

    def write(self, data: bytes) -> None:
        """Nobody writes to it directly."""
        raise OSError("it is written by the relay")


class _Plain:
    """Bytes as they are: the launcher dresses them."""

    def feed(self, data: bytes) -> bytes:
        return data

    def finish(self) -> bytes:
        return b""


class Relay:
    """An Output and its Writer.  Not thread-safe: it belongs to the running loop."""

    directory = ""

    def __init__(self, options: RelayOptions) -> None:
        self._options = options
        self._loop = asyncio.get_running_loop()
        self._pump: Pump[control_pb2.OutputFrame] = Pump()
        self._written: deque[tuple[int, int, _Written]] = deque()  # stream, bytes, who wants to know
        self._closed: frozenset[int] = frozenset()
        self._closing = False
        self._over = asyncio.Event()
        self._task: asyncio.Task[None] | None = self._loop.create_task(self._run())

    @property
    def unconfirmed_bytes(self) -> int:
        """Output that the launcher may not have taken."""
        return self._pump.link.kept_bytes

    # ---- Output

    def writer(self, loop: asyncio.AbstractEventLoop) -> Relay:
        """Itself."""
        return self

    def target(self, rank: int, stream: str) -> Target:
        """Of a rank's stream."""
        return _RankTarget(rank, _STREAMS[stream])

    def dresser(self, rank: int, stream: str) -> _Plain:
        """None."""
        return _Plain()

    def words(self, text: str) -> tuple[Target, bytes]:
        """A line of the agent itself."""
        return _RankTarget(-1, 0), text.encode()

    # ---- Writer

    def put(self, target: Target, data: bytes, written: _Written) -> None:
        """Takes bytes of a rank."""
        assert isinstance(target, _RankTarget)
        frame = control_pb2.OutputFrame()
        if target.rank < 0:
            frame.notice = data.decode(errors="replace")
        else:
            frame.data.rank, frame.data.stream, frame.data.data = target.rank, target.stream, data
        self._push(frame, target.stream, len(data), written)

    def _push(self, frame: control_pb2.OutputFrame, stream: int, size: int, written: _Written) -> None:
        if self._over.is_set():
            self._loop.call_soon(written, size, True)
        else:
            self._written.append((stream, size, written))
            self._pump.push(frame, size)

    async def close(self, timeout_s: float | None = None) -> bool:
        """Waits until everything is confirmed (at most that long; False if it was not), and lets the connection go."""
        self._push(control_pb2.OutputFrame(end=control_pb2.OutputEnd()), 0, 0, lambda _count, _taken: None)
        self._closing = True
        try:
            await asyncio.wait_for(self._over.wait(), timeout_s)
        except asyncio.TimeoutError:
            log.warning("The last output of job %d was not taken in time.", self._options.job)
        whole = self._over.is_set()
        self.abandon()
        task, self._task = self._task, None
        if task is not None:
            # A task that is cancelled keeps its frames, and these the connection, until somebody collects garbage.
            await asyncio.wait({task}, timeout=_HANG_UP_S if whole else 0.0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        return whole

    def abandon(self) -> None:
        """Nobody wants the output any more: what is kept, and what still comes, is dropped."""
        self._over.set()
        self._pump.stop()
        while self._written:
            _, size, written = self._written.popleft()
            self._loop.call_soon(written, size, True)

    # ---- connections

    async def _run(self) -> None:
        tries = 0
        while not self._over.is_set():
            heard = await self._connect()
            tries = 0 if heard else tries + 1
            if not self._over.is_set():
                await asyncio.sleep(_PAUSES_S[min(tries, len(_PAUSES_S) - 1)])

    async def _connect(self) -> bool:
        """One connection, to its end; whether the coordinator answered on it."""
        heard = False
        async with open_channel(self._options.coordinator, self._options.security) as channel:
            call = open_stream(channel, OUTPUT, self._options.security)
            writer: asyncio.Task[None] | None = None
            try:
                await admission(call)
                await call.write(control_pb2.OutputFrame(hello=self._hello()))
                while not self._over.is_set() and (word := await call.read()) is not grpc.aio.EOF:
                    if writer is None and not word.over:  # whose number would be nobody's
                        self._confirm(self._pump.link.resume(word.ack))
                        writer = self._loop.create_task(self._write(call))
                    heard = True
                    self._take(word)
            except LinkError as error:
                log.warning("The coordinator confirms output of job %d that there is not: %s", self._options.job, error)
                self.abandon()
            except (grpc.RpcError, grpc.aio.BaseError, asyncio.InvalidStateError) as error:
                log.debug("The output connection of job %d broke: %s", self._options.job, error)
            finally:
                self._pump.stop()
                if writer is not None:
                    writer.cancel()
                    await asyncio.gather(writer, return_exceptions=True)
                call.cancel()
        return heard

    def _hello(self) -> control_pb2.OutputHello:
        options = self._options
        return control_pb2.OutputHello(
            protocol=_PROTOCOL,
            agent=options.agent,
            instance=options.instance,
            job=options.job,
            incarnation=options.incarnation(),
        )

    async def _write(self, call: Any) -> None:
        async def send(number: int, frame: control_pb2.OutputFrame | None) -> None:
            if frame is not None:
                frame.seq = number
                await call.write(frame)

        await self._pump.write(send, _IDLE_S)

    def _take(self, word: control_pb2.OutputWord) -> None:
        self._closed = frozenset(word.closed)
        if word.over:
            self.abandon()
            return
        self._confirm(self._pump.link.acknowledge(word.ack))

    def _confirm(self, sizes: list[int]) -> None:
        for _ in sizes:
            stream, size, written = self._written.popleft()
            written(size, stream not in self._closed)
        if self._closing and self._pump.link.is_settled:
            self._over.set()
