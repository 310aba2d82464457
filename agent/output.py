"""Moves the output of ranks to the console and to files.

The event loop reads the pipes; one thread writes, so that a slow console never holds up the control plane.  Each stream
has a bounded backlog: beyond it the pipe is left alone and the rank blocks, as on any pipe.  Nothing is dropped.
When nobody reads the console any more, the ranks' pipes are closed too: they see the same broken pipe.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from horovod.agent.lines import LinePrefixer, Tail

__all__ = [
    "Dresser",
    "FileTarget",
    "Output",
    "OutputOptions",
    "OutputWriter",
    "RankStream",
    "Target",
    "TextTarget",
    "Writer",
]

_READ_BYTES = 64 << 10
_BACKLOG_BYTES = 1 << 20


class Target(Protocol):
    """Where bytes go; ``write`` may block and raises OSError when nobody takes them."""

    def write(self, data: bytes) -> None: ...


class FileTarget:
    """A descriptor, written completely."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def write(self, data: bytes) -> None:
        """Writes all of it, also where the descriptor is non-blocking (a terminal may be, for all who share it)."""
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(self.descriptor, view) :]
            except BlockingIOError:
                time.sleep(0.005)


class TextTarget:
    """A text stream without a descriptor, such as a notebook's."""

    def __init__(self, write: Callable[[str], object]) -> None:
        self._write = write

    def write(self, data: bytes) -> None:
        """Writes the text."""
        self._write(data.decode(errors="replace"))


class Writer(Protocol):
    """What carries bytes to targets.  ``put`` never waits; ``written(count, taken)`` comes back on the loop."""

    def put(self, target: Target, data: bytes, written: Callable[[int, bool], None]) -> None: ...

    async def close(self, timeout_s: float | None = None) -> bool: ...


class Dresser(Protocol):
    """What a stream's bytes look like where they go."""

    def feed(self, data: bytes) -> bytes: ...

    def finish(self) -> bytes: ...


class Output(Protocol):
    """Where the output of ranks goes, and in which dress: a console and files here, or a launcher elsewhere."""

    @property
    def directory(self) -> str: ...

    def writer(self, loop: asyncio.AbstractEventLoop) -> Writer: ...

    def target(self, rank: int, stream: str) -> Target: ...

    def dresser(self, rank: int, stream: str) -> Dresser: ...

    def words(self, text: str) -> tuple[Target, bytes]: ...


@dataclass(frozen=True, slots=True)
class OutputOptions:
    """Output for people: to the console, each line with its origin, and to files."""

    stdout: Target = field(default_factory=lambda: FileTarget(1))
    stderr: Target = field(default_factory=lambda: FileTarget(2))
    timestamps: bool = False
    directory: str = ""
    speaker: str = "horovodrun"

    def prefix(self, rank: int, stream: str) -> Callable[[], str]:
        """The prefix of a line of this rank, as it is now."""
        fixed = f"[{rank}]<{stream}>:"
        return (lambda: time.asctime() + fixed) if self.timestamps else (lambda: fixed)

    def writer(self, loop: asyncio.AbstractEventLoop) -> OutputWriter:
        """A thread that writes."""
        return OutputWriter(loop)

    def target(self, rank: int, stream: str) -> Target:
        """Of a rank's stream."""
        return self.stderr if stream == "stderr" else self.stdout

    def dresser(self, rank: int, stream: str) -> LinePrefixer:
        """Prefixes of a rank's lines."""
        return LinePrefixer(self.prefix(rank, stream))

    def words(self, text: str) -> tuple[Target, bytes]:
        """A line of the agent itself."""
        return self.stderr, f"{self.speaker}: {text}\n".encode()


_Piece = tuple[Target, bytes, Callable[[int, bool], None]]


class OutputWriter:
    """The one thread that writes.  ``put`` never blocks; callers keep their backlog bounded by ``written``."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._queue: queue.SimpleQueue[_Piece | None] = queue.SimpleQueue()
        self._broken: set[int] = set()
        self._thread = threading.Thread(target=self._run, name="hvd-output", daemon=True)
        self._thread.start()

    def put(self, target: Target, data: bytes, written: Callable[[int, bool], None]) -> None:
        """Queues bytes; ``written(count, taken)`` comes back on the loop; ``taken`` is False for a broken target."""
        self._queue.put((target, data, written))

    async def close(self, timeout_s: float | None = None) -> bool:
        """Waits until all is written (at most that long; False if it was not), and ends the thread."""
        self._queue.put(None)
        end = time.monotonic() + timeout_s if timeout_s is not None else None
        while self._thread.is_alive():
            if end is not None and time.monotonic() > end:
                return False
            await asyncio.to_thread(self._thread.join, 0.05)
        return True

    def _run(self) -> None:
        while (piece := self._queue.get()) is not None:
            target, data, written = piece
            taken = self._write(target, data)
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody counts any more
                self._loop.call_soon_threadsafe(written, len(data), taken)

    def _write(self, target: Target, data: bytes) -> bool:
        if id(target) in self._broken:
            return False
        try:
            target.write(data)
        except (OSError, ValueError):
            self._broken.add(id(target))
            return False
        return True


class RankStream:
    """One pipe of one rank."""

    def __init__(
        self,
        descriptor: int,
        writer: Writer,
        console: Target,
        prefixer: Dresser,
        copy: Target | None,
        on_closed: Callable[[], None],
        on_read: Callable[[int], None] = lambda count: None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._descriptor, self._writer, self._console = descriptor, writer, console
        self._prefixer, self._copy, self._on_closed = prefixer, copy, on_closed
        self._on_read = on_read
        self._backlog, self._reading = 0, False
        self.tail = Tail()
        os.set_blocking(descriptor, False)
        self._resume()

    @property
    def closed(self) -> bool:
        """Whether the rank can write no more."""
        return self._descriptor < 0

    @property
    def idle(self) -> bool:
        """Whether all that was read is written."""
        return self._backlog == 0

    @property
    def backlog_bytes(self) -> int:
        """What was read and is not written yet."""
        return self._backlog

    def _resume(self) -> None:
        if not self._reading and not self.closed:
            self._reading = True
            self._loop.add_reader(self._descriptor, self._readable)

    def _pause(self) -> None:
        if self._reading:
            self._reading = False
            self._loop.remove_reader(self._descriptor)

    def _readable(self) -> None:
        try:
            data = os.read(self._descriptor, _READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.close()
            return
        self._on_read(len(data))
        self.tail.feed(data)
        if self._copy is not None:
            self._put(self._copy, data, self._kept)
        self._put(self._console, self._prefixer.feed(data), self._echoed)
        if self._backlog > _BACKLOG_BYTES:
            self._pause()

    def _put(self, target: Target, data: bytes, written: Callable[[int, bool], None]) -> None:
        if data:
            self._backlog += len(data)
            self._writer.put(target, data, written)

    def _kept(self, count: int, taken: bool) -> None:
        """A copy that is broken gets no more; the console is all that is left."""
        self._counted(count)
        if not taken:
            self._copy = None

    def _counted(self, count: int) -> None:
        self._backlog -= count
        if self._backlog <= _BACKLOG_BYTES // 2:
            self._resume()

    def _echoed(self, count: int, taken: bool) -> None:
        self._counted(count)
        if not taken and self._copy is None:
            self.close()

    def close(self) -> None:
        """The end of the stream, by the rank or by us: what is left goes out, the pipe is closed."""
        if self.closed:
            return
        self._pause()
        descriptor, self._descriptor = self._descriptor, -1
        os.close(descriptor)
        self._put(self._console, self._prefixer.finish(), self._echoed)
        self._on_closed()
