"""What every plane offers, and which planes there are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from horovod import native
from horovod.agent.core import events as ev

__all__ = ["PLANES", "Plane", "plane_problem"]

PLANES = ("tcp", "gloo")


class Plane(Protocol):
    """Moves the data of one epoch between this agent's board and those of the other hosts.

    Rounds that can't go on are dropped, and the loss is told as an event: a plane never ends an epoch.
    """

    name: str

    def plan_add(self, offset: int, remote: ev.RemotePart) -> None: ...

    def plan_remove(self, plan: int) -> bool: ...

    def plan_limit(self, plan: int, limit: int) -> None: ...

    def abort(self, text: str) -> None: ...

    def stat(self) -> native.NetInfo | None: ...

    def neighbours(self) -> Iterator[tuple[str, native.NetPeerInfo]]: ...

    def times(self) -> list[native.NetTime]: ...

    def close(self) -> None: ...


def plane_problem(name: str, source: str) -> str:
    """What is wrong with a plane that ``source`` asks for; empty when it is one."""
    if name.lower() in PLANES:
        return ""
    return f"{source} {name!r} is no way to move data between hosts: choose {' or '.join(PLANES)}"
