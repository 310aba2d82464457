"""Makers of planes, and what can go wrong with each.

A maker is called with a shape and gives a World.  The hosts are joined as agents join them: addresses, handshake, plane.
``Trouble`` stands between host 0 and all others.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import psutil
from horovod import native
from horovod.agent.core import events as ev
from horovod.agent.core.values import Host
from horovod.agent.planes import sockets
from horovod.agent.planes.gloo import GlooPlane, GlooServer
from horovod.agent.planes.links import Link, Links
from horovod.agent.planes.opening import PlaneOpening, PlaneOptions
from horovod.agent.planes.tcp import TcpOptions

from tests.cluster.harness import Forwarder
from tests.planes.relay import Relay
from tests.planes.world import HostRoom, Loop, Shape, World

__all__ = ["Made", "PlaneMaker", "Trouble", "doubling", "gloo", "local", "tcp"]

_KEY = b"k" * 32
_OPEN_S = 50.0
_END_S = 20.0
_ADDRESS = "127.0.0.1"


class Trouble(Protocol):
    """What happens to the connections of host 0."""

    def drip(self) -> None:
        """From now on bytes come one by one."""

    def delay(self, seconds: float) -> None:
        """From now on everything comes later."""

    def vanish(self) -> None:
        """Nothing comes or goes any more, and no connection ends."""

    def reset(self) -> None:
        """The connections break."""

    def close(self) -> None:
        """Once the world is closed."""


class PlaneMaker(Protocol):
    """``silent_s``: a host that is silent for so long is lost; ``troubled``: with trouble."""

    def __call__(
        self, shape: Shape, silent_s: float = 20.0, troubled: bool = False, address: str = _ADDRESS
    ) -> Made: ...


@dataclass
class Made:
    """A world and, if it was asked for, its trouble."""

    world: World
    trouble: Trouble | None = None

    def close(self) -> None:
        self.world.close()
        if self.trouble is not None:
            self.trouble.close()


class _Connector:
    """Joins rooms as agents join: ``between(address)`` is where others find host 0, ``inside`` may put itself into its links."""

    def __init__(
        self,
        silent_s: float,
        gloo: GlooServer | None = None,
        between: Callable[[int], int] = lambda port: port,
        address: str = _ADDRESS,
        algorithm: native.NetAlgorithm = native.NetAlgorithm.BY_SIZE,
    ) -> None:
        self._gloo, self._between, self._address = gloo, between, address
        self._tcp = TcpOptions(1 if gloo is not None else 2, silent_s, algorithm)
        self.inside: Callable[[list[Link]], None] = lambda links: None
        self.planes: list[object] = []

    def __call__(self, loop: Loop, rooms: Sequence[HostRoom]) -> Callable[[], None]:
        links = loop.run(self._connect(rooms))

        async def close() -> None:
            for each in links:
                await each.close()

        return lambda: loop.run(close())

    async def _connect(self, rooms: Sequence[HostRoom]) -> list[Links]:
        links = [Links(sockets.listen(self._address), self._tcp.lanes, _OPEN_S) for _ in rooms]
        ports = [self._between(each.port) if place == 0 else each.port for place, each in enumerate(links)]
        ring = tuple(
            Host(f"a{i}", f"h{i}", (sockets.join_address(self._address, port),)) for i, port in enumerate(ports)
        )
        openings = [
            PlaneOpening(PlaneOptions(each, self._tcp, self._gloo, _OPEN_S), ev.PlaneOpen(1, ring, place, _KEY))
            for place, each in enumerate(links)
        ]
        try:
            await asyncio.gather(*(opening.connect() for opening in openings))
            for room, opening in zip(rooms, openings, strict=True):
                self._join(room, opening)
        finally:
            for opening in openings:
                opening.abandon()
        return links

    def _join(self, room: HostRoom, opening: PlaneOpening) -> None:
        if room.place == 0 and opening._carrier is not None:
            self.inside(opening._carrier.links)
        room.room.connect(lambda board, fds, arena: opening.plane(board, fds, arena, room.post))
        self.planes.append(room.room.view.plane)


# ---- one host


def local(shape: Shape, silent_s: float = 20.0, troubled: bool = False, address: str = _ADDRESS) -> Made:
    """No plane: the board is all there is."""
    return Made(World(shape, None))


# ---- TCP


class _TcpTrouble:
    """A forwarder through which all others connect with host 0."""

    def __init__(self) -> None:
        self._forwarders: list[Forwarder] = []

    def between(self, port: int) -> int:
        self._forwarders.append(Forwarder([("127.0.0.1", 0)], lambda _: ("127.0.0.1", port)))
        return self._forwarders[0].port

    def drip(self) -> None:
        self._forwarders[0].piece_bytes = 1

    def delay(self, seconds: float) -> None:
        self._forwarders[0].delay_s = seconds

    def vanish(self) -> None:
        self._forwarders[0].stall()

    def reset(self) -> None:
        self._forwarders[0].reset()

    def close(self) -> None:
        for forwarder in self._forwarders:
            forwarder.close()


def tcp(
    shape: Shape,
    silent_s: float = 20.0,
    troubled: bool = False,
    address: str = _ADDRESS,
    algorithm: native.NetAlgorithm = native.NetAlgorithm.BY_SIZE,
) -> Made:
    """Connections over loopback."""
    doubles = algorithm is native.NetAlgorithm.DOUBLING
    if not troubled:
        return Made(World(shape, _Connector(silent_s, address=address, algorithm=algorithm), doubles))
    trouble = _TcpTrouble()
    return Made(World(shape, _Connector(silent_s, between=trouble.between, algorithm=algorithm), doubles), trouble)


def doubling(shape: Shape, silent_s: float = 20.0, troubled: bool = False, address: str = _ADDRESS) -> Made:
    """The same, with recursive doubling for small sums however few the hosts are."""
    return tcp(shape, silent_s, troubled, address, native.NetAlgorithm.DOUBLING)


# ---- Gloo


class _GlooTrouble:
    """Signals to the process that runs Gloo for host 0, and relays between it and the host's net."""

    def __init__(self, connector: _Connector) -> None:
        self._connector = connector
        self._relays: list[Relay] = []
        connector.inside = self._relay

    def _relay(self, links: list[Link]) -> None:
        for index, link in enumerate(links):
            mine, theirs = socket.socketpair()
            self._relays.append(Relay(theirs, socket.socket(fileno=link.descriptor)))
            links[index] = Link(link.place, link.lane, mine.detach())

    def drip(self) -> None:
        for relay in self._relays:
            relay.piece_bytes = 1

    def delay(self, seconds: float) -> None:
        for relay in self._relays:
            relay.delay_s = seconds

    def vanish(self) -> None:
        os.kill(self._pid, signal.SIGSTOP)

    def reset(self) -> None:
        os.kill(self._pid, signal.SIGKILL)

    @property
    def _pid(self) -> int:
        return self._pids[0]

    @property
    def _pids(self) -> list[int]:
        return [plane._carrier.pid for plane in self._connector.planes if isinstance(plane, GlooPlane)]

    def close(self) -> None:
        for relay in self._relays:
            relay.join()
        deadline = time.monotonic() + _END_S
        while left := [pid for pid in self._pids if psutil.pid_exists(pid)]:
            assert time.monotonic() < deadline, f"{left} still run Gloo"
            time.sleep(0.01)


def gloo(server: GlooServer) -> PlaneMaker:
    """A process with Gloo for each host; all of them are forks of one server, which loads torch once."""

    def make(shape: Shape, silent_s: float = 20.0, troubled: bool = False, address: str = _ADDRESS) -> Made:
        connector = _Connector(silent_s, server, address=address)
        trouble = _GlooTrouble(connector) if troubled else None
        return Made(World(shape, connector), trouble)

    return make
