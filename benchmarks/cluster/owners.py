"""Whose a cluster is: names carry the process that made it, so that what a dead one left can be told from what is in use."""

from __future__ import annotations

import itertools
import os
import re
from pathlib import Path

PREFIX = "hvdtest"
_serial = itertools.count()
_NAME = re.compile(rf"{PREFIX}-(\d+)-(\d+)-\d+(?:-\w+)?")


def new_cluster_name() -> str:
    """A name that no other cluster on this machine has, whichever process makes it."""
    pid = os.getpid()
    return f"{PREFIX}-{pid}-{_start_ticks(pid)}-{next(_serial)}"


def is_stale(name: str) -> bool:
    """Whether this is a name of ours and the process that made it is gone."""
    found = _NAME.fullmatch(name)
    return found is not None and _start_ticks(int(found[1])) != int(found[2])


def _start_ticks(pid: int) -> int | None:
    """When the process began, which tells it from a later one with the same number; None if there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return int(stat.rpartition(")")[2].split()[19])
