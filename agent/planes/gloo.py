"""The plane that moves data through torch's Gloo: the net's frames, carried by a process that can be killed.

Gloo can't abort and torch is large, so neither comes into the agent.  A child (``gloo_child.py``) has torch loaded, and forks a
process for each epoch.  That one holds one socket pair for each other agent; what the net writes to it goes to that agent as Gloo
messages.  Frames have tags of their own, so Gloo needs no order of launches, every dtype and collective is the net's, and results
have the bits that the plane ``tcp`` gives.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from horovod import native
from horovod.agent.core import events as ev
from horovod.agent.planes.links import Link, LinkFailed
from horovod.agent.planes.tcp import TcpOptions, TcpPlane

__all__ = ["ASK", "MOST_HOSTS", "GlooCarrier", "GlooPlane", "GlooServer"]

MOST_HOSTS = 127  # whose descriptors one message can carry
ASK = b"?"  # to the child, which says that it is here
_HERE = b"here"
_STANDS_STILL = (
    "the process that runs Gloo for this host does not answer: it was stopped, or its host has no time for it"
)
_CHILD = "horovod.agent.planes.gloo_child"
_ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}  # it computes nothing, and forks
_END_S = 5.0
_READ_BYTES = 4096
_DYING_S = 0.5  # from the end of its connections to the word of its end
_ANSWER_S = 1.0  # for one that lives to say so


class GlooServer:
    """The child that has torch loaded; outlives epochs and jobs, and is started again when it is gone."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        own = {name: value for name, value in environment.items() if not name.startswith("HVD_TOKEN")}
        self._environment = {**own, **_ONE_THREAD}
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    def start(self) -> None:
        """Loads torch, in the background."""
        if self._process is not None and self._process.poll() is None:
            return
        self.close()
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", _CHILD],
                stdin=theirs.fileno(),
                stdout=2,
                env=self._environment,
                start_new_session=True,  # a Ctrl-C is for the agent, which lets it finish
            )

    def fork(self, place: int, others: Sequence[int], descriptors: Sequence[int]) -> None:
        """A process for an epoch; the descriptors stay the caller's."""
        self.start()
        assert self._control is not None
        try:
            socket.send_fds(self._control, [json.dumps([place, *others]).encode()], descriptors)
        except OSError as error:
            raise LinkFailed(place, f"the process that runs Gloo can't be reached: {error}") from error

    def close(self) -> None:
        """It ends when the last process of an epoch has.  Does not wait."""
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._process is not None:
            threading.Thread(target=_reap, args=(self._process,), name="gloo-reaper", daemon=True).start()
            self._process = None


def _reap(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class GlooCarrier:
    """An epoch's process, from its start on.  ``links`` are this agent's ends: whoever takes them out of the list owns them."""

    def __init__(self, server: GlooServer, command: ev.PlaneOpen, links: list[Link]) -> None:
        """Starts it; the links to the other agents become the process's, also when this raises LinkFailed."""
        self._place, self._heard = command.place, b""
        self.links: list[Link] = []
        self.pid = 0  # once it is ready
        self._control, theirs = socket.socketpair()
        self._control.setblocking(False)
        given = [theirs.detach()]
        try:
            if len(links) >= MOST_HOSTS:
                raise LinkFailed(self._place, f"the plane gloo joins at most {MOST_HOSTS} hosts: use --plane tcp")
            for link in links:
                mine, other = (end.detach() for end in socket.socketpair())
                self.links.append(Link(link.place, 0, mine))
                given += [os.dup(link.descriptor), other]
            server.fork(self._place, [link.place for link in links], given)
        except BaseException:
            self.end()
            raise
        finally:
            for descriptor in [*given, *(link.descriptor for link in links)]:
                os.close(descriptor)
            links.clear()

    async def ready(self, limit_s: float) -> None:
        """Until Gloo has connected all agents; LinkFailed, which blames this agent, when it can't."""
        try:
            await asyncio.wait_for(self._first_word(), limit_s)
        except asyncio.TimeoutError:
            raise LinkFailed(self._place, f"Gloo did not connect with all hosts within {limit_s:g} s") from None
        word = self._heard.partition(b"\n")[0]
        kind, _, pid = word.decode(errors="replace").partition(" ")
        if kind != "ready":
            raise LinkFailed(self._place, self._epitaph() if kind == "died" else word.decode(errors="replace"))
        self.pid = int(pid)

    async def _first_word(self) -> None:
        while b"\n" not in self._heard:
            part = await asyncio.get_running_loop().sock_recv(self._control, _READ_BYTES)
            self._heard += part or b"died\n"

    def judge(self, place: int, text: str) -> tuple[int, str]:
        """Who is lost, and why, when the net has lost the agent at ``place``.

        The child tells before it ends a connection.  One that ends without a word ends because the child does.  Where all
        is silent, the child is asked whether it still runs: one that does not would make every other agent silent.
        """
        self._hear(_DYING_S, lambda: self._said("lost", str(place)) is not None)
        said = self._said("lost", str(place))
        if said is not None:
            return place, said
        if self._said("died") is not None:
            return self._place, self._epitaph()
        if self._answers():
            return place, text
        return self._place, self._epitaph() if self._said("died") is not None else _STANDS_STILL

    def _answers(self) -> bool:
        """Whether the child still does something."""
        self._heard = b"\n".join(line for line in self._heard.split(b"\n") if line != _HERE)
        try:
            self._control.settimeout(_ANSWER_S)
            self._control.sendall(ASK)
        except OSError:
            return False
        self._hear(_ANSWER_S, lambda: self._said(_HERE.decode()) is not None)
        return self._said(_HERE.decode()) is not None

    def _hear(self, limit_s: float, is_enough: Callable[[], bool]) -> None:
        """What the child says, until it is enough, or the time is over, or it is dead."""
        deadline = time.monotonic() + limit_s
        while not is_enough() and self._said("died") is None:
            self._control.settimeout(max(0.001, deadline - time.monotonic()))
            try:
                self._heard += self._control.recv(_READ_BYTES) or b"died\n"
            except TimeoutError:
                return

    def _said(self, *words: str) -> str | None:
        """The rest of the first line that begins so."""
        begin = " ".join(words)
        lines = (
            line for line in self._heard.decode(errors="replace").splitlines() if f"{line} ".startswith(f"{begin} ")
        )
        return next((line[len(begin) :].strip() for line in lines), None)

    def _epitaph(self) -> str:
        how = self._said("died") or "is gone"
        return f"the process that runs Gloo for this host {how}; its last words are in the log of this agent"

    def end(self) -> None:
        """Lets it send what it has, for a moment; its parent makes sure that it ends.  Does not wait."""
        self._control.close()
        while self.links:
            os.close(self.links.pop().descriptor)


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
