"""What a rank's Hello brings along: a handle on its process, and its arena.  Both are checked before they are used.

A process is watched by the handle that it passes itself: forked children may hold its socket open, and its process
number may come from another namespace.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from horovod.agent.connections import close_all

__all__ = ["Member", "Members", "pid_of_handle", "process_state", "reason_against"]

_SEAL_SHRINK = 0x2
_GET_SEALS = 1034


@dataclass(frozen=True, slots=True)
class Member:
    """A process that said Hello; ``pid`` is its number in the agent's namespace, 0 where that does not see it."""

    pidfd: int
    arena_fd: int
    pid: int


def pid_of_handle(descriptor: int) -> int:
    """The process that the descriptor stands for: its number here, 0 where this namespace does not see it.

    -1 when it is no pidfd, or the process is gone.
    """
    try:
        lines = Path(f"/proc/self/fdinfo/{descriptor}").read_text().splitlines()
    except OSError:
        return -1
    found = [line.split(":")[1] for line in lines if line.startswith("Pid:")]
    return int(found[0]) if found else -1


def reason_against(descriptors: Sequence[int], arena_bytes: int) -> str:
    """Why these can't be a process handle and an arena; empty when they are."""
    if len(descriptors) != 2:
        return f"{len(descriptors)} descriptors instead of a process handle and an arena"
    if pid_of_handle(descriptors[0]) < 0:
        return "the first descriptor is no handle of a live process"
    try:
        seals = fcntl.fcntl(descriptors[1], _GET_SEALS)
    except OSError:
        return "the second descriptor is no memory file"
    size = os.fstat(descriptors[1]).st_size
    # An arena that can shrink would kill whoever reads it.
    if not seals & _SEAL_SHRINK or size < arena_bytes:
        return f"the arena has {size} bytes, announced were {arena_bytes}, and it must be sealed against shrinking"
    return ""


def process_state(pid: int) -> str:
    """``running``, ``stopped`` or ``dead``; a process of another namespace (0) runs: its handle tells of its end."""
    if pid == 0:
        return "running"
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return "dead"
    return {"T": "stopped", "t": "stopped", "Z": "dead", "X": "dead"}.get(state, "running")


class Members:
    """The members by connection; ``on_death(connection)`` when a process is gone, whoever holds its socket."""

    def __init__(self, on_death: Callable[[int], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_death = on_death
        self._members: dict[int, Member] = {}

    def admit(self, connection: int, descriptors: list[int], arena_bytes: int) -> str:
        """Takes the descriptors of a Hello; the reason when they are no good (then they are closed)."""
        self.forget(connection)
        reason = reason_against(descriptors, arena_bytes)
        if reason:
            close_all(descriptors)
            return reason
        pidfd, arena_fd = descriptors
        self._members[connection] = Member(pidfd, arena_fd, pid_of_handle(pidfd))
        self._loop.add_reader(pidfd, self._died, connection)
        return ""

    def _died(self, connection: int) -> None:
        self._loop.remove_reader(self._members[connection].pidfd)
        self._on_death(connection)

    def member(self, connection: int) -> Member | None:
        """Who said Hello on this connection."""
        return self._members.get(connection)

    def kill(self, connection: int) -> str:
        """Ends the process at once; why that can't be done, empty when it is."""
        member = self._members.get(connection)
        if member is None:
            return ""
        try:
            signal.pidfd_send_signal(member.pidfd, signal.SIGKILL)
        except ProcessLookupError:
            return ""
        except OSError as error:
            return f"process {member.pid or 'of another namespace'} can't be ended: {error.strerror or error}"
        return ""

    def forget(self, connection: int) -> None:
        """The connection is over."""
        member = self._members.pop(connection, None)
        if member is not None:
            self._loop.remove_reader(member.pidfd)
            close_all([member.pidfd, member.arena_fd])

    def close(self) -> None:
        """Forgets all."""
        for connection in list(self._members):
            self.forget(connection)
