"""From the addresses of an epoch's agents to a plane on a board, or to nothing that is left behind."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from horovod import native
from horovod.agent.core import events as ev
from horovod.agent.planes.gloo import GlooCarrier, GlooPlane, GlooServer
from horovod.agent.planes.links import Link, Links
from horovod.agent.planes.plane import Plane
from horovod.agent.planes.tcp import TcpOptions, TcpPlane

__all__ = ["PlaneOpening", "PlaneOptions"]


@dataclass(frozen=True, slots=True)
class PlaneOptions:
    """How other agents are reached: the links that outlive jobs, and what is told of the plane.  ``gloo``: data go through it."""

    links: Links
    tcp: TcpOptions = field(default_factory=TcpOptions)
    gloo: GlooServer | None = None
    open_s: float = 30.0


class PlaneOpening:
    """Of one epoch.  Whatever came of it, ``abandon`` closes what no plane became the owner of."""

    def __init__(self, options: PlaneOptions, command: ev.PlaneOpen) -> None:
        self._options, self._command = options, command
        self._links: list[Link] = []
        self._carrier: GlooCarrier | None = None

    async def connect(self) -> None:
        """With all other agents; LinkFailed names the one that can't be reached."""
        command = self._command
        self._links = await self._options.links.open(command.epoch, command.ring, command.place, command.key)
        if self._options.gloo is not None:
            self._carrier = GlooCarrier(self._options.gloo, command, self._links)
            await self._carrier.ready(self._options.open_s)

    def plane(
        self, board: native.Board, arena_fds: Sequence[int], arena: native.Arena, post: Callable[[ev.Event], None]
    ) -> Plane:
        """The plane, once connected; NativeError when there is no memory for it."""
        if self._carrier is None:
            return TcpPlane(board, arena_fds, arena, self._command, self._links, self._options.tcp, post)
        plane = GlooPlane(board, arena_fds, arena, self._command, self._carrier, self._options.tcp, post)
        self._carrier = None
        return plane

    def abandon(self) -> None:
        """Ends what is not part of a plane."""
        while self._links:
            with contextlib.suppress(OSError):
                os.close(self._links.pop().descriptor)
        if self._carrier is not None:
            self._carrier.end()
            self._carrier = None
