"""Streams: order, back-pressure, copies, broken consoles."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path

from horovod.agent.lines import LinePrefixer
from horovod.agent.output import FileTarget, OutputOptions, OutputWriter, RankStream, Target, TextTarget


class SlowConsole:
    """Takes nothing until it is let go."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.data = b""

    def write(self, data: bytes) -> None:
        assert self.go.wait(20)
        self.data += data


class BrokenConsole:
    """Nobody reads it."""

    def write(self, data: bytes) -> None:
        raise BrokenPipeError


def stream(
    writer: OutputWriter, console: Target, copy: FileTarget | None = None
) -> tuple[RankStream, int, asyncio.Event]:
    read, write = os.pipe()
    closed = asyncio.Event()
    return RankStream(read, writer, console, LinePrefixer(lambda: "p:"), copy, closed.set), write, closed


def rank_writing(descriptor: int, data: bytes, times: int) -> threading.Thread:
    """A rank: it blocks when its pipe is full, which the event loop that reads the pipe must never do."""

    def run() -> None:
        for _ in range(times):
            assert os.write(descriptor, data) == len(data)
        os.close(descriptor)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_a_slow_console_makes_the_rank_wait_and_nothing_is_lost() -> None:
    async def run() -> None:
        console = SlowConsole()
        writer = OutputWriter(asyncio.get_running_loop())
        _, write, closed = stream(writer, console)
        line = b"x" * 999 + b"\n"
        thread = rank_writing(write, line, 10_000)
        await asyncio.to_thread(thread.join, 0.5)
        assert thread.is_alive()  # 10 MB do not fit into the backlog
        console.go.set()
        await asyncio.wait_for(closed.wait(), 20)
        assert await writer.close(20)
        thread.join()
        assert console.data == (b"p:" + line) * 10_000

    asyncio.run(run())


def test_a_broken_console_breaks_the_pipe_of_the_rank() -> None:
    async def run() -> None:
        writer = OutputWriter(asyncio.get_running_loop())
        _, write, closed = stream(writer, BrokenConsole())
        os.write(write, b"one\n")
        await asyncio.wait_for(closed.wait(), 20)
        try:
            os.write(write, b"two\n")
            broken = False
        except BrokenPipeError:
            broken = True
        os.close(write)
        assert broken
        assert await writer.close(20)

    asyncio.run(run())


def test_a_broken_console_does_not_stop_the_copy(tmp_path: Path) -> None:
    path = tmp_path / "copy"
    copy = os.open(path, os.O_WRONLY | os.O_CREAT)

    async def run() -> None:
        writer = OutputWriter(asyncio.get_running_loop())
        _, write, closed = stream(writer, BrokenConsole(), FileTarget(copy))
        thread = rank_writing(write, b"\xffraw\r\n" * 1000, 100)
        await asyncio.wait_for(closed.wait(), 20)
        assert await writer.close(20)
        thread.join()

    asyncio.run(run())
    os.close(copy)
    assert path.read_bytes() == b"\xffraw\r\n" * 100_000


def test_a_console_that_takes_nothing_holds_up_the_end_only_as_long_as_asked() -> None:
    async def run() -> None:
        console = SlowConsole()
        writer = OutputWriter(asyncio.get_running_loop())
        handle, write, _ = stream(writer, console)
        os.write(write, b"one\n")
        os.close(write)
        while not handle.closed:
            await asyncio.sleep(0)
        assert not await writer.close(0.1)
        console.go.set()

    asyncio.run(run())


def test_text_streams_and_prefixes() -> None:
    seen: list[str] = []
    TextTarget(seen.append).write("ä\n".encode())
    assert seen == ["ä\n"]
    assert OutputOptions().prefix(3, "stderr")() == "[3]<stderr>:"
    assert OutputOptions(timestamps=True).prefix(3, "stdout")().endswith("[3]<stdout>:")
