"""One direction each of a numbered exchange that outlives its connections: what to send, to keep, to send again, to drop.

Owns the numbers.  A connection delivers a prefix of what was sent on it, in order; then it breaks, and nobody knows how much
arrived.  So a sender keeps every frame until its number is acknowledged, and on the next connection begins behind the highest
number that the other side has received.  The receiver takes each number once.  Pure: bytes, clocks and connections are the
caller's; ``take`` never waits.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Generic, TypeVar

__all__ = ["Link", "LinkError"]

T = TypeVar("T")


class LinkError(Exception):
    """The other side counts differently: the exchange can't go on."""


@dataclass(slots=True)
class Link(Generic[T]):
    """``acked`` <= ``sent`` <= ``pushed``: numbers confirmed, handed to the connection, given by the caller."""

    acked: int = 0
    sent: int = 0
    received: int = 0
    kept_bytes: int = 0
    _kept: deque[tuple[T, int]] = field(default_factory=deque)  # numbers acked+1 to pushed

    @property
    def pushed(self) -> int:
        """The number of the last frame."""
        return self.acked + len(self._kept)

    @property
    def is_settled(self) -> bool:
        """Whether everything is confirmed."""
        return not self._kept

    def push(self, frame: T, size: int = 0) -> None:
        """A frame to be sent; ``size`` counts in ``kept_bytes``."""
        self._kept.append((frame, size))
        self.kept_bytes += size

    def last_unsent(self, below_bytes: int) -> T | None:
        """The last frame, as long as nobody has taken it and it is smaller than that."""
        return self._kept[-1][0] if self.sent < self.pushed and self._kept[-1][1] < below_bytes else None

    def grow_last(self, size: int) -> None:
        """The last frame has become larger by that much."""
        frame, before = self._kept[-1]
        self._kept[-1] = frame, before + size
        self.kept_bytes += size

    def take(self) -> tuple[int, T] | None:
        """The next frame for this connection with its number; None when all are on the way."""
        if self.sent == self.pushed:
            return None
        self.sent += 1
        return self.sent, self._kept[self.sent - self.acked - 1][0]

    def acknowledge(self, number: int) -> list[int]:
        """The other side has received up to this number; the sizes of the frames that are let go."""
        if number > self.sent:
            raise LinkError(f"number {number} is confirmed, but only {self.sent} were sent")
        let_go = []
        while self.acked < number:
            _, size = self._kept.popleft()
            self.acked += 1
            self.kept_bytes -= size
            let_go.append(size)
        return let_go

    def resume(self, received: int) -> list[int]:
        """A new connection to somebody who has received that much; sizes of frames that are let go."""
        if not self.acked <= received <= self.pushed:
            raise LinkError(f"the other side has received up to number {received}, not {self.acked} to {self.pushed}")
        self.sent = self.pushed
        let_go = self.acknowledge(received)
        self.sent = received
        return let_go

    def accept(self, number: int) -> bool:
        """Whether a frame is new; a repeated one is not."""
        if number > self.received + 1:
            raise LinkError(f"number {number} came after number {self.received}")
        if number <= self.received:
            return False
        self.received = number
        return True

    def check_invariants(self) -> None:
        """Raises AssertionError when the book is wrong."""
        assert 0 <= self.acked <= self.sent <= self.pushed
        assert self.kept_bytes == sum(size for _, size in self._kept)
