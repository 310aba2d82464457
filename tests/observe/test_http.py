"""Read-only HTTP: its pages, and what strangers can't do to it."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import threading

import pytest
from horovod.observe.http import HttpServer, Pages
from horovod.observe.visits import Limits
from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse

from tests.aio import in_loop
from tests.observe.client import ANSWER_S, Answer, ask, get, open_to, pages, read_end, serving

pytestmark = [pytest.mark.usefixtures("no_leaks"), pytest.mark.timeout(30)]

UNTIMED = Limits(age_s=3600.0)
GET = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"


# ---- pages


@in_loop
async def test_the_pages_are_there_and_no_other() -> None:
    async with serving() as server:
        assert (await get(server, "/healthz")).text == "ok\n"
        assert (await get(server, "/readyz")).text == "ready\n"
        assert json.loads((await get(server, "/api/state")).body) == {"value": 7}
        metrics = await get(server, "/metrics")
        assert [family.name for family in parse(metrics.text)] == ["hvd_value"]
        for path in ("/", "/metrics/", "/api", "/../etc/passwd", "//metrics", "/%2e%2e/x", "/metricsx"):
            assert (await get(server, path)).status == 404, path
        assert (await get(server, "/metrics?name=x")).status == 200
        assert metrics.headers["cache-control"] == "no-store"


@in_loop
async def test_openmetrics_for_who_asks_for_it() -> None:
    async with serving() as server:
        answer = await get(server, "/metrics", headers="Accept: application/openmetrics-text; version=1.0.0\r\n")
        assert answer.headers["content-type"].startswith("application/openmetrics-text")
        assert [family.name for family in parse_openmetrics(answer.text)] == ["hvd_value"]  # type: ignore[no-untyped-call]


@in_loop
async def test_a_service_that_is_not_ready_says_why() -> None:
    async with serving(pages(reason="not registered with the coordinator")) as server:
        answer = await get(server, "/readyz")
        assert (answer.status, answer.text) == (503, "not registered with the coordinator\n")
        assert (await get(server, "/healthz")).status == 200


@in_loop
async def test_head_has_no_body_and_other_verbs_are_refused() -> None:
    async with serving() as server:
        head = await get(server, "/metrics", "HEAD")
        assert (head.status, head.body) == (200, b"")
        assert int(head.headers["content-length"]) > 0
        for verb in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"):
            answer = await get(server, "/metrics", verb)
            assert (answer.status, answer.headers["allow"]) == (405, "GET, HEAD"), verb
        assert (await get(server, "/metrics", "BREW")).status in (400, 405)


@in_loop
async def test_a_page_that_fails_is_an_error_that_tells_strangers_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        raise ValueError("inner secret")

    async with serving(Pages(CollectorRegistry(), lambda: "", fail)) as server:
        answer = await get(server, "/api/state")
        assert (answer.status, answer.text) == (500, "error: see the log\n")
        assert (await get(server, "/healthz")).status == 200
    assert "inner secret" in caplog.text


@in_loop
async def test_no_thread_is_needed_also_for_a_name() -> None:
    before = threading.active_count()
    server = HttpServer(pages(), "localhost", 0)
    await server.start()
    assert server.port > 0
    assert threading.active_count() == before
    await server.close()


def test_a_port_that_is_taken_is_an_error_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(OSError):
        HttpServer(pages(), "127.0.0.1", taken.getsockname()[1])


@in_loop
async def test_both_families_when_no_host_is_named() -> None:
    server = HttpServer(pages(), "", 0)
    await server.start()
    hosts = ["127.0.0.1", "::1"] if socket.has_dualstack_ipv6() else ["127.0.0.1"]
    for host in hosts:
        reader, writer = await asyncio.open_connection(host, server.port)
        writer.write(GET)
        assert Answer(await read_end(reader)).status == 200
        writer.close()
    await server.close()


# ---- strangers


@in_loop
async def test_bytes_that_are_no_request_are_answered_with_an_error_and_not_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, "horovod.observe")
    async with serving() as server:
        for junk in (
            b"\x16\x03\x01\x02\x00\x01\x00" * 9,
            b"GET\r\n\r\n",
            b"GET /metrics HTTP/9.9\r\n\r\n",
            b"\r\n\r\nx y\r\n\r\n",
        ):
            data = await ask(server, junk + b"\r\n\r\n")
            assert data == b"" or Answer(data).status == 400, junk
        assert (await get(server, "/healthz")).status == 200
    assert caplog.records == []


@in_loop
async def test_huge_headers_and_bodies_are_cut_off() -> None:
    async with serving(limits=UNTIMED) as server:
        long = b"GET /healthz HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 9000 + b"\r\n\r\n"
        assert Answer(await ask(server, long)).status == 400
        many = b"GET /healthz HTTP/1.1\r\nHost: x\r\n" + b"X: y\r\n" * 100_000
        assert await _pushed(server, many) < len(many)
        body = b"GET /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999\r\n\r\n" + b"b" * (8 << 20)
        assert await _pushed(server, body) < len(body)
        assert (await get(server, "/healthz")).status == 200


async def _pushed(server: HttpServer, data: bytes) -> int:
    """Bytes that the server let through before it ended the connection."""
    loop = asyncio.get_running_loop()
    peer = socket.socket()
    peer.setblocking(False)
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)
    await loop.sock_connect(peer, ("127.0.0.1", server.port))
    sent = 0
    try:
        while sent < len(data):
            part = data[sent : sent + (16 << 10)]
            await asyncio.wait_for(loop.sock_sendall(peer, part), ANSWER_S)
            sent += len(part)
    except ConnectionError:
        pass
    finally:
        peer.close()
    return sent


@in_loop
async def test_a_body_gets_its_answer_and_the_end_of_the_connection() -> None:
    async with serving(limits=UNTIMED) as server:
        request = b"GET /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999\r\n\r\nsome"
        assert Answer(await ask(server, request)).status == 200


@in_loop
async def test_one_request_is_answered_of_a_connection() -> None:
    async with serving() as server:
        data = await ask(server, GET * 200)
        assert data.count(b"HTTP/1.1 200") == 1


@in_loop
async def test_who_sends_slowly_is_cut_off_when_the_time_is_over() -> None:
    async with serving(limits=Limits(age_s=0.05)) as server:
        reader, writer = await open_to(server)
        writer.write(b"GET /healthz HTTP/1.1\r\nX: ")
        assert await read_end(reader) == b""
        assert server.visits == 0
        writer.close()


@in_loop
async def test_half_open_connections_make_room_for_honest_ones() -> None:
    async with serving(limits=Limits(age_s=3600.0, visits=4)) as server:
        lazy = [await open_to(server) for _ in range(20)]
        for number in range(3):
            assert (await get(server, "/healthz")).status == 200, number
        assert server.visits <= 4
        assert await read_end(lazy[0][0]) == b""
        for _, writer in lazy:
            writer.close()


@in_loop
async def test_who_does_not_read_holds_nobody_up() -> None:
    async with serving(pages(), Limits(age_s=3600.0)) as server:
        _, silent = await open_to(server)
        silent.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await get(server, "/metrics")).status == 200
        silent.transport.abort()


@in_loop
async def test_a_visitor_that_says_goodbye_first_is_answered() -> None:
    async with serving() as server:
        reader, writer = await open_to(server)
        writer.write(GET)
        writer.write_eof()
        assert Answer(await read_end(reader)).status == 200
        writer.close()


@in_loop
async def test_close_leaves_no_connection() -> None:
    async with serving(limits=UNTIMED) as server:
        visitors = [await open_to(server) for _ in range(3)]
        assert (await get(server, "/healthz")).status == 200
        await server.close()
        assert server.visits == 0
        for reader, writer in visitors:
            assert await read_end(reader) == b""
            writer.close()
