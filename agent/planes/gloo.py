"""The plane that moves data through torch's Gloo: the net's frames, carried by a child process that can be killed.

Gloo can't abort and torch is large, so neither comes into the agent.  The child (``gloo_child.py``) holds one socket pair for each
other agent; what the net writes to it goes to that agent as Gloo messages.  Frames have tags of their own, so Gloo needs no order
of launches, every dtype and collective is the net's, and results have the bits that the plane ``tcp`` gives.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence

from horovod import native
from horovod.agent.core import events as ev
from horovod.agent.planes.links import Link, LinkFailed
from horovod.agent.planes.tcp import TcpOptions, TcpPlane

__all__ = ["GlooCarrier", "GlooPlane"]

_CHILD = "horovod.agent.planes.gloo_child"
_END_S = 2.0  # the child ends itself in half of that
_READ_BYTES = 4096
_DYING_S = 0.2  # from the end of its connections to its own end


class GlooCarrier:
    """The child, from its start on.  ``links`` are its ends of this agent: whoever takes them out of the list owns them."""

    def __init__(self, command: ev.PlaneOpen, links: list[Link]) -> None:
        """Starts it; the links to the other agents become the child's, even when this raises."""
        self._place = command.place
        self.links: list[Link] = []
        self._control, theirs = socket.socketpair()
        self._control.setblocking(False)
        self._heard = b""
        lanes: dict[int, int] = {}
        try:
            for link in links:
                mine, lanes[link.place] = (end.detach() for end in socket.socketpair())
                self.links.append(Link(link.place, 0, mine))
            theirs_by_place = {link.place: link.descriptor for link in links}
            words = {"place": command.place, "links": theirs_by_place, "lanes": lanes}
            self._process = subprocess.Popen(
                [sys.executable, "-m", _CHILD, json.dumps(words)],
                stdin=theirs.fileno(),
                stdout=sys.stderr.fileno(),
                pass_fds=[*theirs_by_place.values(), *lanes.values()],
                start_new_session=True,  # a Ctrl-C is for the agent, which lets it finish
            )
        except BaseException:
            self._close_links()
            self._control.close()
            raise
        finally:
            theirs.close()
            for descriptor in [*lanes.values(), *(link.descriptor for link in links)]:
                os.close(descriptor)
            links.clear()

    @property
    def pid(self) -> int:
        """The child's."""
        return self._process.pid

    async def ready(self, limit_s: float) -> None:
        """Until Gloo has connected all agents; LinkFailed, which blames this agent, when it can't."""
        try:
            await asyncio.wait_for(self._first_word(), limit_s)
        except asyncio.TimeoutError:
            raise LinkFailed(self._place, f"Gloo did not connect with all hosts within {limit_s:g} s") from None
        word, _, self._heard = self._heard.partition(b"\n")
        if not word:
            raise LinkFailed(self._place, self._epitaph())
        if word != b"ready":
            raise LinkFailed(self._place, word.decode(errors="replace"))

    async def _first_word(self) -> None:
        while b"\n" not in self._heard:
            part = await asyncio.get_running_loop().sock_recv(self._control, _READ_BYTES)
            if not part:
                self._heard = b"\n"
            self._heard += part

    def judge(self, place: int, text: str) -> tuple[int, str]:
        """Who is lost, and why, when the net has lost the agent at ``place``.

        The child tells before it ends a connection.  One that ends without a word ends because the child does.
        """
        deadline = time.monotonic() + _DYING_S
        self._control.setblocking(True)
        while (said := self._said_of(place)) is None:
            self._control.settimeout(max(0.001, deadline - time.monotonic()))
            try:
                part = self._control.recv(_READ_BYTES)
            except TimeoutError:
                return place, text  # silence, or a broken frame
            if not part:
                return self._place, self._epitaph()
            self._heard += part
        return place, said

    def _said_of(self, place: int) -> str | None:
        for line in self._heard.decode(errors="replace").splitlines():
            kind, _, rest = line.partition(" ")
            which, _, text = rest.partition(" ")
            if kind == "lost" and which == str(place):
                return text
        return None

    def _epitaph(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_S)
        code = self._process.returncode
        how = (
            "is ending" if code is None else f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
        )
        return f"the process that runs Gloo for this host {how}; its last words are in the log of this agent"

    def end(self) -> None:
        """Lets it send what it has, for a moment, and makes sure that it ends.  Does not wait."""
        self._control.close()
        self._close_links()
        threading.Thread(target=self._reap, name="gloo-reaper", daemon=True).start()

    def _close_links(self) -> None:
        while self.links:
            os.close(self.links.pop().descriptor)

    def _reap(self) -> None:
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class GlooPlane(TcpPlane):
    """A net whose connections lead to the child.  The carrier is its own as soon as it is made; not when making it raises."""

    name = "gloo"

    def __init__(
        self,
        board: native.Board,
        arena_fds: Sequence[int],
        arena: native.Arena,
        command: ev.PlaneOpen,
        carrier: GlooCarrier,
        options: TcpOptions,
        post: Callable[[ev.Event], None],
    ) -> None:
        self._carrier = carrier
        super().__init__(board, arena_fds, arena, command, carrier.links, options, post)

    def _lost(self, place: int, text: str) -> ev.PlaneLost:
        return super()._lost(*self._carrier.judge(place, text))

    def close(self) -> None:
        """Ends the connections, then the child."""
        super().close()
        self._carrier.end()
