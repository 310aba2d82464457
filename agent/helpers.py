"""Threads of the agent that reduce what is open on a board.

One guard can always reduce, whatever the setting, so that progress never depends on who waits for what.  Helpers beyond
it use cores that no rank needs: they look often while the ranks submit, and rarely otherwise.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Sequence

from horovod import native
from horovod.agent.cores import available_cores

__all__ = ["Helpers", "helper_count", "helpers_problem"]

log = logging.getLogger("horovod.agent")

_GUARD_PAUSE_S = 0.05
_BUSY_MS = 1
_IDLE_PAUSE_S = 0.02
_MOST_HELPERS = 64


def helpers_problem(setting: str) -> str:
    """What is wrong with this value of HVD_HELPERS; "" for a number, and for none."""
    if not setting.strip() or (setting.strip().isdecimal() and int(setting) <= _MOST_HELPERS):
        return ""
    return f"the environment variable HVD_HELPERS is {setting!r}, but it must be a number from 0 to {_MOST_HELPERS}"


def helper_count(local_size: int, setting: str = "", cores: float | None = None) -> int:
    """Threads beyond the guard: HVD_HELPERS, else one for each whole core that no rank needs, at most one per rank."""
    if setting.strip() and not helpers_problem(setting):
        return min(int(setting), _MOST_HELPERS)
    spare = int((available_cores() if cores is None else cores) - local_size)
    return max(0, min(spare, local_size))


class Helpers:
    """The threads of one board; ``stop`` before the board is closed."""

    def __init__(self, board: native.Board, arena_fds: Sequence[int], count: int) -> None:
        self._board, self._local_size = board, board.local_size
        self._arena_fds = [os.dup(descriptor) for descriptor in arena_fds]
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._guard, name="hvd-guard", daemon=True)]
        self._threads += [
            threading.Thread(target=self._help, name=f"hvd-helper-{index}", daemon=True) for index in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def _guard(self) -> None:
        while not self._stop.wait(_GUARD_PAUSE_S) and self._help_once(_BUSY_MS):
            pass

    def _help(self) -> None:
        seen = -1
        while not self._stop.is_set():
            submits = sum(self._board.rank_info(index).submits for index in range(self._local_size))
            if submits == seen and self._stop.wait(_IDLE_PAUSE_S):
                return
            seen = submits
            if not self._help_once(_BUSY_MS):
                return

    def _help_once(self, timeout_ms: int) -> bool:
        """False when there is nothing to help with any more."""
        try:
            self._board.help(self._arena_fds, timeout_ms)
        except native.EpochFailed:
            return False
        except native.NativeError as error:
            log.warning("A helper thread ends: %s", error)
            return False
        return True

    def stop(self) -> None:
        """Ends the threads: none is inside the board when this returns."""
        self._stop.set()
        for thread in self._threads:
            thread.join()
        for descriptor in self._arena_fds:
            os.close(descriptor)
        self._arena_fds = []
