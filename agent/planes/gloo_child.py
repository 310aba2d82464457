"""The program that an agent starts for the plane ``gloo``: loads torch once, then forks a process for each epoch.

An epoch's process passes bytes between socket pairs and Gloo until its agent ends it.  It gets this agent's place in the ring, and
for each other place a *link* and a *lane*.  Links are connections to the other agents that have proved the key of the epoch; over
them these processes tell each other where Gloo listens.  What comes in on a lane goes to the other agent's process, and from there
to its lane.  On its *control* the agent hears lines: ``ready PID``, ``lost PLACE REASON``, ``here`` in answer to a byte, and from
the parent ``died HOW``.  When the agent closes its end, the process has a moment to let out what there is; the parent kills one
that takes longer.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

__all__ = ["LinkStore", "Pumps", "main"]

_TAG = 1
_HEADER_BYTES = 8  # how many bytes follow in a message; 0: nothing follows any more
_MESSAGE_BYTES = 256 << 10
_IN_FLIGHT = 2
_LONGEST_LINE = 1 << 16
_FOREVER = timedelta(days=365)  # the agents' nets watch each other; Gloo must not end what is merely quiet
_FAREWELL_S = 1.0
_LONGEST_REASON = 150
_MOST_DESCRIPTORS = 253  # that one message may carry


class LinkStore(dist.Store):  # type: ignore[name-defined,misc]
    """What Gloo must know to connect: each child tells all others what it sets."""

    def __init__(self, links: Sequence[socket.socket]) -> None:
        super().__init__()
        self._links = links
        self._values: dict[str, bytes] = {}
        self._changed = threading.Condition()
        for link in links:
            threading.Thread(target=self._listen, args=(link,), name="gloo-store", daemon=True).start()

    def _listen(self, link: socket.socket) -> None:
        with link.makefile("rb") as lines:
            while (line := lines.readline(_LONGEST_LINE)).endswith(b"\n"):
                key, value = json.loads(line)
                self._put(key, bytes.fromhex(value))

    def _put(self, key: str, value: bytes) -> None:
        with self._changed:
            self._values[key] = value
            self._changed.notify_all()

    def set(self, key: str, value: Any) -> None:
        """Here and at all others."""
        self._put(key, bytes(value))
        line = json.dumps([key, bytes(value).hex()]).encode() + b"\n"
        for link in self._links:
            link.sendall(line)

    def get(self, key: str) -> bytes:
        """Waits for the value; the agent limits how long."""
        self.wait([key])
        return self._values[key]

    def wait(self, keys: Sequence[str], timeout: timedelta = _FOREVER) -> None:
        """Until all of them have a value."""
        with self._changed:
            self._changed.wait_for(lambda: all(key in self._values for key in keys))


class Pumps:
    """Carries bytes between lanes and Gloo.  ``say`` tells the agent, before a lane ends, that the other side has ended it."""

    def __init__(self, group: Any, say: Callable[[str], None]) -> None:
        self._group, self._say = group, say
        self._kept: list[Any] = []  # buffers that Gloo may write to as long as it lives

    def start(self, lanes: Mapping[int, socket.socket]) -> list[threading.Thread]:
        """Two threads for each lane."""
        pumps = [
            threading.Thread(target=pump, args=(place, lane), daemon=True)
            for place, lane in lanes.items()
            for pump in (self.send, self.receive)
        ]
        for pump in pumps:
            pump.start()
        return pumps

    def send(self, place: int, lane: socket.socket) -> None:
        """From the lane to the other agent, and the lane's end too."""
        buffers = _buffers()
        works: list[Any] = [None] * _IN_FLIGHT
        count, turn = 1, 0
        try:
            while count:
                if works[turn] is not None:
                    works[turn].wait()
                view = buffers[turn].numpy().data
                count = _take(lane, view[_HEADER_BYTES:])
                view[:_HEADER_BYTES] = count.to_bytes(_HEADER_BYTES, "little")
                works[turn] = self._group.send([buffers[turn][: _HEADER_BYTES + count]], place, _TAG)
                turn = (turn + 1) % _IN_FLIGHT
            for work in works:
                if work is not None:
                    work.wait()
        except RuntimeError as error:
            self._break(place, lane, error)

    def receive(self, place: int, lane: socket.socket) -> None:
        """From the other agent to the lane, and its end too.  What the agent takes no more is dropped."""
        buffers = _buffers()
        works = [self._group.recv([buffer], place, _TAG) for buffer in buffers]
        self._kept.append((buffers, works))
        turn = 0
        try:
            while True:
                works[turn].wait()
                view = buffers[turn].numpy().data
                count = int.from_bytes(view[:_HEADER_BYTES], "little")
                if not count:
                    self._say(f"lost {place} it closed the connection")
                    return _shutdown(lane, socket.SHUT_WR)
                _give(lane, view[_HEADER_BYTES : _HEADER_BYTES + count])
                works[turn] = self._group.recv([buffers[turn]], place, _TAG)
                turn = (turn + 1) % _IN_FLIGHT
        except RuntimeError as error:
            self._break(place, lane, error)

    def _break(self, place: int, lane: socket.socket, error: RuntimeError) -> None:
        said = str(error).partition("] ")[2] or str(error)  # without the place in Gloo's source
        self._say(f"lost {place} Gloo: {said.partition('. ')[0][:_LONGEST_REASON]}".replace("\n", " "))
        _shutdown(lane, socket.SHUT_RDWR)


