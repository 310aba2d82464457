"""Handles: the integers by which users hold asynchronous operations.

One table per process, shared by the bindings.  The counter advances for every asynchronous operation, join, barrier and
failed enqueue, and restarts after shutdown: automatic names (``allreduce.noname.<handle>``) are made from it, so all
ranks that run the same program make the same names.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["HandleTable"]

T = TypeVar("T")


class HandleTable(Generic[T]):
    """Thread-safe without a lock: ``next`` on a counter and single dictionary operations are atomic."""

    __slots__ = ("_entries", "advance")

    advance: Callable[[], int]
    """The next handle; nothing is stored under it yet.  The counter's own method: every operation calls it."""

    def __init__(self) -> None:
        self.advance = itertools.count().__next__
        self._entries: dict[int, T] = {}

    def advance_to(self, handle: int) -> None:
        """The next handle is this one; a later one where as many, or all but one, were given out already."""
        while self.advance() < handle - 1:
            pass

    def put(self, handle: int, entry: T) -> None:
        """Stores what the handle stands for."""
        self._entries[handle] = entry

    def get(self, handle: int) -> T | None:
        """What the handle stands for; None when it was cleared or never given out."""
        return self._entries.get(handle)

    def pop(self, handle: int) -> T | None:
        """Takes the entry out; None when it was cleared or never given out."""
        return self._entries.pop(handle, None)

    def __len__(self) -> int:
        return len(self._entries)

    def reset(self) -> None:
        """After shutdown: no entries, and the counter starts again."""
        self._entries.clear()
        self.advance = itertools.count().__next__
