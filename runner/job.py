"""Runs one job on this host: coordinator, agent and ranks, in one loop of the launcher's process.

Whatever happens in here, the ranks are gone, and their output is written, before a result is returned.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from horovod.agent.output import OutputOptions
from horovod.agent.ranks import RankOptions
from horovod.agent.shell import AgentOptions, AgentOutputs, AgentShell
from horovod.coordinator.core import Config, Event, JobCancelled, JobEnded, JobSubmitted, Tick
from horovod.coordinator.embedded import EmbeddedCoordinator, Handlers
from horovod.proto import control_pb2
from horovod.proto.signals import heard_in_loop
from horovod.runner.report import JobResult

__all__ = ["Job", "JobSpec", "heeded_signals", "run_job", "run_job_with_signals"]

_AGENT = "local"
_TICK_S = 0.25
_DRAIN_S = 5.0


@dataclass(frozen=True, slots=True)
class JobSpec:
    """What to run.  ``extra(rank)`` gives variables and descriptors for one rank only."""

    size: int
    command: tuple[str, ...]
    environment: Mapping[str, str]
    slots: int = 0
    config: Config = field(default_factory=Config)
    output: OutputOptions = field(default_factory=OutputOptions)
    extra: Callable[[int], tuple[Mapping[str, str], tuple[int, ...]]] = lambda rank: ({}, ())
    helpers: str = ""


class Job:
    """The one job of a launcher.  Lives in the running loop; ``cancel`` may be called again to hurry."""

    def __init__(self, spec: JobSpec) -> None:
        self._spec = spec
        self._loop = asyncio.get_running_loop()
        self._result: asyncio.Future[JobResult] = self._loop.create_future()
        self._inbox: deque[control_pb2.AgentReport | Event] = deque()
        self._busy = False
        self._cancelled = False
        handlers = Handlers(order=lambda _agent, order: self._agent.order(order), job_ended=self._ended)
        self._coordinator = EmbeddedCoordinator(spec.config, time.monotonic, handlers)
        ranks = RankOptions(
            output=spec.output,
            grace_s=spec.config.grace_s,
            extra=spec.extra,
            width=len(str(spec.size - 1)),
        )
        options = AgentOptions(_AGENT, socket.gethostname(), max(spec.slots, spec.size), ranks, spec.helpers)
        self._agent = AgentShell(options, AgentOutputs(self._tell, self._broken))

    async def run(self) -> JobResult:
        """Runs it to its end."""
        ticker = self._loop.create_task(self._tick())
        try:
            self._agent.start()
            # No directory: ranks inherit the launcher's, whatever its name is.
            self._tell(JobSubmitted(self._spec.size, self._spec.command, self._spec.environment))
            return await self._result
        finally:
            ticker.cancel()
            self._agent.end_ranks()
            await self._agent.close(_DRAIN_S if self._cancelled else None)

    def cancel(self, code: int, reason: str) -> None:
        """Ends the job: politely the first time, at once the second time."""
        if self._cancelled:
            self._agent.kill_ranks()
            return
        self._cancelled = True
        self._tell(JobCancelled(code, reason))

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            self._tell(Tick())

    def _tell(self, item: control_pb2.AgentReport | Event) -> None:
        """To the coordinator; what comes up meanwhile waits, so that orders keep their order."""
        self._inbox.append(item)
        if self._busy:
            return
        self._busy = True
        try:
            while self._inbox:
                self._handle(self._inbox.popleft())
        except Exception as error:
            self._broken(error)
        finally:
            self._busy = False

    def _handle(self, item: control_pb2.AgentReport | Event) -> None:
        if isinstance(item, control_pb2.AgentReport):
            self._coordinator.report(_AGENT, item)
        else:
            self._coordinator.handle(item)

    def _ended(self, end: JobEnded) -> None:
        if not self._result.done():
            result = JobResult(end.code, end.text, end.rank, end.host, end.pid, end.signal, end.last_lines)
            self._result.set_result(result)

    def _broken(self, error: BaseException) -> None:
        """An error of our own: the job can't go on."""
        if not self._result.done():
            self._result.set_exception(error)


async def run_job(spec: JobSpec) -> JobResult:
    """Runs a job in this loop."""
    return await Job(spec).run()


async def run_job_with_signals(spec: JobSpec) -> JobResult:
    """The same for a program of its own: SIGINT, SIGTERM and SIGHUP end the job, a second one at once."""
    job = Job(spec)
    with heeded_signals(job.cancel):
        return await job.run()


@contextlib.contextmanager
def heeded_signals(cancel: Callable[[int, str], None]) -> Iterator[None]:
    """Signals call ``cancel``; one that is ignored (by nohup, or in the background of a script) stays ignored."""

    def hear(number: signal.Signals) -> None:
        cancel(128 + number, f"The launcher was ended by {number.name}.")

    with heard_in_loop(asyncio.get_running_loop(), hear):
        yield
