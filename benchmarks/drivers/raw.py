"""Ranks that send bytes over plain TCP sockets and do nothing else: what any allreduce over the same network is measured by.

An allreduce of S bytes over n hosts sends 2 (n - 1) / n S from each of them.  That is what a repetition sends to the next rank,
while as many come from the one before; two ranks use one connection in both directions.
"""

from __future__ import annotations

import argparse
import platform
import select
import socket
import time
from contextlib import suppress
from pathlib import Path

from benchmarks.cases import ITEMSIZE, Case, Unsupported
from benchmarks.drivers import Task

_LIMIT_S = 60.0
_STEP_S = 0.01


class Exchange:
    """Bytes out and bytes in at once."""

    def __init__(self, out: socket.socket, into: socket.socket, nbytes: int) -> None:
        self.out, self.into = out, into
        self.sent, self.received = memoryview(bytearray(b"\1") * nbytes), memoryview(bytearray(nbytes))

    def check(self) -> None:
        """What was sent arrives."""
        self.run(1)
        assert self.received == self.sent, "other bytes have arrived than were sent"

    def run(self, count: int) -> None:
        """Back to back."""
        for _ in range(count):
            self._once()

    def _once(self) -> None:
        to_send, to_come = self.sent, self.received
        waiting = select.poll()
        while to_send or to_come:
            with suppress(BlockingIOError):
                to_send = to_send[self.out.send(to_send) :] if to_send else to_send
            with suppress(BlockingIOError):
                while to_come:
                    got = self.into.recv_into(to_come)
                    assert got, "the other end has gone"
                    to_come = to_come[got:]
            if to_send or to_come:
                self._register(waiting, bool(to_send), bool(to_come))
                waiting.poll()

    def _register(self, waiting: select.poll, sends: bool, receives: bool) -> None:
        writes, reads = select.POLLOUT * sends, select.POLLIN * receives
        if self.out is self.into:
            waiting.register(self.out, writes | reads)
        else:
            waiting.register(self.out, writes)
            waiting.register(self.into, reads)


class RawDriver:
    """One rank; ``store`` is the stem of the files in which ranks say where they listen."""

    def __init__(self, rank: int, size: int, store: str, address: str) -> None:
        self.rank, self.size = rank, size
        with socket.create_server((address, 0)) as listener:
            self._tell(Path(f"{store}.{rank}"), listener)
            listener.settimeout(_LIMIT_S)
            self.out, self.into = self._connect(listener, store)
        for sock in {self.out, self.into}:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setblocking(False)

    def _tell(self, path: Path, listener: socket.socket) -> None:
        host, port = listener.getsockname()[:2]
        draft = path.with_suffix(f".{self.rank}.draft")
        draft.write_text(f"{host} {port}")
        draft.rename(path)

    def _connect(self, listener: socket.socket, store: str) -> tuple[socket.socket, socket.socket]:
        if self.size == 2 and self.rank == 0:
            only = listener.accept()[0]
            return only, only
        out = _call(Path(f"{store}.{(self.rank + 1) % self.size}"))
        return out, out if self.size == 2 else listener.accept()[0]

    def make(self, case: Case) -> Task:
        """Prepares a case; the tensors say how many bytes."""
        if case.kind != "blocking" or case.place != "plain":
            raise Unsupported(f"plain sockets have no {case.kind} in {case.place} memory")
        payload = ITEMSIZE[case.dtype] * sum(shape[0] for shape in case.shapes)
        return Exchange(self.out, self.into, 2 * (self.size - 1) * payload // self.size)

    def settle(self) -> None:
        """Nothing to do: what was to be sent is in the other end's kernel."""

    def versions(self) -> dict[str, str]:
        """The kernel's."""
        return {"kernel": platform.release()}

    def close(self) -> None:
        """Ends the connections."""
        self.out.close()
        self.into.close()


def _call(path: Path) -> socket.socket:
    deadline = time.monotonic() + _LIMIT_S
    while not path.exists():
        assert time.monotonic() < deadline, f"nobody has written {path}"
        time.sleep(_STEP_S)
    host, port = path.read_text().split()
    return socket.create_connection((host, int(port)), _LIMIT_S)


def connect(arguments: argparse.Namespace) -> RawDriver:
    """Meets the other ranks."""
    return RawDriver(arguments.rank, arguments.size, arguments.store, arguments.address)
