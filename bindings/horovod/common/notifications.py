"""How a process hears that hosts were added or removed: the seam between elastic jobs and ``hvd.elastic``.

Users' code meets only states, which are told of changes, and ``hvd.elastic.run``, which asks whether an epoch can follow
one that failed.  Whatever runs a job whose ranks change implements :class:`Job` and gives it to
``notification_manager.use_job``, at the latest when ``init`` has brought the process into the job; nothing else of
``horovod.common.elastic`` or of the bindings has to change for it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from enum import IntFlag
from typing import Protocol

from horovod.common.core.recovery import objection_of_fixed_job
from horovod.common.exceptions import HorovodInternalError

__all__ = ["FixedJob", "HostUpdateResult", "Job", "Listener", "WorkerNotificationManager", "notification_manager"]


class HostUpdateResult(IntFlag):
    """What has happened to the hosts; several changes are combined with ``|``."""

    no_update = 0
    removed = 1
    added = 2
    mixed = 3


class Listener(Protocol):
    """Who is told of changes: a state."""

    def on_hosts_updated(self, timestamp: float, update_res: int) -> None:
        """Hosts have changed; called from any thread, so it must only take note."""
        ...


class Job(Protocol):
    """A job as one of its ranks sees it.

    * ``watch(tell)`` is called once, before the first attempt of ``hvd.elastic.run``.  From then on the job calls
      ``tell(timestamp, result)`` after each change, from any thread.  Only what rank 0 is told counts: it tells the others
      at their next commit.  Timestamps (seconds since 1970, or any number) grow with each change.  What is told while
      ranks meet in a new epoch is dropped, so a change that the new epoch does not have yet is to be told after it.
    * ``objection(error, size, is_repeated)`` says why no epoch can follow one of ``size`` ranks in which ``error`` ended an
      attempt, with advice; empty when shutdown and init lead to one.  Every rank must come to the same answer.
      ``is_repeated``: nothing was committed since the last failure.
    """

    def watch(self, tell: Callable[[float, int], None]) -> None: ...

    def objection(self, error: HorovodInternalError, size: int, is_repeated: bool) -> str: ...


class FixedJob:
    """A job that has the same ranks from its start to its end; see :class:`Job`."""

    def watch(self, tell: Callable[[float, int], None]) -> None:
        """Nothing will ever be told."""

    def objection(self, error: HorovodInternalError, size: int, is_repeated: bool) -> str:
        """Several ranks can't go on after a failure; one rank can, unless it makes no progress."""
        return objection_of_fixed_job(size, is_repeated)


class WorkerNotificationManager:
    """Hands what the job tells to the listeners; thread-safe.

    What is told while nobody listens waits for the first listener.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listeners: list[Listener] = []
        self._waiting: list[tuple[float, int]] = []
        self._is_watching = False
        self.job: Job = FixedJob()

    def use_job(self, job: Job) -> None:
        """From now on this job is asked, and watched from the next ``init`` on."""
        with self._lock:
            self.job, self._is_watching = job, False

    def init(self, *_ignored: object) -> None:
        """Begins to watch the job, once; arguments are accepted for compatibility and not used."""
        with self._lock:
            job, is_watching, self._is_watching = self.job, self._is_watching, True
        if not is_watching:
            job.watch(self.handle_hosts_updated)

    def register_listener(self, listener: Listener) -> None:
        """Tells this listener of changes, first of those that nobody has heard of."""
        with self._lock:
            self._listeners.append(listener)
            waiting, self._waiting = self._waiting, []
        for timestamp, result in waiting:
            listener.on_hosts_updated(timestamp, result)

    def remove_listener(self, listener: Listener) -> None:
        """Tells it no more; one that is not registered does not matter."""
        with self._lock:
            self._listeners = [other for other in self._listeners if other is not listener]

    def handle_hosts_updated(self, timestamp: float, update_res: int) -> None:
        """Hosts have changed: what jobs call."""
        with self._lock:
            listeners = list(self._listeners)
            if not listeners:
                self._waiting = [_joined(self._waiting, timestamp, update_res)]
        for listener in listeners:
            listener.on_hosts_updated(timestamp, update_res)


def _joined(waiting: list[tuple[float, int]], timestamp: float, result: int) -> tuple[float, int]:
    """One change that stands for all of these: states only look at the newest time and at what has happened at all."""
    for before, also in waiting:
        timestamp, result = max(timestamp, before), result | also
    return timestamp, result


notification_manager = WorkerNotificationManager()
