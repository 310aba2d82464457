"""Warnings that somebody else can cause as often as he likes: one line of a kind in ten seconds, and how many there were."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

__all__ = ["Seldom"]

_PAUSE_S = 10.0


class Seldom:
    """Warnings of one log.  The kind of a warning is its text without the values."""

    def __init__(self, log: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._log, self._clock = log, clock
        self._next: dict[str, float] = {}
        self._hidden: dict[str, int] = {}

    def warning(self, text: str, *values: object) -> None:
        """Logs it, or counts it when one of this kind was logged a short while ago."""
        now = self._clock()
        if now < self._next.get(text, now):
            self._hidden[text] = self._hidden.get(text, 0) + 1
            return
        self._tell_hidden(text)
        self._next[text] = now + _PAUSE_S
        self._log.warning(text, *values)

    def close(self) -> None:
        """Tells what was only counted."""
        for text in list(self._hidden):
            self._tell_hidden(text)

    def _tell_hidden(self, text: str) -> None:
        count = self._hidden.pop(text, 0)
        if count:
            kind = text.partition("%")[0].strip(" :")
            self._log.warning("%d more like it: %s …", count, kind)
