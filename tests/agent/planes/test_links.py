"""Agents connect with each other, and with nobody else."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import resource
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

import pytest
from horovod.agent.core.values import Host
from horovod.agent.planes import handshake, sockets
from horovod.agent.planes.handshake import Greeting, Refused
from horovod.agent.planes.links import Link, LinkFailed, Links

from tests.aio import in_loop

pytestmark = [pytest.mark.usefixtures("no_leaks"), pytest.mark.timeout(60)]
KEY = b"k" * 32
LANES = 2


@asynccontextmanager
async def agents(count: int, open_s: float = 20.0) -> AsyncIterator[tuple[list[Links], tuple[Host, ...]]]:
    """Listening agents and the ring they form."""
    made = [Links(sockets.listen("127.0.0.1"), LANES, open_s) for _ in range(count)]
    ring = tuple(Host(f"a{i}", f"h{i}", (f"127.0.0.1:{links.port}",)) for i, links in enumerate(made))
    try:
        yield made, ring
    finally:
        for links in made:
            await links.close()


def close_all(links: Sequence[Link]) -> None:
    for link in links:
        os.close(link.descriptor)


@in_loop
async def test_everybody_is_connected_with_everybody_on_every_lane() -> None:
    async with agents(4) as (made, ring):
        found = await asyncio.gather(*(links.open(3, ring, place, KEY) for place, links in enumerate(made)))
        for place, mine in enumerate(found):
            wanted = {(other, lane) for other in range(4) if other != place for lane in range(LANES)}
            assert {(link.place, link.lane) for link in mine} == wanted
        ends = {(here, link.place, link.lane): link.descriptor for here, mine in enumerate(found) for link in mine}
        for (here, there, lane), descriptor in ends.items():
            os.write(descriptor, bytes([here, there, lane]))
        for (here, there, lane), descriptor in ends.items():
            sock = socket.socket(fileno=os.dup(descriptor))
            sock.setblocking(True)
            assert sock.recv(3) == bytes([there, here, lane])
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 10_000
            sock.close()
        for mine in found:
            close_all(mine)


@in_loop
async def test_an_early_connection_waits_for_the_epoch_to_be_heard_of() -> None:
    async with agents(2) as (made, ring):
        first = asyncio.ensure_future(made[1].open(1, ring, 1, KEY))
        while not made[0]._visits:  # it is there, and nobody has answered
            await asyncio.sleep(0)
        close_all(await made[0].open(1, ring, 0, KEY))
        close_all(await first)


@in_loop
async def test_an_address_that_swallows_packets_costs_a_head_start_once() -> None:
    loop = asyncio.get_running_loop()
    async with agents(2) as (made, ring), swallowing() as nowhere:
        host = dataclasses.replace(ring[0], addresses=(nowhere, *ring[0].addresses))
        for epoch, most in ((1, 5.0), (2, 0.2)):
            since = loop.time()
            ends = await asyncio.gather(
                *(links.open(epoch, (host, ring[1]), place, KEY) for place, links in enumerate(made))
            )
            assert loop.time() - since < most
            for mine in ends:
                close_all(mine)


@asynccontextmanager
async def swallowing() -> AsyncIterator[str]:
    """An address that answers nothing: its queue of connections is full."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full, socket.socket() as first, socket.socket() as second:
        for sock in (first, second):
            sock.setblocking(False)
            with suppress(BlockingIOError):
                sock.connect(full.getsockname())
        yield f"127.0.0.1:{full.getsockname()[1]}"


@in_loop
async def test_no_descriptors_left_is_no_end() -> None:
    async with agents(2) as (made, ring):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        stranger = socket.socket()
        stranger.setblocking(False)
        resource.setrlimit(resource.RLIMIT_NOFILE, (stranger.fileno() + 1, hard))
        try:
            with suppress(BlockingIOError):
                stranger.connect(("127.0.0.1", made[0].port))
            await asyncio.sleep(0.05)  # it is refused for want of a descriptor
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            stranger.close()
        ends = await asyncio.gather(*(links.open(1, ring, place, KEY) for place, links in enumerate(made)))
        for mine in ends:
            close_all(mine)


@in_loop
async def test_strangers_do_not_keep_others_out() -> None:
    async with agents(2) as (made, ring):
        made[0]._most_visits = 3
        strangers = [await sockets.connect(ring[0].addresses[0]) for _ in range(8)]
        ends = await asyncio.gather(*(links.open(1, ring, place, KEY) for place, links in enumerate(made)))
        for mine in ends:
            close_all(mine)
        for sock in strangers:
            sock.close()


@pytest.mark.parametrize("who", [0, 1])
@in_loop
async def test_who_does_not_know_the_key_gets_no_connection(who: int) -> None:
    async with agents(2, open_s=0.5) as (made, ring):
        keys = [KEY, KEY]
        keys[who] = b"x" * 32
        outcomes = await asyncio.gather(
            *(links.open(1, ring, place, keys[place]) for place, links in enumerate(made)), return_exceptions=True
        )
        assert all(isinstance(outcome, LinkFailed) for outcome in outcomes)
        texts = [str(outcome) for outcome in outcomes]
        assert texts[0] == "it did not connect within 0.5 s"
        assert "127.0.0.1:" in texts[1]
        assert "key of this epoch" in texts[1]


