"""What is on its way to a launcher: bounded for output, so that a slow reader slows its ranks and nobody's memory grows."""

from __future__ import annotations

import asyncio
from collections import deque

from horovod.proto import control_pb2

__all__ = ["Outbox"]

_MOST_BYTES = 1 << 20


class Outbox:
    """Not thread-safe: it belongs to the running loop."""

    def __init__(self) -> None:
        self._updates: deque[control_pb2.JobUpdate] = deque()
        self._bytes = 0
        self._filled = asyncio.Event()
        self._emptied = asyncio.Event()
        self.closed = False

    def put_now(self, update: control_pb2.JobUpdate) -> None:
        """An update that waits for nothing; there are few of them."""
        if not self.closed:
            self._updates.append(update)
            self._bytes += update.ByteSize()
            self._filled.set()

    async def put(self, update: control_pb2.JobUpdate) -> None:
        """An update as soon as there is room; dropped when nobody reads any more."""
        while self._bytes > _MOST_BYTES and not self.closed:
            self._emptied.clear()
            await self._emptied.wait()
        self.put_now(update)

    async def get(self) -> control_pb2.JobUpdate:
        """The next update."""
        while not self._updates:
            self._filled.clear()
            await self._filled.wait()
        update = self._updates.popleft()
        self._bytes -= update.ByteSize()
        self._emptied.set()
        return update

    def take_from(self, other: Outbox) -> None:
        """What another one has not given away."""
        while other._updates:
            self.put_now(other._updates.popleft())

    def close(self) -> None:
        """Nobody reads any more: what is there, and what still comes, is dropped."""
        self.closed = True
        self._updates.clear()
        self._bytes = 0
        self._emptied.set()
