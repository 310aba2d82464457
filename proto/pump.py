"""Writes the frames of a Link to whatever stream there is at the moment, and something in between when there is nothing to say."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from horovod.proto.link import Link

__all__ = ["Pump"]

T = TypeVar("T")


class Pump(Generic[T]):
    """Not thread-safe: it belongs to the running loop.  One stream at a time: a new one ends the writing to the last."""

    def __init__(self) -> None:
        self.link: Link[T] = Link()
        self._wake = asyncio.Event()
        self._stream = 0

    def push(self, frame: T, size: int = 0) -> None:
        """A frame to be sent."""
        self.link.push(frame, size)
        self._wake.set()

    def nudge(self) -> None:
        """Something between the frames is to be sent now."""
        self._wake.set()

    def stop(self) -> None:
        """Ends the writing."""
        self._stream += 1
        self._wake.set()

    async def write(self, send: Callable[[int, T | None], Awaitable[None]], idle_s: float) -> None:
        """Until another stream takes over: ``send(number, frame)``, or ``send(0, None)`` when nudged or idle for that long."""
        self.stop()
        stream = self._stream
        while stream == self._stream:
            nudged = self._wake.is_set()
            self._wake.clear()
            item = self.link.take()
            if item is None and not nudged:
                await self._sleep(idle_s)
            elif item is not None:
                await send(*item)
            else:
                await send(0, None)

    async def _sleep(self, limit_s: float) -> None:
        """Until something is there to be sent, or the time is over: that is a reason to send too."""
        timer = asyncio.get_running_loop().call_later(limit_s, self._wake.set)
        try:
            await self._wake.wait()
        finally:
            timer.cancel()