def _buffers() -> list[torch.Tensor]:
    return [torch.empty(_HEADER_BYTES + _MESSAGE_BYTES, dtype=torch.uint8) for _ in range(_IN_FLIGHT)]


def _take(lane: socket.socket, view: memoryview) -> int:
    try:
        return lane.recv_into(view)
    except ConnectionError:
        return 0


def _give(lane: socket.socket, view: memoryview) -> None:
    with contextlib.suppress(OSError):
        lane.sendall(view)


def _shutdown(lane: socket.socket, how: int) -> None:
    with contextlib.suppress(OSError):
        lane.shutdown(how)


def _connect(place: int, links: dict[int, socket.socket]) -> Any:
    """The group of all agents' children.  Gloo listens where the other agents have reached this one."""
    for link in links.values():
        link.setblocking(True)
    address = links[min(links)].getsockname()[0].removeprefix("::ffff:")
    gloo: Any = dist.ProcessGroupGloo
    options = gloo._Options()
    options._devices = [gloo.create_device(hostname=address)]
    options._timeout = _FOREVER
    return gloo(LinkStore(list(links.values())), place, len(links) + 1, options)


def _serve(
    place: int, links: dict[int, socket.socket], lanes: dict[int, socket.socket], control: socket.socket
) -> None:
    """An epoch's process, to its end."""
    speaking = threading.Lock()

    def say(text: str) -> None:
        with speaking, contextlib.suppress(OSError):
            control.sendall(text.encode() + b"\n")

    pumps: list[threading.Thread] = []

    def connect() -> None:
        try:
            group = _connect(place, links) if links else None
            if group is not None:
                # Whoever is ready watches the others: none may be before all are.
                group.barrier().wait()
        except Exception as error:
            say(f"Gloo could not connect: {str(error)[:_LONGEST_REASON]}".replace("\n", " "))
            os._exit(1)
        pumps.extend(Pumps(group, say).start(lanes))
        say(f"ready {os.getpid()}")

    threading.Thread(target=connect, daemon=True).start()
    while control.recv(1):  # the agent asks whether it still runs
        say("here")
    until = time.monotonic() + _FAREWELL_S
    for pump in pumps:
        pump.join(max(0.0, until - time.monotonic()))
    os._exit(0)  # Gloo's threads can't be stopped, and one that connects neither


@dataclass
class _Fork:
    """An epoch's process; ``kill_at`` once the agent has closed its control."""

    pid: int
    control: socket.socket
    kill_at: float | None = None


class _Forks:
    """All processes that live, by a descriptor that is readable once they do not."""

    def __init__(self) -> None:
        self._forks: dict[int, _Fork] = {}

    def __bool__(self) -> bool:
        return bool(self._forks)

    def add(self, words: bytes, descriptors: list[int]) -> None:
        """For an epoch; the agent's word and descriptors say what it has to do."""
        place, *others = json.loads(words)
        control, *ends = (socket.socket(fileno=descriptor) for descriptor in descriptors)
        links, lanes = dict(zip(others, ends[::2], strict=True)), dict(zip(others, ends[1::2], strict=True))
        pid = os.fork()
        if not pid:
            try:
                self._forget_all()
                _serve(place, links, lanes, control)
            finally:
                os._exit(1)
        for end in ends:
            end.close()
        self._forks[os.pidfd_open(pid)] = _Fork(pid, control)

    def _forget_all(self) -> None:
        """In a fork: what belongs to the others."""
        os.close(0)
        for descriptor, fork in self._forks.items():
            os.close(descriptor)
            fork.control.close()

    def watch(self, poll: select.poll) -> int | None:
        """What to look for, and for how many milliseconds."""
        for descriptor, fork in self._forks.items():
            poll.register(descriptor, select.POLLIN)
            if fork.kill_at is None:
                poll.register(fork.control, 0)  # its hangup
        dying = [fork.kill_at for fork in self._forks.values() if fork.kill_at is not None]
        return max(0, int((min(dying) - time.monotonic()) * 1000) + 1) if dying else None

    def look(self, seen: Mapping[int, int]) -> None:
        """Takes leave of the dead, and ends who should be."""
        for descriptor, fork in list(self._forks.items()):
            if fork.control.fileno() in seen:
                fork.kill_at = time.monotonic() + 2 * _FAREWELL_S
            if descriptor in seen:
                self._bury(descriptor)
            elif fork.kill_at is not None and fork.kill_at <= time.monotonic():
                os.kill(fork.pid, signal.SIGKILL)  # not waited for yet: nobody else can have this number

    def _bury(self, descriptor: int) -> None:
        fork = self._forks.pop(descriptor)
        os.close(descriptor)
        code = os.waitstatus_to_exitcode(os.waitpid(fork.pid, 0)[1])
        how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
        with contextlib.suppress(OSError):
            fork.control.sendall(f"died {how}\n".encode())
        fork.control.close()


def main() -> None:
    """Until the agent is gone and all processes have ended."""
    agent, forks, is_there = socket.socket(fileno=0), _Forks(), True
    while is_there or forks:
        poll = select.poll()
        if is_there:
            poll.register(agent, select.POLLIN)
        seen = dict(poll.poll(forks.watch(poll)))
        forks.look(seen)
        if is_there and agent.fileno() in seen:
            words, descriptors, _, _ = socket.recv_fds(agent, _LONGEST_LINE, _MOST_DESCRIPTORS)
            is_there = bool(words)
            if words:
                forks.add(words, list(descriptors))


if __name__ == "__main__":
    main()
