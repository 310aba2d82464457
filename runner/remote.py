"""Runs a job on the agents of a coordinator elsewhere: submits it, shows its output, ends with its code."""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import logging
import os
import secrets
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
import horovod
from horovod.agent.output import OutputOptions
from horovod.coordinator.core import Config
from horovod.coordinator.core.values import RankPlace
from horovod.proto import control_pb2
from horovod.proto.codec import fill
from horovod.proto.diagnosis import explain
from horovod.proto.places import unpack
from horovod.proto.security import Address, Security
from horovod.proto.services import RUN, admission, open_channel, open_stream
from horovod.runner.console import RemoteConsole
from horovod.runner.job import heeded_signals
from horovod.runner.report import JobResult
from horovod.runner.settings import UsageProblem

__all__ = ["RemoteJob", "RemoteSpec", "run_remote_job"]

log = logging.getLogger("horovod")

_PROTOCOL = 1
_PAUSES_S = (0.1, 0.2, 0.5, 1.0)
_DRAIN_S = 5.0
_UNCONFIRMED = "The coordinator did not confirm the end of the ranks."
_END_S = 25.0  # how long the end of a cancelled job may take: grace, lost agents, last output


@dataclass(frozen=True, slots=True)
class RemoteSpec:
    """What to run, and where to ask for it; ``attach``: nothing, others start the ranks."""

    coordinator: Address
    security: Security
    size: int
    command: tuple[str, ...]
    environment: Mapping[str, str]
    wait: bool = False
    attach: bool = False
    limits: Config = field(default_factory=Config)
    coordinator_timeout_s: float = 300.0
    output: OutputOptions = field(default_factory=OutputOptions)


