"""What the engine's statuses mean in Python.

NativeError
├── InvalidArgument   an argument is out of range
├── OutOfMemory       arena or board exhausted
├── EpochClosed       a rank called shutdown
├── EpochFailed       a rank or agent was lost
└── OpCancelled       the operation was failed by this process
"""

from __future__ import annotations

from enum import IntEnum


class Status(IntEnum):
    """hvd_status."""

    OK = 0
    PENDING = 1
    MARKED = 2
    INVALID = -1
    MEMORY = -2
    CLOSED = -3
    FAILED = -4
    CANCELLED = -5


class NativeError(Exception):
    """A call of the native engine failed."""


class InvalidArgument(NativeError):
    """An argument is out of range: pointer, length, index or state."""


class OutOfMemory(NativeError):
    """Arena or board is exhausted, or the system refused shared memory."""


class EpochClosed(NativeError):
    """A rank called shutdown."""


class EpochFailed(NativeError):
    """A rank or an agent was lost."""


class OpCancelled(NativeError):
    """The operation was failed by this process."""


_ERRORS: dict[int, type[NativeError]] = {
    Status.INVALID: InvalidArgument,
    Status.MEMORY: OutOfMemory,
    Status.CLOSED: EpochClosed,
    Status.FAILED: EpochFailed,
    Status.CANCELLED: OpCancelled,
}


def check(status: int, what: str) -> int:
    """The status, when it is not a failure; raises the matching error that says ``what`` failed."""
    if status >= 0:
        return status
    error = _ERRORS.get(status, NativeError)
    raise error(f"{what} failed: {(error.__doc__ or '').rstrip('.').lower()} (status {status})")
