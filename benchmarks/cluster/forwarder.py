"""A TCP forwarder that behaves badly on request: late, in small pieces, silent, resetting.

It stands in for what the kernel can't do everywhere (netem is often missing).  One thread with an event loop carries all
connections, so that when a call such as ``stall()`` has returned, not one more byte passes.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from threading import Thread
from typing import Any, TypeVar

T = TypeVar("T")
Address = tuple[str, int]
_START_S = 10.0
_READ_BYTES = 1 << 16
_QUEUE_PIECES = 256  # what may be under way in one direction: 16 MiB
_ORIGINAL_DST = {socket.AF_INET: (socket.IPPROTO_IP, 80), socket.AF_INET6: (socket.IPPROTO_IPV6, 80)}
_TCP_NOTSENT_LOWAT = 25
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


def original_target(client: socket.socket) -> Address:
    """Where a connection was going when a REDIRECT rule caught it."""
    level, option = _ORIGINAL_DST[client.family]
    raw = client.getsockopt(level, option, 28)
    host = raw[4:8] if client.family == socket.AF_INET else raw[8:24]
    return socket.inet_ntop(client.family, host), int.from_bytes(raw[2:4], "big")


class Forwarder:
    """Carries TCP connections from ``listen`` to a target, both ways, until ``close()``.

    ``delay_s`` and ``piece_bytes`` may be set at any time and hold for what is read, or written, from then on.  A delay
    costs no throughput; connecting itself isn't delayed.
    """

    def __init__(
        self,
        listen: list[Address],
        target: Callable[[socket.socket], Address],
        enter: Callable[[], None] = lambda: None,
    ) -> None:
        self.delay_s = 0.0  # how much later bytes arrive, in each direction
        self.piece_bytes = _READ_BYTES  # at most so many bytes arrive at once; 1: byte by byte
        self.ports: list[int] = []
        self._target = target
        self._connections: set[asyncio.Task[None]] = set()
        started: Future[None] = Future()
        self._thread = Thread(target=self._run, args=(listen, enter, started), name="forwarder")
        self._thread.start()
        started.result(_START_S)

    @property
    def port(self) -> int:
        return self.ports[0]

    def stall(self) -> None:
        """Passes nothing on, and says nothing: connections stay, new ones are taken, bytes wait here."""
        self._do(self._set_flow(False))

    def resume(self) -> None:
        """Passes on again, first what has waited."""
        self._do(self._set_flow(True))

    def reset(self) -> None:
        """Ends all present connections with a reset on both sides; new ones are served."""
        self._do(self._reset())

    @property
    def connections(self) -> int:
        """How many are open at this moment."""
        return len(self._connections)

    def close(self) -> None:
        """Resets what is open and ends; more than once is fine."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_START_S)

    # ---- in the thread

    def _run(self, listen: list[Address], enter: Callable[[], None], started: Future[None]) -> None:
        try:
            enter()
            asyncio.run(self._serve(listen, started))
        except BaseException as problem:
            if started.done():
                raise
            started.set_exception(problem)

    async def _serve(self, listen: list[Address], started: Future[None]) -> None:
        self._loop, self._stop, self.flow = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()
        self.flow.set()
        listeners: list[socket.socket] = []
        accepting: list[asyncio.Task[None]] = []
        try:
            listeners += [_listener(address) for address in listen]
            self.ports = [listener.getsockname()[1] for listener in listeners]
            accepting += [self._loop.create_task(self._accept(listener)) for listener in listeners]
            started.set_result(None)
            await self._stop.wait()
        finally:
            await _cancel(accepting)
            await self._reset()
            for listener in listeners:
                listener.close()

    async def _accept(self, listener: socket.socket) -> None:
        while True:
            client, _ = await self._loop.sock_accept(listener)
            connection = _Connection(self, client)
            task = self._loop.create_task(connection.carry(self._target))
            self._connections.add(task)
            task.add_done_callback(self._connections.discard)
            task.add_done_callback(connection.close)  # also of one that is cancelled before its first step

    async def _set_flow(self, flowing: bool) -> None:
        if flowing:
            self.flow.set()
        else:
            self.flow.clear()

    async def _reset(self) -> None:
        await _cancel(list(self._connections))


class _Connection:
    """Two sockets and the bytes between them.  An end that is not clean on one side is a reset on the other."""

    def __init__(self, forwarder: Forwarder, client: socket.socket) -> None:
        self._forwarder = forwarder
        self._loop = asyncio.get_running_loop()
        self._clean = False
        self._client = client
        self._server = socket.socket(client.family, socket.SOCK_STREAM)
        for end in (self._client, self._server):
            end.setblocking(False)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    async def carry(self, target: Callable[[socket.socket], Address]) -> None:
        pumps: list[asyncio.Task[None]] = []
        try:
            await self._forwarder.flow.wait()
            await self._loop.sock_connect(self._server, target(self._client))
            pumps += self._pumps(self._client, self._server) + self._pumps(self._server, self._client)
            await asyncio.gather(*pumps)
            self._clean = True
        except OSError:  # a side that refuses, resets or is gone; the other side learns it by a reset, when it may
            await self._forwarder.flow.wait()
        finally:
            await _cancel(pumps)

    def _pumps(self, source: socket.socket, sink: socket.socket) -> list[asyncio.Task[None]]:
        queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_QUEUE_PIECES)
        return [self._loop.create_task(self._read(source, queue)), self._loop.create_task(self._write(queue, sink))]

    async def _read(self, source: socket.socket, queue: asyncio.Queue[tuple[float, bytes]]) -> None:
        data = b"more"
        while data:
            data = await self._loop.sock_recv(source, _READ_BYTES)
            await queue.put((self._loop.time() + self._forwarder.delay_s, data))
            await self._forwarder.flow.wait()

    async def _write(self, queue: asyncio.Queue[tuple[float, bytes]], sink: socket.socket) -> None:
        while True:
            due, data = await queue.get()
            await asyncio.sleep(due - self._loop.time())
            await self._forwarder.flow.wait()
            if not data:
                return sink.shutdown(socket.SHUT_WR)
            await self._send(sink, memoryview(data))

    async def _send(self, sink: socket.socket, data: memoryview) -> None:
        """Writes in pieces.  A small piece waits until the one before has left, so that they don't become one segment."""
        while data:
            piece = self._forwarder.piece_bytes
            sink.setsockopt(socket.IPPROTO_TCP, _TCP_NOTSENT_LOWAT, 1 if piece < _READ_BYTES else 1 << 30)
            await self._writable(sink)
            await self._forwarder.flow.wait()
            try:
                data = data[sink.send(data[:piece]) :]
            except BlockingIOError:
                continue

    async def _writable(self, sink: socket.socket) -> None:
        ready = asyncio.Event()
        self._loop.add_writer(sink, ready.set)
        try:
            await ready.wait()
        finally:
            self._loop.remove_writer(sink)

    def close(self, _task: asyncio.Task[None]) -> None:
        for end in (self._client, self._server):
            if not self._clean:
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            end.close()


def _listener(address: Address) -> socket.socket:
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    listener = socket.create_server(address, family=family)
    listener.setblocking(False)
    return listener


async def _cancel(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
