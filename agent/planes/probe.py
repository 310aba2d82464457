"""How long a word to another agent and its answer take, over the port where its data come in.

A probe looks like a greeting of another kind: the listener sends its nonce back, several times on one connection, and knows nothing
else of who asks.  The shortest of the answers counts: the others had to wait for something.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
import time
from collections.abc import Sequence

from horovod.agent.core.values import Host
from horovod.agent.planes import handshake, sockets

__all__ = ["answer_probes", "measure", "round_trip_s"]

_WORDS = 5
_HEAD_START_S = 0.25
_LIMIT_S = 3.0  # for one agent, connecting included


async def answer_probes(sock: socket.socket, first: bytes, limit_s: float) -> None:
    """The listening side, from the first probe on; the caller closes the socket."""
    await sockets.send(sock, handshake.echo(first))
    for _ in range(1, _WORDS):
        probe = await asyncio.wait_for(sockets.receive(sock, handshake.GREETING_BYTES), limit_s)
        await sockets.send(sock, handshake.echo(probe))


async def round_trip_s(addresses: Sequence[str]) -> float:
    """To the first of the addresses that can be reached; OSError when none can, Refused when something else listens."""
    _, sock = await sockets.connect_first(addresses, _HEAD_START_S, {})
    try:
        return min([await _word(sock) for _ in range(_WORDS)])
    finally:
        sock.close()


async def _word(sock: socket.socket) -> float:
    probe = handshake.probe(secrets.token_bytes(handshake.NONCE_BYTES))
    start = time.monotonic()
    await sockets.send(sock, probe)
    answered = await sockets.receive(sock, handshake.NONCE_BYTES)
    took_s = time.monotonic() - start
    if answered != handshake.echo(probe):
        raise handshake.Refused("it does not answer as an agent of this version of hvd does")
    return took_s


async def measure(peers: Sequence[Host]) -> dict[str, float]:
    """By agent, one after the other, so that they don't slow each other; who can't be reached in time is missing."""
    found = {}
    for peer in peers:
        try:
            found[peer.agent] = await asyncio.wait_for(round_trip_s(peer.addresses), _LIMIT_S)
        except (OSError, ValueError, asyncio.TimeoutError, handshake.Refused):
            continue
    return found
