"""The program that an agent starts for the plane ``gloo``: passes bytes between socket pairs and Gloo, until its agent ends it.

``argv[1]`` is JSON: this agent's place in the ring, and for each other place the descriptors of a ``link`` and of a ``lane``.
Links are connections to the other agents that have proved the key of the epoch; over them the children tell each other where Gloo
listens.  What comes in on a lane goes to the other agent's child, and from there to its lane.  Descriptor 0 is the agent's:
``ready`` goes out once, and its end is ours.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

__all__ = ["LinkStore", "main", "receive_lane", "send_lane"]

log = logging.getLogger("horovod.agent.gloo")

_TAG = 1
_HEADER_BYTES = 8  # how many bytes follow in a message; 0: nothing follows any more
_MESSAGE_BYTES = 256 << 10
_IN_FLIGHT = 2
_LONGEST_LINE = 1 << 16
_FOREVER = timedelta(days=365)  # the agents' nets watch each other; Gloo must not end what is merely quiet
_FAREWELL_S = 1.0


class LinkStore(dist.Store):  # type: ignore[misc]
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


def send_lane(group: Any, place: int, lane: socket.socket) -> None:
    """From the lane to the other agent, to the lane's end, which is passed on."""
    buffers = [torch.empty(_HEADER_BYTES + _MESSAGE_BYTES, dtype=torch.uint8) for _ in range(_IN_FLIGHT)]
    works: list[Any] = [None] * _IN_FLIGHT
    count, turn = 1, 0
    try:
        while count:
            buffer, view = buffers[turn], memoryview(buffers[turn].numpy())
            if works[turn] is not None:
                works[turn].wait()
            count = _take(lane, view[_HEADER_BYTES:])
            view[:_HEADER_BYTES] = count.to_bytes(_HEADER_BYTES, "little")
            works[turn] = group.send([buffer[: _HEADER_BYTES + count]], place, _TAG)
            turn = (turn + 1) % _IN_FLIGHT
        for work in works:
            if work is not None:
                work.wait()
    except RuntimeError as error:
        _break(place, lane, error)


def receive_lane(group: Any, place: int, lane: socket.socket) -> None:
    """From the other agent to the lane, to the end that it passes on.  When nobody takes it any more it is dropped."""
    buffers = [torch.empty(_HEADER_BYTES + _MESSAGE_BYTES, dtype=torch.uint8) for _ in range(_IN_FLIGHT)]
    works = [group.recv([buffer], place, _TAG) for buffer in buffers]
    _kept.append((buffers, works))  # Gloo may write to them as long as it lives
    turn = 0
    try:
        while True:
            works[turn].wait()
            view = memoryview(buffers[turn].numpy())
            count = int.from_bytes(view[:_HEADER_BYTES], "little")
            if not count:
                _close_writing(lane, socket.SHUT_WR)
                return
            _give(lane, view[_HEADER_BYTES : _HEADER_BYTES + count])
            works[turn] = group.recv([buffers[turn]], place, _TAG)
            turn = (turn + 1) % _IN_FLIGHT
    except RuntimeError as error:
        _break(place, lane, error)


_kept: list[Any] = []


def _take(lane: socket.socket, view: memoryview) -> int:
    try:
        return lane.recv_into(view)
    except ConnectionError:
        return 0


def _give(lane: socket.socket, view: memoryview) -> None:
    try:
        lane.sendall(view)
    except OSError:
        return


def _break(place: int, lane: socket.socket, error: RuntimeError) -> None:
    """The agent learns by the end of the lane that the other one is lost."""
    log.warning("Gloo has lost the host at place %d of the ring: %s", place, str(error).partition(". ")[0])
    _close_writing(lane, socket.SHUT_RDWR)


def _close_writing(lane: socket.socket, how: int) -> None:
    try:
        lane.shutdown(how)
    except OSError:
        return


def _connect(place: int, links: dict[int, socket.socket]) -> Any:
    """The group of all agents' children.  Gloo listens where the other agents have reached this one."""
    address = links[min(links)].getsockname()[0].removeprefix("::ffff:")
    options = dist.ProcessGroupGloo._Options()
    options._devices = [dist.ProcessGroupGloo.create_device(hostname=address)]
    options._timeout = _FOREVER
    return dist.ProcessGroupGloo(LinkStore(list(links.values())), place, len(links) + 1, options)


def _sockets(descriptors: dict[str, int]) -> dict[int, socket.socket]:
    found = {int(place): socket.socket(fileno=descriptor) for place, descriptor in descriptors.items()}
    for sock in found.values():
        sock.setblocking(True)
    return found


def main() -> None:
    """Runs until the agent closes descriptor 0, then for a moment to let out what there is."""
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s")
    words = json.loads(sys.argv[1])
    control = socket.socket(fileno=0)
    links, lanes = _sockets(words["links"]), _sockets(words["lanes"])
    try:
        group = _connect(words["place"], links) if links else None
    except RuntimeError as error:
        control.sendall(f"Gloo could not connect: {error}".encode()[:2000])
        os._exit(1)
    pumps = [
        threading.Thread(target=pump, args=(group, place, lane), daemon=True)
        for place, lane in lanes.items()
        for pump in (send_lane, receive_lane)
    ]
    for pump in pumps:
        pump.start()
    control.sendall(b"ready")
    control.recv(1)
    until = time.monotonic() + _FAREWELL_S
    for pump in pumps:
        pump.join(max(0.0, until - time.monotonic()))
    os._exit(0)  # Gloo's threads can't be stopped


if __name__ == "__main__":
    main()
