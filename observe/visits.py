"""Connections of strangers, each bounded in bytes and time, and all together in number.

A visit is one request.  Whoever sends slowly, sends much, or never reads is cut off when the time is over; when there are too
many, the oldest goes: an honest visitor is gone in milliseconds.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

__all__ = ["Limits", "Visit", "Visits"]


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one visit, and of their number."""

    age_s: float = 10.0
    received_bytes: int = 16 << 10
    visits: int = 64


class Visits:
    """All that are open, oldest first."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._open: dict[Visit, None] = {}

    def __len__(self) -> int:
        return len(self._open)

    def began(self, visit: Visit) -> None:
        """Another one; perhaps it takes the place of an older one."""
        staying = [other for other in self._open if not other.is_ending]
        if len(staying) >= self.limits.visits:
            staying[0].end()
        self._open[visit] = None

    def ended(self, visit: Visit) -> None:
        """It is gone."""
        self._open.pop(visit, None)

    async def end_all(self) -> None:
        """Cuts off whoever is there; nobody is left when this returns."""
        for visit in list(self._open):
            visit.end()
        while self._open:
            await asyncio.sleep(0)  # the loop tells each of its end in the next turn


class Visit(asyncio.Protocol):
    """Stands between a connection and the protocol that serves it."""

    def __init__(self, inner: asyncio.Protocol, visits: Visits) -> None:
        self._inner, self._visits = inner, visits
        self._left_bytes = visits.limits.received_bytes
        self.is_ending = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The visit begins."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._timer = asyncio.get_running_loop().call_later(self._visits.limits.age_s, self.end)
        self._visits.began(self)
        self._inner.connection_made(transport)

    def end(self) -> None:
        """Cuts it off, whatever is under way."""
        self.is_ending = True
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """A part of a request."""
        self._left_bytes -= len(data)
        if self._left_bytes < 0:
            self.end()
        else:
            self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        """The visitor has said everything, and may still listen; one that said nothing wants nothing."""
        self._inner.eof_received()
        return self._left_bytes < self._visits.limits.received_bytes

    def pause_writing(self) -> None:
        """The visitor does not read."""
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        """The visitor reads again."""
        self._inner.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        """The visit is over."""
        self._timer.cancel()
        self._visits.ended(self)
        self._inner.connection_lost(error)
