"""Frames of a link on one stream after the other."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import TypeVar

from horovod.proto.pump import Pump

T = TypeVar("T")
LONG_S = 3600.0


def run(story: Callable[[], Coroutine[None, None, T]]) -> T:
    return asyncio.run(asyncio.wait_for(story(), 10))


class Stream:
    """Takes what is written; ``wait_for`` until there is so much."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, str | None]] = []
        self._changed = asyncio.Event()
        self.gate = asyncio.Event()
        self.gate.set()

    async def send(self, number: int, frame: str | None) -> None:
        await self.gate.wait()
        self.sent.append((number, frame))
        self._changed.set()

    async def wait_for(self, count: int) -> list[tuple[int, str | None]]:
        while len(self.sent) < count:
            self._changed.clear()
            await self._changed.wait()
        return self.sent


def writing(pump: Pump[str], stream: Stream, idle_s: float = LONG_S) -> asyncio.Task[None]:
    write: Awaitable[None] = pump.write(stream.send, idle_s)
    return asyncio.ensure_future(write)  # type: ignore[return-value]


def test_frames_go_out_as_they_come() -> None:
    async def story() -> list[tuple[int, str | None]]:
        pump, stream = Pump[str](), Stream()
        pump.push("a")
        task = writing(pump, stream)
        await stream.wait_for(1)
        pump.push("b")
        pump.push("c")
        await stream.wait_for(3)
        pump.stop()
        await task
        return stream.sent

    assert run(story) == [(1, "a"), (2, "b"), (3, "c")]


def test_there_is_a_word_when_it_is_wanted_and_when_there_is_nothing_to_say() -> None:
    async def story() -> int:
        pump, stream = Pump[str](), Stream()
        task = writing(pump, stream)
        await asyncio.sleep(0)
        pump.nudge()
        await stream.wait_for(1)
        pump.stop()
        await task
        idle = Stream()
        task = writing(pump, idle, 0.001)
        await idle.wait_for(3)
        pump.stop()
        await task
        assert set(idle.sent) == {(0, None)}
        return len(stream.sent)

    assert run(story) >= 1


def test_a_wish_that_comes_while_a_frame_is_written_is_not_lost() -> None:
    async def story() -> list[tuple[int, str | None]]:
        pump, stream = Pump[str](), Stream()
        stream.gate.clear()
        pump.push("a")
        task = writing(pump, stream)
        await asyncio.sleep(0)
        pump.nudge()
        stream.gate.set()
        await stream.wait_for(2)
        pump.stop()
        await task
        return stream.sent

    assert run(story)[:2] == [(1, "a"), (0, None)]


def test_a_new_stream_ends_the_writing_to_the_last_one() -> None:
    async def story() -> tuple[Stream, Stream]:
        pump, first, second = Pump[str](), Stream(), Stream()
        pump.push("a")
        old = writing(pump, first)
        await first.wait_for(1)
        pump.link.resume(0)
        new = writing(pump, second)
        pump.push("b")
        await second.wait_for(2)
        await old
        pump.stop()
        await new
        return first, second

    first, second = run(story)
    assert [item for item in first.sent if item[0]] == [(1, "a")]
    assert [item for item in second.sent if item[0]] == [(1, "a"), (2, "b")]
