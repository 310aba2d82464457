"""A client that can do what an honest one never does: raw bytes over a socket of the loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from horovod.observe.http import HttpServer, Pages
from horovod.observe.metrics import Sample, StateCollector, gauge, registry
from horovod.observe.visits import Limits

__all__ = ["ANSWER_S", "Answer", "ask", "get", "open_to", "pages", "read_end", "serving"]

ANSWER_S = 10.0
VALUE = gauge("hvd_value", "A value.")


class Answer:
    """A response as it came."""

    def __init__(self, data: bytes) -> None:
        head, _, self.body = data.partition(b"\r\n\r\n")
        status, *lines = head.decode().split("\r\n")
        self.status = int(status.split()[1])
        self.headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}

    @property
    def text(self) -> str:
        return self.body.decode()


def pages(reason: str = "", value: float = 7) -> Pages:
    def read() -> list[Sample]:
        return [VALUE.at(value)]

    return Pages(registry(StateCollector((VALUE,), read)), lambda: reason, lambda: {"value": value})


@asynccontextmanager
async def serving(shown: Pages | None = None, limits: Limits | None = None) -> AsyncIterator[HttpServer]:
    """A server on a free port of this host, closed at the end."""
    server = HttpServer(shown or pages(), "127.0.0.1", 0, limits)
    await server.start()
    try:
        yield server
    finally:
        await server.close()


async def open_to(server: HttpServer) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", server.port)


async def read_end(reader: asyncio.StreamReader) -> bytes:
    """All that comes until the server ends the connection, one way or another."""
    data = bytearray()
    try:
        while part := await asyncio.wait_for(reader.read(1 << 16), ANSWER_S):
            data += part
    except ConnectionError:
        pass
    return bytes(data)


async def ask(server: HttpServer, request: bytes) -> bytes:
    """What comes back for these bytes."""
    reader, writer = await open_to(server)
    writer.write(request)
    data = await read_end(reader)
    writer.close()
    return data


async def get(server: HttpServer, path: str, method: str = "GET", headers: str = "") -> Answer:
    """An honest request."""
    return Answer(await ask(server, f"{method} {path} HTTP/1.1\r\nHost: test\r\n{headers}\r\n".encode()))
