"""Round trips between agents: measured at the port where data come in, without disturbing who belongs there."""

from __future__ import annotations

import asyncio
import dataclasses
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from horovod.agent.core.values import Host
from horovod.agent.planes import handshake, probe, sockets
from horovod.agent.planes.links import Links

from tests.aio import in_loop
from tests.cluster.harness import Forwarder

pytestmark = [pytest.mark.usefixtures("no_leaks"), pytest.mark.timeout(60)]
SLOW_S = 0.05


@asynccontextmanager
async def listening() -> AsyncIterator[Links]:
    links = Links(sockets.listen("127.0.0.1"), 1, 5.0)
    try:
        yield links
        while links._visits:  # whoever asked is served to the end
            await asyncio.sleep(0)
    finally:
        await links.close()


def host(name: str, *ports: int) -> Host:
    return Host(name, name, tuple(f"127.0.0.1:{port}" for port in ports))


@in_loop
async def test_a_slow_way_is_seen_and_the_others_are_not_touched_by_it() -> None:
    async with listening() as links:
        slow = Forwarder([("127.0.0.1", 0)], lambda _client: ("127.0.0.1", links.port))
        try:
            slow.delay_s = SLOW_S
            found = await probe.measure([host("near", links.port), host("far", slow.port), host("too", links.port)])
        finally:
            slow.close()
    assert list(found) == ["near", "far", "too"]
    assert found["far"] >= 2 * SLOW_S
    assert max(found["near"], found["too"]) < SLOW_S


@in_loop
async def test_who_can_not_be_reached_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "_LIMIT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent, socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        async with listening() as links:
            peers = [
                host("silent", silent.getsockname()[1]),
                host("closed", closed.getsockname()[1]),
                dataclasses.replace(host("odd"), addresses=("no address",)),
                host("none"),
                host("here", closed.getsockname()[1], links.port),
            ]
            assert list(await probe.measure(peers)) == ["here"]


@in_loop
async def test_somebody_else_who_listens_is_no_agent() -> None:
    with sockets.listen("127.0.0.1") as listener:
        port = listener.getsockname()[1]
        asking = asyncio.ensure_future(probe.round_trip_s([f"127.0.0.1:{port}"]))
        with await sockets.accept(listener) as sock:
            await sockets.receive(sock, handshake.GREETING_BYTES)
            await sockets.send(sock, b"x" * handshake.NONCE_BYTES)
            with pytest.raises(handshake.Refused, match="does not answer as an agent"):
                await asking


@in_loop
async def test_a_visitor_who_begins_with_a_probe_gets_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    async with listening() as links:
        sock = await sockets.connect(f"127.0.0.1:{links.port}")
        asked = handshake.probe(b"n" * handshake.NONCE_BYTES)
        await sockets.send(sock, asked)
        assert await sockets.receive(sock, handshake.NONCE_BYTES) == b"n" * handshake.NONCE_BYTES
        greeting = handshake.Greeting(1, 1, 0, 0, b"n" * handshake.NONCE_BYTES)
        await sockets.send(sock, greeting.pack())
        with pytest.raises(ConnectionError):
            await sockets.receive(sock, 1)
        sock.close()
    assert "does not go on as it began" in caplog.text
