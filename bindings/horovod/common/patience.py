"""How long a process waits that was started by hand: for its agent, then for the other ranks, with a word now and then.

A launched rank needs none of this: its launcher knows all ranks, and ends those that wait in vain.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from horovod.common.exceptions import StartError

__all__ = ["Patience"]

_log = logging.getLogger("horovod")

_WARN_S = 30.0
_AGENT_S = 30.0
_LONGEST_SLICE_S = 1.0


class Patience:
    """``text`` is what is waited for; ``limit_s`` is HOROVOD_START_TIMEOUT, 0: for ever."""

    def __init__(self, limit_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit_s, self._clock = limit_s, clock
        self._began = self._warned = clock()
        self.text = ""

    def look(self) -> float:
        """How long to wait until the next look; warns when it is time, StartError when the limit is reached."""
        now = self._clock()
        waited = now - self._began
        if 0 < self._limit_s <= waited:
            raise StartError(
                f"hvd.init() has waited for {waited:.0f} s. {self.text} The start timeout of {self._limit_s:g} s "
                "(HOROVOD_START_TIMEOUT) is over."
            )
        if now - self._warned >= _WARN_S:
            self._warned = now
            _log.warning("hvd.init() has waited for %.0f s. %s", waited, self.text)
        until_end = self._limit_s - waited if self._limit_s else _LONGEST_SLICE_S
        return max(0.0, min(_LONGEST_SLICE_S, until_end, self._warned + _WARN_S - now))

    @property
    def is_over_for_agent(self) -> bool:
        """Whether an agent that is not there yet, a sidecar that is about to start, was waited for long enough."""
        return self._clock() - self._began >= (self._limit_s or _AGENT_S)
