"""How late an event loop is: what else it does holds up everything that waits for it."""

from __future__ import annotations

import asyncio
from collections import deque

__all__ = ["LoopWatch"]

_PERIOD_S = 0.25
_KEPT_S = 15.0  # as long as between two scrapes


class LoopWatch:
    """A timer that compares when it should run with when it does.  It belongs to the running loop."""

    def __init__(self, period_s: float = _PERIOD_S) -> None:
        self._loop = asyncio.get_running_loop()
        self._period_s = period_s
        self._lags: deque[float] = deque(maxlen=round(_KEPT_S / _PERIOD_S))
        self._arm()

    @property
    def lag_s(self) -> float:
        """The longest delay of the last quarter of a minute."""
        return max(self._lags, default=0.0)

    def _arm(self) -> None:
        self._timer = self._loop.call_at(self._loop.time() + self._period_s, self._look)

    def _look(self) -> None:
        self._lags.append(max(0.0, self._loop.time() - self._timer.when()))
        self._arm()

    def close(self) -> None:
        """Looks no more."""
        self._timer.cancel()
