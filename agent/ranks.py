"""The processes of this host's ranks and their output, by rank."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from horovod.agent.core import events as ev
from horovod.agent.core.environment import on_host
from horovod.agent.core.tally import Tally
from horovod.agent.files import RankFile, open_rank_files
from horovod.agent.output import Output, OutputOptions, RankStream
from horovod.agent.processes import Ending, RankProcess, StartSpec

__all__ = ["RankOptions", "RankTable"]

log = logging.getLogger("horovod.agent")

_LAST_LINES_S = 0.5
# How long a pipe that nobody seems to write to may stay open after its rank is gone.
_LINGER_S = 2.0


@dataclass(frozen=True, slots=True)
class RankOptions:
    """How ranks are run.  ``extra(rank)`` gives variables and descriptors that only this rank inherits.

    ``host_environment`` is the agent's own, where the job came from another host; None: the job's is complete.
    """

    output: Output = field(default_factory=OutputOptions)
    grace_s: float = 5.0
    host_environment: Mapping[str, str] | None = None
    extra: Callable[[int], tuple[Mapping[str, str], tuple[int, ...]]] = lambda rank: ({}, ())
    width: int = 1


@dataclass(slots=True)
class _Rank:
    process: RankProcess
    stdout: RankStream
    stderr: RankStream
    files: dict[str, RankFile]
    ending: Ending | None = None
    told: bool = False


class RankTable:
    """Starts and ends ranks; ``post`` takes ProcessStarted and ProcessEnded events."""

    def __init__(self, options: RankOptions, post: Callable[[ev.Event], None], tally: Tally | None = None) -> None:
        self._options, self._post = options, post
        self._tally = tally or Tally()
        self._loop = asyncio.get_running_loop()
        self._writer = options.output.writer(self._loop)
        self._ranks: dict[int, _Rank] = {}
        self._changed = asyncio.Event()

    def start(self, command: ev.StartProcess) -> None:
        """Starts a rank; what can't be started ends with a reason."""
        rank = command.rank
        process = RankProcess(
            lambda pid: self._started(rank, pid),
            lambda ending: self._ended(rank, ending),
            self._changed.set,
        )
        out_read, out_write = os.pipe()
        err_read, err_write = os.pipe()
        output = self._options.output
        files = open_rank_files(output.directory, rank, self._options.width, output.words)
        self._ranks[rank] = _Rank(
            process,
            self._stream(rank, "stdout", out_read, files),
            self._stream(rank, "stderr", err_read, files),
            files,
        )
        variables, inherit = self._options.extra(rank)
        host = self._options.host_environment
        environment = {**(command.environment if host is None else on_host(command.environment, host)), **variables}
        process.start(
            StartSpec(
                command.command,
                environment,
                command.directory,
                self._options.grace_s,
                out_write,
                err_write,
                inherit,
            )
        )
        os.close(out_write)
        os.close(err_write)

    def _stream(self, rank: int, name: str, descriptor: int, files: Mapping[str, RankFile]) -> RankStream:
        output = self._options.output
        return RankStream(
            descriptor,
            self._writer,
            output.target(rank, name),
            output.dresser(rank, name),
            files.get(name),
            lambda: self._stream_closed(rank, name),
            lambda count: self._tally.output_bytes.update({name: count}),
        )

    def _started(self, rank: int, pid: int) -> None:
        log.info("Rank %d runs as process %d.", rank, pid)
        self._post(ev.ProcessStarted(rank, pid))

    def _ended(self, rank: int, ending: Ending) -> None:
        """The report waits a little for the end of stderr: a leftover child may hold the pipe for longer."""
        log.info("Rank %d has ended with code %d.", rank, ending.code)
        self._ranks[rank].ending = ending
        if self._ranks[rank].stderr.closed:
            self._tell(rank)
        else:
            self._loop.call_later(_LAST_LINES_S, self._tell, rank)

    def _stream_closed(self, rank: int, name: str) -> None:
        entry = self._ranks.get(rank)
        if entry is not None and entry.ending is not None and name == "stderr":
            self._tell(rank)
        self._changed.set()

    def _tell(self, rank: int) -> None:
        entry = self._ranks.get(rank)
        if entry is None or entry.told or entry.ending is None:
            return
        entry.told = True
        ending = entry.ending
        text = entry.stderr.tail.text()
        self._post(ev.ProcessEnded(rank, ending.code, ending.signal, ending.start_error, text))

    def end(self, rank: int, kill: bool) -> None:
        """Ends a rank's tree."""
        entry = self._ranks.get(rank)
        if entry is not None:
            if kill:
                entry.process.kill()
            else:
                entry.process.terminate()

    def end_all(self, kill: bool) -> None:
        """Ends every tree."""
        for rank in self._ranks:
            self.end(rank, kill)

    @property
    def backlog_bytes(self) -> int:
        """Output that was read and is not written yet; ranks wait when there is much of it."""
        return sum(stream.backlog_bytes for stream in self._streams())

    def say(self, text: str) -> None:
        """A line of the agent itself, between the lines of ranks."""
        target, data = self._options.output.words(text)
        self._writer.put(target, data, lambda _count, _taken: None)

    async def close(self, drain_s: float | None) -> None:
        """Ends what is left, and writes out what the ranks wrote (for at most that long)."""
        if not await self._until(self._processes_gone, self._options.grace_s + 2):
            self.end_all(kill=True)
            await self._until(self._processes_gone, 5)
        await self._read_rest(drain_s)
        for entry in self._ranks.values():
            entry.stdout.close()
            entry.stderr.close()
        if await self._writer.close(drain_s):
            for entry in self._ranks.values():
                for file in entry.files.values():
                    file.close()
        self._ranks.clear()

    def _processes_gone(self) -> bool:
        return all(entry.process.gone for entry in self._ranks.values())

    def _streams(self) -> list[RankStream]:
        return [stream for entry in self._ranks.values() for stream in (entry.stdout, entry.stderr)]

    async def _read_rest(self, limit_s: float | None) -> None:
        """Reads the pipes to their end.  A slow console is waited for; a pipe that somebody else keeps open is not."""
        end = time.monotonic() + limit_s if limit_s is not None else float("inf")
        quiet_since = time.monotonic()
        while not await self._until(lambda: all(stream.closed for stream in self._streams()), 0.1):
            now = time.monotonic()
            if not all(stream.idle for stream in self._streams()):
                quiet_since = now
            if now - quiet_since > _LINGER_S or now > end:
                return

    async def _until(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Waits for a change that makes the condition true; False after that time."""
        end = time.monotonic() + timeout_s
        while not condition():
            self._changed.clear()
            try:
                await asyncio.wait_for(self._changed.wait(), max(0.0, end - time.monotonic()))
            except asyncio.TimeoutError:
                return condition()
        return True
