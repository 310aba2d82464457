"""What has happened since the coordinator began: numbers that only rise, and the last epochs with the reason of their end.

Epochs come and go; this outlives them.  Nothing is decided by it: it is read by whoever observes the coordinator.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from horovod.coordinator.core.values import Error, ErrorKind, OpenRound

REMEMBERED = 32
JOB_RESULTS = ("succeeded", "failed", "cancelled", "refused")


@dataclass(frozen=True, slots=True)
class PastEpoch:
    """An epoch that has ended."""

    number: int
    size: int
    error: Error


@dataclass(slots=True)
class Tally:
    """Refusals count announcements; ``awaited`` counts reports in which somebody waited for the rank."""

    agents_lost: int = 0
    announcements: int = 0
    plans_made: int = 0
    plans_retired: int = 0
    contests: int = 0
    mismatches: int = 0
    stall_warnings: int = 0
    deadlocks: int = 0
    jobs_adopted: int = 0
    last_exit_code: int | None = None
    refusals: Counter[ErrorKind] = field(default_factory=Counter)
    epoch_ends: Counter[ErrorKind] = field(default_factory=Counter)
    job_ends: Counter[str] = field(default_factory=Counter)
    awaited: Counter[int] = field(default_factory=Counter)
    past_epochs: deque[PastEpoch] = field(default_factory=lambda: deque(maxlen=REMEMBERED))

    def epoch_ended(self, number: int, size: int, error: Error) -> None:
        """For the first reason that ends it."""
        self.epoch_ends[error.kind] += 1
        self.past_epochs.append(PastEpoch(number, size, error))

    def job_ended(self, code: int, cancelled: bool) -> None:
        """Every rank is gone."""
        self.job_ends["cancelled" if cancelled else "failed" if code else "succeeded"] += 1
        self.last_exit_code = code

    def reported(self, rounds: Iterable[OpenRound], size: int) -> None:
        """What waits on an agent, in an epoch of this size."""
        for rank in {rank for item in rounds for rank in item.missing}:
            if 0 <= rank < size:
                self.awaited[rank] += 1


__all__ = ["JOB_RESULTS", "PastEpoch", "Tally"]
