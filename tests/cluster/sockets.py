"""Small helpers of the self tests: connections between hosts, and what is heard on them."""

from __future__ import annotations

import select
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.cluster.hosts import Host

LIMIT_S = 20.0
SILENCE_S = 0.2  # a sample of a silence that would last for ever


def listen(host: Host, address: str, port: int = 0) -> socket.socket:
    """A listening socket of this host."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return host.inside(lambda: socket.create_server((address, port), family=family))


def connect(host: Host, address: str, port: int, timeout_s: float = LIMIT_S) -> socket.socket:
    """A connection from this host."""
    return host.inside(lambda: socket.create_connection((address, port), timeout_s))


@contextmanager
def connection(client: Host, server: Host, address: str) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends of a connection to an address of the server."""
    with listen(server, address) as listener, connect(client, address, listener.getsockname()[1]) as near:
        far, _ = listener.accept()
        with far:
            far.settimeout(LIMIT_S)
            yield near, far


def receive(source: socket.socket, count: int) -> bytes:
    """So many bytes, or fewer if the other side ends."""
    received = bytearray()
    while len(received) < count and (data := source.recv(count - len(received))):
        received += data
    return bytes(received)


def reaches(client: Host, server: Host, address: str) -> bool:
    """Whether bytes go there and come back."""
    with connection(client, server, address) as (near, far):
        near.sendall(b"ping")
        far.sendall(receive(far, 4))
        return receive(near, 4) == b"ping"


def meets_silence(client: Host, server: Host, address: str) -> bool:
    """Whether an attempt to connect gets no answer at all, for a while; an error is one."""
    with listen(server, address) as listener:
        try:
            connect(client, address, listener.getsockname()[1], SILENCE_S).close()
        except TimeoutError:
            return True
    return False


def hears_nothing(*ends: socket.socket) -> bool:
    """Neither bytes nor an end nor an error for a while."""
    poll = select.poll()
    for end in ends:
        poll.register(end, select.POLLIN | select.POLLRDHUP)
    return poll.poll(SILENCE_S * 1000) == []
