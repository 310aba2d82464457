"""What a process holds, and whether it holds more than before: descriptors, shared memory, threads, children."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

LIMIT_S = 5.0  # how long things that end by themselves may take
_STEP_S = 0.01


@dataclass(frozen=True, slots=True)
class Holdings:
    """A moment's holdings, as counts by name, so that two moments can be compared."""

    descriptors: Counter[str]
    shared_memory: Counter[str]
    threads: Counter[str]
    children: Counter[str]

    def beyond(self, before: Holdings) -> dict[str, list[str]]:
        """What is there now and was not before, by kind."""
        pairs = {kind: getattr(self, kind) - getattr(before, kind) for kind in self.__slots__}
        more = {kind: sorted(left.elements()) for kind, left in pairs.items() if left}
        if "children" in more:
            more["children"] = [f"{pid} {_name(pid)}" for pid in more["children"]]
        return more


def holdings() -> Holdings:
    """What this process holds now."""
    links = _descriptors()
    return Holdings(
        descriptors=Counter(link for link in links if not link.startswith("/memfd:")),
        shared_memory=Counter(link for link in links if link.startswith("/memfd:")) + _mapped(),
        threads=Counter(thread.name for thread in threading.enumerate()),
        children=Counter(_children()),
    )


def _descriptors() -> list[str]:
    found = []
    for entry in os.listdir("/proc/self/fd"):
        try:
            link = os.readlink(f"/proc/self/fd/{entry}")
        except OSError:  # the descriptor of the listing itself
            continue
        # Numbers of sockets and pipes differ each time; their kind is enough for counting.
        found.append(link.partition("[")[0] if link.startswith(("socket:", "pipe:", "anon_inode:")) else link)
    return found


def _mapped() -> Counter[str]:
    """Mappings of memfds; they live on when the descriptor is closed."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return Counter("mapped " + line.split(None, 5)[5] for line in lines if "/memfd:" in line)


def _children() -> list[str]:
    """Numbers: a child has this process's name until its program runs, which may be after Popen has returned."""
    found = []
    for task in os.listdir("/proc/self/task"):
        try:
            pids = Path(f"/proc/self/task/{task}/children").read_text().split()
        except OSError:
            continue
        found += pids
    return found


def _name(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return "?"


def wait_until_no_more_than(before: Holdings, limit_s: float = LIMIT_S) -> dict[str, list[str]]:
    """What is still held beyond ``before`` when the time is over; empty as soon as there is nothing."""
    return _last(lambda: holdings().beyond(before), limit_s)


def _last(look: Callable[[], dict[str, list[str]]], limit_s: float) -> dict[str, list[str]]:
    deadline = time.monotonic() + limit_s
    while (more := look()) and time.monotonic() < deadline:
        time.sleep(_STEP_S)
    return more
