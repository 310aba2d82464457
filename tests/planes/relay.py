"""Passes bytes on between two stream sockets, in small pieces or late."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

__all__ = ["Relay"]

_READ_BYTES = 1 << 16


class Relay:
    """Owns both ends; over when both have ended.  ``piece_bytes`` and ``delay_s`` hold for what comes from then on."""

    def __init__(self, one: socket.socket, other: socket.socket) -> None:
        self.piece_bytes, self.delay_s = _READ_BYTES, 0.0
        self._ends = (one, other)
        self._threads = [
            threading.Thread(target=self._carry, args=pair, name="relay") for pair in ((one, other), (other, one))
        ]
        for thread in self._threads:
            thread.start()

    def _carry(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(_READ_BYTES):
                time.sleep(self.delay_s)
                while data:
                    data = data[sink.send(data[: self.piece_bytes]) :]
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)
        with contextlib.suppress(OSError):
            source.shutdown(socket.SHUT_RD)

    def join(self) -> None:
        """When both ends are over."""
        for thread in self._threads:
            thread.join()
        for end in self._ends:
            end.close()
