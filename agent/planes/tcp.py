"""The plane that moves data over TCP: an epoch's net on one board, and what it has to tell."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from horovod import native
from horovod.agent.core import events as ev
from horovod.agent.planes.links import Link

__all__ = ["TcpOptions", "TcpPlane"]

_EAGER_BYTES = 16 << 20  # what a peer may have sent that nobody here has asked for yet
_PING_MS = 1000


@dataclass(frozen=True, slots=True)
class TcpOptions:
    """``silent_s``: a peer that says nothing for so long is lost; ``algorithm``: as in NetSpec."""

    lanes: int = 2
    silent_s: float = 10.0
    algorithm: native.NetAlgorithm = native.NetAlgorithm.BY_SIZE


class TcpPlane:
    """Belongs to the running loop; ``post`` takes PlaneLost, PlaneAborted and Wanted events.

    Links leave the list ``links`` as this becomes their owner: what is left when it raises is still the caller's.
    """

    name = "tcp"

    def __init__(
        self,
        board: native.Board,
        arena_fds: Sequence[int],
        arena: native.Arena,
        command: ev.PlaneOpen,
        links: list[Link],
        options: TcpOptions,
        post: Callable[[ev.Event], None],
    ) -> None:
        self._epoch, self._place, self._post = command.epoch, command.place, post
        self._neighbours = {place: host.agent for place, host in enumerate(command.ring) if place != command.place}
        self._loop = asyncio.get_running_loop()
        spec = native.NetSpec(
            n_hosts=len(command.ring),
            my_host=command.place,
            lanes=options.lanes,
            eager_bytes=_EAGER_BYTES,
            ping_ms=_PING_MS,
            silent_ms=int(options.silent_s * 1000),
            algorithm=options.algorithm,
        )
        self._net = native.Net(board, arena_fds, arena, spec)
        try:
            while links:
                link = links.pop()
                self._net.add_peer(link.place, link.lane, link.descriptor)
            self._net.start()
        except native.NativeError:
            self._net.close()
            raise
        self._event_fd = self._net.event_fd
        self._loop.add_reader(self._event_fd, self._told)

    def _told(self) -> None:
        for event in self._net.events():
            if event.kind is native.NetEventKind.WANTED:
                self._post(ev.Wanted(event.plan_id, event.round))
            elif event.kind is native.NetEventKind.ABORT and event.host != self._place:
                self._post(ev.PlaneAborted(self._epoch, event.host, event.text))
            else:
                self._post(self._lost(event.host, event.text))

    def _lost(self, place: int, text: str) -> ev.PlaneLost:
        return ev.PlaneLost(self._epoch, place, text)

    def plan_add(self, offset: int, remote: ev.RemotePart) -> None:
        """Before any rank hears of the plan."""
        self._net.plan_add(offset, remote.ring, remote.member_hosts)

    def plan_remove(self, plan: int) -> bool:
        """False while a round of it is on its way."""
        return self._net.plan_remove(plan)

    def plan_limit(self, plan: int, limit: int) -> None:
        """Rounds from there on never finish: those that are open here are taken back, so that ranks can leave them."""
        self._net.plan_limit(plan, limit)

    def abort(self, text: str) -> None:
        """Every peer is told, and no round goes on."""
        self._net.abort(text)

    def stat(self) -> native.NetInfo | None:
        """Counters; None when the net is too busy to answer."""
        return self._net.stat()

    def times(self) -> list[native.NetTime]:
        """How long the stages of rounds took; empty when the net is too busy to answer."""
        return self._net.times()

    def neighbours(self) -> Iterator[tuple[str, native.NetPeerInfo]]:
        """Other agents and the connections to them; ends early when the net is too busy to answer."""
        for place, name in self._neighbours.items():
            info = self._net.peer_stat(place)
            if info is None:
                return
            yield name, info

    def close(self) -> None:
        """Ends the connections."""
        self._loop.remove_reader(self._event_fd)
        self._net.close()
