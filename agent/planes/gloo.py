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
from collections.abc import Callable, Sequence

from horovod import native
from horovod.agent.core import events as ev
from horovod.agent.planes.links import Link, LinkFailed
from horovod.agent.planes.tcp import TcpOptions, TcpPlane

__all__ = ["GlooCarrier", "GlooPlane"]

_CHILD = "horovod.agent.planes.gloo_child"
_END_S = 2.0  # the child ends itself in half of that
_WORD_BYTES = 4096


class GlooCarrier:
    """The child, from its start on.  ``links`` are its ends of this agent: whoever takes them out of the list owns them."""

    def __init__(self, command: ev.PlaneOpen, links: list[Link]) -> None:
        """Starts it; the links to the other agents become the child's, even when this raises."""
        self._place = command.place
        self.links: list[Link] = []
        self._control, theirs = socket.socketpair()
        self._control.setblocking(False)
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
            word = await asyncio.wait_for(asyncio.get_running_loop().sock_recv(self._control, _WORD_BYTES), limit_s)
        except asyncio.TimeoutError:
            raise LinkFailed(self._place, f"Gloo did not connect with all hosts within {limit_s:g} s") from None
        except OSError as error:
            raise LinkFailed(self._place, f"the process that runs Gloo is gone: {error}") from error
        if not word:
            raise LinkFailed(self._place, self.epitaph())
        if word != b"ready":
            raise LinkFailed(self._place, word.decode(errors="replace"))

    def epitaph(self) -> str:
        """What became of a child that ended by itself; empty while it runs.

        The kernel closes a dead process's descriptors in order: this one, its lowest, before those that the net sees.
        """
        try:
            if self._control.recv(1):
                return ""
        except BlockingIOError:
            return ""
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
        """When our own child is gone, every other host looks lost: it is this one that is."""
        epitaph = self._carrier.epitaph()
        return super()._lost(self._place, epitaph) if epitaph else super()._lost(place, text)

    def close(self) -> None:
        """Ends the connections, then the child."""
        super().close()
        self._carrier.end()