class RemoteJob:
    """One job, over as many Run calls as it takes.  Lives in the running loop; ``cancel`` may be called again to hurry.

    A coordinator that is gone is dialled again until the time-out: it, or the one that was started in its place, has the job.
    """

    def __init__(self, spec: RemoteSpec) -> None:
        self._spec = spec
        self._loop = asyncio.get_running_loop()
        self._frames: asyncio.Queue[control_pb2.JobFrame] = asyncio.Queue()
        self._console = RemoteConsole(spec.output, spec.size, self._output_closed)
        self._cancelled: tuple[int, str] | None = None
        self._cancels = 0
        self._id = secrets.token_hex(16)
        self._known = self._accepted = False
        self._tries, self._said = 0, ""
        self._away_since: float | None = None
        self._taken: dict[str, int] = {}  # numbers of output, by agent
        self._told: dict[str, int] = {}
        self._closed_streams: set[int] = set()
        self._task: asyncio.Task[JobResult] | None = None

    async def run(self) -> JobResult:
        """Runs it to its end; UsageProblem when it is refused."""
        submit = _submission(self._spec, self._id)
        self._task = self._loop.create_task(self._until_ended(submit))
        try:
            return await self._task
        except asyncio.CancelledError:
            if self._cancelled is None:
                raise
            code, reason = self._cancelled
            return JobResult(code, f"{reason} {_UNCONFIRMED if self._known else ''}".strip())
        finally:
            await self._console.close(_DRAIN_S if self._cancelled else None)

    def cancel(self, code: int, reason: str) -> None:
        """Ends the job: politely the first time, at once the second time; the third time nobody is waited for.

        A coordinator that can't hear of it is not waited for the second time; one that was never there, not even the first time.
        """
        self._cancelled = self._cancelled or (code, reason)
        self._cancels += 1
        self._frames.put_nowait(self._cancel_frame())
        if self._task is None:
            return
        patience = 2 if self._away_since is None else int(self._known)
        if self._cancels > patience:
            self._task.cancel()
        elif self._cancels == 1:
            self._loop.call_later(_END_S, self._task.cancel)

    def _cancel_frame(self) -> control_pb2.JobFrame:
        code, reason = self._cancelled or (1, "")
        return control_pb2.JobFrame(cancel=control_pb2.JobCancel(code=code, reason=reason, at_once=self._cancels > 1))

    def _output_closed(self, stream: int) -> None:
        self._closed_streams.add(stream)
        self._frames.put_nowait(control_pb2.JobFrame(output_closed=control_pb2.OutputClosed(stream=stream)))

    # ---- connections

    async def _until_ended(self, submit: control_pb2.JobSubmit) -> JobResult:
        while True:
            result, reason = await self._talk(submit)
            if result is not None:
                return result
            now = self._loop.time()
            if self._away_since is None:
                self._away_since, self._tries = now, 0
            self._tell_break(reason)
            if now - self._away_since > self._spec.coordinator_timeout_s:
                return self._lost(reason)
            await asyncio.sleep(_PAUSES_S[min(self._tries, len(_PAUSES_S) - 1)])
            self._tries += 1

    def _tell_break(self, reason: str) -> None:
        """Once, or, before there was a connection, whenever it is another reason."""
        if not self._known and reason != self._said:
            self._console.say(f"Waiting: the coordinator {self._spec.coordinator} can't be reached: {reason}.")
        elif self._known and self._tries == 0:
            self._console.say(f"the connection with coordinator {self._spec.coordinator} broke, trying again.")
        self._said = reason

    def _begin(self, submit: control_pb2.JobSubmit) -> None:
        """What a coordinator is told first, whatever it knows."""
        again = control_pb2.JobSubmit()
        again.CopyFrom(submit)
        again.again = self._accepted
        again.taken.update(self._taken)
        self._told = dict(self._taken)
        frames = [control_pb2.JobFrame(submit=again)]
        frames += [self._cancel_frame()] if self._cancelled else []
        for stream in sorted(self._closed_streams):
            frames.append(control_pb2.JobFrame(output_closed=control_pb2.OutputClosed(stream=stream)))
        self._frames = asyncio.Queue()
        for frame in frames:
            self._frames.put_nowait(frame)

    async def _talk(self, submit: control_pb2.JobSubmit) -> tuple[JobResult | None, str]:
        """One connection to its end: the result, or why there is none yet."""
        self._begin(submit)
        async with open_channel(self._spec.coordinator, self._spec.security) as channel:
            call = open_stream(channel, RUN, self._spec.security)
            writer: asyncio.Task[None] | None = None
            try:
                await admission(call)
                writer = self._loop.create_task(self._write(call))
                return await self._read(call), "it ended the connection"
            except grpc.aio.AioRpcError as error:
                return None, await self._meaning(error)
            except asyncio.InvalidStateError as error:
                return None, str(error)
            finally:
                if writer is not None:
                    writer.cancel()
                    await asyncio.gather(writer, return_exceptions=True)
                call.cancel()

    async def _write(self, call: Any) -> None:
        with contextlib.suppress(grpc.RpcError, grpc.aio.BaseError, asyncio.InvalidStateError):
            while True:
                frame = await self._frames.get()
                if frame is _TAKEN:
                    if self._told == self._taken:
                        continue
                    self._told = dict(self._taken)
                    frame = control_pb2.JobFrame(taken=control_pb2.OutputTaken(taken=self._told))
                await call.write(frame)

    async def _read(self, call: Any) -> JobResult | None:
        while (update := await call.read()) is not grpc.aio.EOF:
            self._known, self._away_since = True, None
            result = await self._take(update)
            if update.agent:
                self._taken[update.agent] = update.seq
                self._frames.put_nowait(_TAKEN)
            if result is not None:
                return result
        return None

    async def _take(self, update: control_pb2.JobUpdate) -> JobResult | None:
        body = update.WhichOneof("body")
        if body == "accepted":
            self._tell_places(unpack(RankPlace, update.accepted.places))
        elif body == "output":
            await self._console.show(update.output.rank, update.output.stream, update.output.data)
        elif body == "notice":
            self._console.say(update.notice.text)
        elif body == "refused" and (self._accepted or self._cancelled):
            code, reason = self._cancelled or (1, "")
            return JobResult(code, f"{reason} {update.refused.text}".strip())
        elif body == "refused":
            raise UsageProblem(update.refused.text)
        elif body == "ended":
            end = update.ended
            return JobResult(end.code, end.text, end.rank, end.host, end.pid, end.signal, end.last_lines)
        return None

    def _tell_places(self, places: Sequence[RankPlace]) -> None:
        self._accepted = True
        for place in places:
            log.info("Rank %d runs on host %s, agent %s.", place.rank, place.host, place.agent)
        if self._spec.attach:
            where = ", ".join(f"rank {place.rank} on host {place.host}" for place in places)
            self._console.say(f"All ranks have come: {where}.")

    async def _meaning(self, error: grpc.aio.AioRpcError) -> str:
        spec, text = self._spec, error.details() or error.code().name
        if error.code() is grpc.StatusCode.UNAUTHENTICATED and not self._accepted:
            raise UsageProblem(text)
        if self._known:
            return text
        advice = ""
        if error.code() is grpc.StatusCode.UNAVAILABLE:
            advice = await explain(spec.coordinator, spec.security)
        text = advice or f"{text}; is hvd-coordinator running?"
        if spec.wait and error.code() is grpc.StatusCode.UNAVAILABLE:
            return text
        raise UsageProblem(f"the coordinator {spec.coordinator} can't be reached: {text}")

    def _lost(self, reason: str) -> JobResult:
        code, text = self._cancelled or (1, "")
        if not self._known:
            limit = f"within {self._spec.coordinator_timeout_s:g} s, see --coordinator-timeout"
            return JobResult(1, f"The coordinator {self._spec.coordinator} was not there {limit}: {reason}.")
        lost = (
            f"The connection with coordinator {self._spec.coordinator} broke: {reason}. It was not started anew within "
            f"{self._spec.coordinator_timeout_s:g} s, see --coordinator-timeout; the agents end the ranks by themselves."
        )
        return JobResult(code, f"{text} {lost}".strip())


_TAKEN = control_pb2.JobFrame()  # stands for what is taken by the time it is written


def _submission(spec: RemoteSpec, job: str) -> control_pb2.JobSubmit:
    submit = control_pb2.JobSubmit(
        protocol=_PROTOCOL,
        version=horovod.__version__,
        size=spec.size,
        command=[os.fsencode(word) for word in spec.command],
        directory=_directory(),
        wait=spec.wait,
        id=job,
        attach=spec.attach,
        launcher=f"{_user()}@{socket.gethostname()}",
    )
    for name, value in spec.environment.items():
        submit.environment.add(name=os.fsencode(name), value=os.fsencode(value))
    fill(submit.limits, spec.limits)
    return submit


def _directory() -> bytes:
    try:
        return os.getcwdb()
    except FileNotFoundError:
        raise UsageProblem(
            "the working directory of the launcher does not exist any more: change to another one"
        ) from None


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


async def run_remote_job(spec: RemoteSpec) -> JobResult:
    """For a program of its own: SIGINT, SIGTERM and SIGHUP end the job, a second one at once."""
    job = RemoteJob(spec)
    with heeded_signals(job.cancel):
        return await job.run()
