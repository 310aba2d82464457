"""Errors that are the machine's limits, not ours: what has run out, and how to raise it."""

from __future__ import annotations

import errno
import resource
from collections.abc import Iterator

__all__ = ["shortage"]

_SHORT = {
    errno.ENFILE: "This machine has no room for more open files (sysctl fs.file-max)",
    errno.ENOMEM: "There is not enough memory",
    errno.ENOSPC: "There is no space left on the device",
}


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def shortage(error: BaseException) -> str:
    """What has run out, as a sentence; "" when the error has another cause."""
    for cause in _chain(error):
        if isinstance(cause, OSError) and cause.errno == errno.EMFILE:
            limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
            return f"The limit of {limit} open files (ulimit -n) is too low for so many ranks: raise it, as in ulimit -n 4096."
        if isinstance(cause, OSError) and cause.errno in _SHORT:
            return f"{_SHORT[cause.errno]}: {cause}."
        if isinstance(cause, MemoryError):
            return f"{_SHORT[errno.ENOMEM]}."
    return ""
