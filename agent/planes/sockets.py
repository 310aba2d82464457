"""TCP sockets of the data plane: addresses, options, and exact reads with a time limit."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
from collections.abc import Sequence

import psutil

__all__ = [
    "accept",
    "advertised",
    "connect",
    "connect_first",
    "join_address",
    "listen",
    "receive",
    "send",
    "source_address",
    "split_address",
]

_BACKLOG = 1024
_USER_TIMEOUT_MS = 10_000


def split_address(address: str) -> tuple[str, int]:
    """``host:port`` or ``[v6]:port``; ValueError with advice when it is neither."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65535 or not host:
        raise ValueError(f"{address!r} is no address: write host:port, or [v6 address]:port")
    return host.strip("[]"), int(port)


def join_address(host: str, port: int) -> str:
    """``host:port``, with brackets where the host needs them."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _prepare(sock: socket.socket) -> socket.socket:
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _USER_TIMEOUT_MS)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    return sock


def listen(host: str, ports: range = range(1)) -> socket.socket:
    """Listens on a port of the range at the host, "" for all addresses; OSError when none is free."""
    failure: OSError | None = None
    for port in ports:
        try:
            return _listen_at(host, port)
        except OSError as error:
            failure = error
    where = f"port {ports[0]}" if len(ports) == 1 else f"a port from {ports[0]} to {ports[-1]}"
    raise OSError(f"can't listen at {host or 'any address'}, {where}: {failure}. Choose others with --data-ports.")


def _listen_at(host: str, port: int) -> socket.socket:
    if not host and socket.has_dualstack_ipv6():
        sock = socket.create_server(("", port), family=socket.AF_INET6, backlog=_BACKLOG, dualstack_ipv6=True)
    else:
        family, _, _, _, where = socket.getaddrinfo(host or "0.0.0.0", port, type=socket.SOCK_STREAM)[0]
        sock = socket.create_server(where[:2], family=family, backlog=_BACKLOG)
    sock.setblocking(False)
    return sock


def advertised(port: int, first: str = "", interface: str = "") -> tuple[str, ...]:
    """Addresses of this host for others to try, best first: ``first``, then routable ones, then loopback.

    ``interface`` leaves only that one's addresses; ValueError when there is none such.
    """
    found = psutil.net_if_addrs()
    if interface:
        if interface not in found:
            raise ValueError(f"There is no network interface {interface!r}; there are: {', '.join(sorted(found))}.")
        found = {interface: found[interface]}
    hosts = [
        item.address for items in found.values() for item in items if item.family in (socket.AF_INET, socket.AF_INET6)
    ]
    usable = [host for host in hosts if "%" not in host]  # link-local addresses mean nothing to another host
    usable.sort(key=lambda host: (host != first, ipaddress.ip_address(host).is_loopback, ":" in host))
    return tuple(join_address(host, port) for host in dict.fromkeys(usable))


def source_address(host: str, port: int) -> str:
    """The address of this host that packets to the other one leave from; "" when there is no way.  Nothing is sent."""
    for family, kind, protocol, _, where in socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM):
        with socket.socket(family, kind, protocol) as sock, contextlib.suppress(OSError):
            sock.connect(where)
            return str(sock.getsockname()[0])
    return ""


async def connect(address: str) -> socket.socket:
    """A connection; OSError when there is none."""
    loop = asyncio.get_running_loop()
    host, port = split_address(address)
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    failure: OSError = OSError(f"{host} has no address")
    for family, kind, protocol, _, where in found:
        sock = socket.socket(family, kind, protocol)
        try:
            _prepare(sock)
            await loop.sock_connect(sock, where)
        except OSError as error:
            failure = error
            sock.close()
        except BaseException:
            sock.close()
            raise
        else:
            return sock
    raise failure


async def connect_first(
    addresses: Sequence[str], head_start_s: float, failures: dict[str, str]
) -> tuple[str, socket.socket]:
    """The first address that can be connected with; each has a head start over the next.

    What became of others is in ``failures``; OSError when none is left.
    """
    loop, left = asyncio.get_running_loop(), list(addresses)
    tries: dict[asyncio.Task[socket.socket], str] = {}
    try:
        while left or tries:
            if left:
                address = left.pop(0)
                failures[address] = "no answer"
                tries[loop.create_task(connect(address))] = address
            limit = head_start_s if left else None
            done, _ = await asyncio.wait(tries, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                address, error = tries[task], task.exception()
                if error is None:
                    del tries[task]
                    return address, task.result()
                failures[tries.pop(task)] = str(error)
        raise OSError("no address can be connected with")
    finally:
        await _give_up(list(tries))


async def _give_up(tries: Sequence[asyncio.Task[socket.socket]]) -> None:
    for task in tries:
        task.cancel()
    for outcome in await asyncio.gather(*tries, return_exceptions=True):
        if isinstance(outcome, socket.socket):
            outcome.close()


async def accept(listener: socket.socket) -> socket.socket:
    """The next connection."""
    sock, _ = await asyncio.get_running_loop().sock_accept(listener)
    with contextlib.suppress(OSError):  # it may be gone already, which the first read tells
        _prepare(sock)
    return sock


async def receive(sock: socket.socket, count: int) -> bytes:
    """Exactly that many bytes; ConnectionError at an early end."""
    loop = asyncio.get_running_loop()
    parts = bytearray()
    while len(parts) < count:
        part = await loop.sock_recv(sock, count - len(parts))
        if not part:
            raise ConnectionResetError("it closed the connection")
        parts += part
    return bytes(parts)


async def send(sock: socket.socket, data: bytes) -> None:
    """All of it."""
    await asyncio.get_running_loop().sock_sendall(sock, data)
