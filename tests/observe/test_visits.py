"""One visit, fed by hand: what is too much never reaches who serves it."""

from __future__ import annotations

import asyncio

import pytest
from horovod.observe.visits import Limits, Visit, Visits

from tests.aio import in_loop

pytestmark = pytest.mark.timeout(10)


class Inner(asyncio.Protocol):
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.told: list[object] = []

    def data_received(self, data: bytes) -> None:
        self.told.append(data)

    def eof_received(self) -> None:
        self.told.append("eof")

    def pause_writing(self) -> None:
        self.told.append("pause")

    def resume_writing(self) -> None:
        self.told.append("resume")

    def connection_lost(self, error: Exception | None) -> None:
        self.told.append("lost")


class Transport(asyncio.Transport):
    """A connection that can only be cut off."""

    aborts = 0

    def abort(self) -> None:
        self.aborts += 1


def begin(limits: Limits) -> tuple[Visit, Inner, Transport]:
    inner, transport = Inner(), Transport()
    visit = Visit(inner, Visits(limits))
    visit.connection_made(transport)
    return visit, inner, transport


@in_loop
async def test_bytes_beyond_the_limit_end_the_visit() -> None:
    visit, inner, transport = begin(Limits(received_bytes=10))
    visit.data_received(b"12345")
    visit.data_received(b"67890")
    assert transport.aborts == 0
    visit.data_received(b"!")
    assert transport.aborts == 1
    visit.connection_lost(None)
    assert inner.told == [b"12345", b"67890", "lost"]


@in_loop
async def test_everything_else_is_passed_on() -> None:
    visit, inner, transport = begin(Limits())
    visit.pause_writing()
    visit.resume_writing()
    answers = [visit.eof_received()]  # said nothing: wants nothing
    visit.data_received(b"x")
    answers.append(visit.eof_received())  # may still listen
    assert answers == [False, True]
    visit.connection_lost(None)
    assert inner.told == ["pause", "resume", "eof", b"x", "eof", "lost"]
    assert transport.aborts == 0
