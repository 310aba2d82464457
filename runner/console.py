"""Shows the output of ranks elsewhere as if they ran here: prefixes, files, and a console that may be slow."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from horovod.agent.files import RankFile, open_rank_files
from horovod.agent.lines import LinePrefixer
from horovod.agent.output import OutputOptions, Target

__all__ = ["RemoteConsole"]

_MOST_BACKLOG_BYTES = 1 << 20
_NAMES = {1: "stdout", 2: "stderr"}


class RemoteConsole:
    """Not thread-safe: it belongs to the running loop.  ``on_closed(stream)``: nobody reads stdout (1) or stderr (2)."""

    def __init__(self, options: OutputOptions, size: int, on_closed: Callable[[int], None]) -> None:
        self._options, self._on_closed = options, on_closed
        self._writer = options.writer(asyncio.get_running_loop())
        self._prefixers: dict[tuple[int, int], LinePrefixer] = {}
        self._files: dict[tuple[int, int], RankFile] = {}
        self._broken: set[tuple[int, int]] = set()
        self._closed: set[int] = set()
        self._backlog = 0
        self._room = asyncio.Event()
        for rank in range(size):
            files = open_rank_files(options.directory, rank, len(str(size - 1)), options.words)
            self._files.update({(rank, stream): files[name] for stream, name in _NAMES.items() if name in files})

    async def show(self, rank: int, stream: int, data: bytes) -> None:
        """Output of a rank; waits while there is much that could not be written yet."""
        if stream not in _NAMES:
            return
        if (rank, stream) in self._files and (rank, stream) not in self._broken:
            self._put(self._files[rank, stream], data, lambda count, taken: self._kept(rank, stream, count, taken))
        prefixer = self._prefixers.get((rank, stream))
        if prefixer is None:
            prefixer = self._prefixers[rank, stream] = self._options.dresser(rank, _NAMES[stream])
        self._echo(stream, rank, prefixer.feed(data))
        while self._backlog > _MOST_BACKLOG_BYTES:
            self._room.clear()
            await self._room.wait()

    def say(self, text: str) -> None:
        """A line of the launcher itself, between the lines of ranks."""
        target, data = self._options.words(text)
        self._put(target, data, lambda count, taken: self._written(count))

    def _echo(self, stream: int, rank: int, data: bytes) -> None:
        target = self._options.target(rank, _NAMES[stream])
        self._put(target, data, lambda count, taken: self._echoed(stream, count, taken))

    def _put(self, target: Target, data: bytes, written: Callable[[int, bool], None]) -> None:
        if data:
            self._backlog += len(data)
            self._writer.put(target, data, written)

    def _written(self, count: int) -> None:
        self._backlog -= count
        self._room.set()

    def _kept(self, rank: int, stream: int, count: int, taken: bool) -> None:
        self._written(count)
        if not taken:
            self._broken.add((rank, stream))

    def _echoed(self, stream: int, count: int, taken: bool) -> None:
        self._written(count)
        if not taken and len(self._broken) == len(self._files) and stream not in self._closed:
            self._closed.add(stream)
            self._on_closed(stream)

    async def close(self, timeout_s: float | None) -> None:
        """Writes out what is there."""
        for (rank, stream), prefixer in self._prefixers.items():
            self._echo(stream, rank, prefixer.finish())
        if await self._writer.close(timeout_s):
            for file in self._files.values():
                file.close()
