"""Output of ranks elsewhere, shown by a launcher."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TypeVar

from horovod.agent.output import OutputOptions
from horovod.runner.console import RemoteConsole

T = TypeVar("T")


def run(story: Callable[[], Coroutine[None, None, T]]) -> T:
    return asyncio.run(asyncio.wait_for(story(), 30))


class Screen:
    """A target that waits for its gate, or breaks."""

    def __init__(self, broken: bool = False) -> None:
        self.data = b""
        self.broken = broken
        self.gate = threading.Event()
        self.gate.set()

    def write(self, data: bytes) -> None:
        assert self.gate.wait(20)
        if self.broken:
            raise BrokenPipeError
        self.data += data


def test_lines_are_dressed_by_rank_and_stream() -> None:
    async def story() -> tuple[bytes, bytes]:
        out, err = Screen(), Screen()
        console = RemoteConsole(OutputOptions(out, err), 12, lambda stream: None)
        await console.show(0, 1, b"one\nha")
        await console.show(11, 2, b"two\n")
        await console.show(0, 1, b"lf\n")
        await console.show(3, 9, b"no such stream\n")
        console.say("a word")
        await console.close(None)
        return out.data, err.data

    out, err = run(story)
    assert out == b"[0]<stdout>:one\n[0]<stdout>:half\n"
    assert err == b"[11]<stderr>:two\nhorovodrun: a word\n"


def test_files_get_the_bytes_as_they_are(tmp_path: Path) -> None:
    async def story() -> bytes:
        out = Screen(broken=True)
        closed: list[int] = []
        console = RemoteConsole(OutputOptions(out, out, directory=str(tmp_path)), 11, closed.append)
        await console.show(3, 1, b"\xffhalf")
        await console.close(None)
        assert closed == []  # there is somebody who takes it: the file
        return (tmp_path / "rank.03" / "stdout").read_bytes()

    assert run(story) == b"\xffhalf"
    assert (tmp_path / "rank.10" / "stderr").read_bytes() == b""


def test_a_console_that_nobody_reads_is_told_once() -> None:
    async def story() -> list[int]:
        closed: list[int] = []
        told = asyncio.Event()

        def on_closed(stream: int) -> None:
            closed.append(stream)
            told.set()

        console = RemoteConsole(OutputOptions(Screen(broken=True), Screen()), 1, on_closed)
        for _ in range(3):
            await console.show(0, 1, b"x\n")
        await told.wait()
        await console.close(None)
        return closed

    assert run(story) == [1]


def test_a_slow_console_is_waited_for() -> None:
    async def story() -> int:
        out = Screen()
        out.gate.clear()
        console = RemoteConsole(OutputOptions(out, out), 1, lambda stream: None)
        showing = asyncio.ensure_future(console.show(0, 1, b"x" * (2 << 20) + b"\n"))
        await asyncio.wait({showing}, timeout=0.1)
        assert not showing.done()
        out.gate.set()
        await showing
        await console.close(None)
        return out.data.count(b"x")

    assert run(story) == 2 << 20
