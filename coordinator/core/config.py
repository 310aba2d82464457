"""Limits that the coordinator goes by; whoever starts it reads them from arguments and environment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Config:
    """Seconds unless a name says otherwise; 0 switches a limit off, except where noted."""

    stall_check_s: float = 60.0
    stall_shutdown_s: float = 0.0
    deadlock_grace_s: float = 10.0
    cache_capacity: int = 16_384
    start_warning_s: float = 30.0
    start_timeout_s: float = 0.0
    grace_s: float = 5.0
    deterministic: bool = False  # the ring by name, so that results repeat from run to run
    # How long a rank that left the epoch first may take to exit before the others' failure stops it.
    culprit_exit_s: float = 2.0
    # How long ranks may take to show the error that a failed one has brought them, and to leave, before they are told to.
    last_words_s: float = 2.0

    def of_ends(self) -> dict[str, Any]:
        """How long ranks may take to end, which is the coordinator's to say and not a job's."""
        return {"grace_s": self.grace_s, "culprit_exit_s": self.culprit_exit_s, "last_words_s": self.last_words_s}