@in_loop
async def test_an_agent_that_is_not_there_is_named() -> None:
    async with agents(3, open_s=0.3) as (made, ring):
        port = made[0].port
        await made[0].close()
        with pytest.raises(LinkFailed) as failed:
            await made[1].open(1, ring, 1, KEY)
        assert failed.value.place == 0
        assert f"127.0.0.1:{port}: " in failed.value.text
        made.pop(0)


@in_loop
async def test_the_first_address_that_answers_is_taken() -> None:
    async with agents(2) as (made, ring):
        dead = socket.create_server(("127.0.0.1", 0))
        nobody = f"127.0.0.1:{dead.getsockname()[1]}"
        dead.close()
        many = (Host("a0", "h0", (nobody, "no-such-host.invalid:1", *ring[0].addresses)), ring[1])
        both = await asyncio.gather(*(links.open(1, many, place, KEY) for place, links in enumerate(made)))
        for mine in both:
            close_all(mine)


@pytest.mark.parametrize(
    "words",
    [b"GET / HTTP/1.1\r\n\r\n" + bytes(60), bytes(200), b"HVDP\x09" + bytes(60), b"HVDP"],
    ids=["http", "zeros", "version", "short"],
)
@in_loop
async def test_strangers_are_dropped_and_agents_still_connect(words: bytes) -> None:
    async with agents(2) as (made, ring):
        reader, writer = await asyncio.open_connection("127.0.0.1", made[0].port)
        writer.write(words)
        writer.write_eof()
        with suppress(ConnectionResetError):  # when it had sent more than was read
            assert await reader.read() == b""
        both = await asyncio.gather(*(links.open(1, ring, place, KEY) for place, links in enumerate(made)))
        for mine in both:
            close_all(mine)
        writer.close()
        with suppress(ConnectionResetError):
            await writer.wait_closed()


@in_loop
async def test_a_lane_that_is_taken_is_given_to_nobody_else() -> None:
    async with agents(2) as (made, ring):
        opening = asyncio.ensure_future(made[0].open(1, ring, 0, KEY))
        greeting = Greeting(1, 1, 0, 0, bytes(32))
        first = await _greet(made[0].port, greeting)
        with pytest.raises((ConnectionError, Refused)):
            await _greet(made[0].port, greeting)
        second = await _greet(made[0].port, Greeting(1, 1, 0, 1, bytes(32)))
        close_all(await opening)
        first.close()
        second.close()


async def _greet(port: int, greeting: Greeting) -> socket.socket:
    sock = await sockets.connect(f"127.0.0.1:{port}")
    try:
        await sockets.send(sock, greeting.pack())
        answered = await sockets.receive(sock, handshake.ANSWER_BYTES)
        await sockets.send(sock, handshake.proof(KEY, greeting, answered))
        assert await sockets.receive(sock, 1) == handshake.ACCEPTED
    except BaseException:
        sock.close()
        raise
    return sock


def test_proofs_belong_to_one_greeting_one_nonce_and_one_side() -> None:
    greeting, other = Greeting(1, 1, 0, 0, bytes(32)), Greeting(2, 1, 0, 0, bytes(32))
    answered = handshake.answer(KEY, greeting, b"n" * 32)
    mac = handshake.proof(KEY, greeting, answered)
    handshake.check(KEY, greeting, b"n" * 32, mac)
    for wrong in ((other, b"n" * 32, mac), (greeting, b"m" * 32, mac), (greeting, b"n" * 32, answered[32:])):
        with pytest.raises(Refused):
            handshake.check(KEY, *wrong)


@pytest.mark.parametrize("address", ["", "host", "host:", ":80", "host:http", "host:70000"])
def test_addresses_that_are_none(address: str) -> None:
    with pytest.raises(ValueError, match="host:port"):
        sockets.split_address(address)


def test_addresses() -> None:
    assert sockets.split_address("[::1]:80") == ("::1", 80)
    assert sockets.split_address("a.b:80") == ("a.b", 80)
    assert sockets.advertised(7, interface="lo")[0] == "127.0.0.1:7"
    assert sockets.advertised(7)[-1].startswith(("127.", "[::1]"))
    with pytest.raises(ValueError, match="there are: "):
        sockets.advertised(7, interface="none9")


def test_a_port_range_is_tried_in_order() -> None:
    first = sockets.listen("127.0.0.1")
    port = int(first.getsockname()[1])
    with pytest.raises(OSError, match=f"port {port}"):
        sockets.listen("127.0.0.1", range(port, port + 1))
    second = sockets.listen("127.0.0.1", range(port, port + 50))
    assert port < int(second.getsockname()[1]) < port + 50
    first.close()
    second.close()
