"""Launchers and their jobs: who runs, who waits, and what each is told.  The order is decided in core/queue.py."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import grpc
from horovod.coordinator.core import Config, GatheringOpened, JobAdopted, JobCancelled, JobEnded, JobSubmitted
from horovod.coordinator.core.job import Job
from horovod.coordinator.core.queue import JobQueue, Refuse, Wait, Wanted
from horovod.coordinator.core.values import RankPlace
from horovod.coordinator.feeds import JobFeeds
from horovod.coordinator.outbox import Outbox
from horovod.coordinator.sessions import first_frame, until_one_ends
from horovod.proto import control_pb2
from horovod.proto.codec import fill, read, to_bytes, to_text
from horovod.proto.places import pack

__all__ = ["JobDesk", "Jobs"]

log = logging.getLogger("horovod.coordinator")

_PROTOCOL = 1
_LAUNCHER_GONE = 128 + 1
_GONE = "The launcher is gone."
_RETURN_S = 30.0  # how long the launcher of an adopted job may take to come back
_COMING_BACK = "Waiting: the coordinator was started anew, and agents may still come back with a job that runs."
_UNKNOWN = (
    "The coordinator was started anew, and no agent that came back in time has ranks of this job: they are ended, or they are on "
    "agents that are gone."
)
_NO_LAUNCHER = 0  # the ticket of a job that formed by itself
_STARTED_BY_OTHERS = ("processes that others have started",)


class Jobs(Protocol):
    """What the desk needs of the coordinator; ``submit`` gives the job that runs now, or says why there is none."""

    def submit(self, event: JobSubmitted) -> tuple[int, Job] | str: ...

    def gather(self, event: GatheringOpened) -> None: ...

    def release(self) -> None: ...

    def cancel(self, event: JobCancelled) -> None: ...

    def slots(self) -> int: ...

    def instance(self, agent: str) -> str: ...

    @property
    def is_adopting(self) -> bool: ...

    def await_job(self) -> None: ...

    def result(self, job: str) -> JobEnded | None: ...


@dataclass(slots=True)
class _Launcher:
    """One Run call; ``feeds`` from the start of its job on, ``end`` from its end on.

    ``away_since``: the job was adopted, and its launcher has not come back yet.
    """

    ticket: int
    submit: control_pb2.JobSubmit
    outbox: Outbox = field(default_factory=Outbox)
    number: int = 0
    feeds: JobFeeds | None = None
    end: JobEnded | None = None
    ended_at: float = 0.0
    is_over: bool = False
    away_since: float | None = None
    cancels: list[JobCancelled] = field(default_factory=list)  # while it is not known what becomes of its job


class JobDesk:
    """Not thread-safe: it belongs to the running loop."""

    def __init__(self, jobs: Jobs, clock: Callable[[], float], limits: Config) -> None:
        self._jobs, self._clock, self._limits = jobs, clock, limits
        self._queue = JobQueue()
        self._launchers: dict[int, _Launcher] = {}
        self._tickets = 0
        self._held: list[_Launcher] = []  # until it is known whether a job is to be adopted
        self._awaited = False
        self._closing = ""

    @property
    def is_idle(self) -> bool:
        """Whether no job runs or waits."""
        return not self._launchers and self._queue.running is None

    @property
    def waiting(self) -> int:
        """Jobs that wait."""
        return len(self._queue.waiting)

    def feeds(self, number: int) -> JobFeeds | None:
        """The feeds of a job by its number."""
        running = self._running()
        return running.feeds if running is not None and running.number == number else None

    def _running(self) -> _Launcher | None:
        job = self._queue.running
        return self._launchers.get(job.ticket) if job is not None else None

    # ---- a launcher

    async def serve(self, context: Any) -> None:
        """A Run call, to its end."""
        frame = await first_frame(context)
        if frame is None or frame.WhichOneof("body") != "submit":
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "A launcher's first frame is a JobSubmit.")
            return
        launcher = self._come(frame.submit)
        try:
            await until_one_ends(self._write(context, launcher), self._read(context, launcher))
        finally:
            self._gone(launcher)

    def _come(self, submit: control_pb2.JobSubmit) -> _Launcher:
        """A launcher, new or back again."""
        self._tickets += 1
        launcher = _Launcher(self._tickets, submit)
        self._launchers[launcher.ticket] = launcher
        if submit.again and self._adopted(submit.id) is None and not self._awaited and self._queue.running is None:
            self._awaited = True
            self._jobs.await_job()
        if self._jobs.is_adopting and not self._closing:
            self._held.append(launcher)
            self._say(launcher, _COMING_BACK)
        else:
            self._admit(launcher)
        return launcher

    async def _write(self, context: Any, launcher: _Launcher) -> None:
        while True:
            update = await launcher.outbox.get()
            await context.write(update)
            if update.WhichOneof("body") in ("ended", "refused"):
                return

    async def _read(self, context: Any, launcher: _Launcher) -> None:
        while (frame := await context.read()) is not grpc.aio.EOF:
            body = frame.WhichOneof("body")
            if body == "cancel":
                self._cancel(launcher, JobCancelled(frame.cancel.code, frame.cancel.reason, frame.cancel.at_once))
            elif body == "output_closed" and launcher.feeds is not None:
                launcher.feeds.close_stream(frame.output_closed.stream)
            elif body == "taken" and launcher.feeds is not None:
                launcher.feeds.take(frame.taken.taken)

    def _gone(self, launcher: _Launcher) -> None:
        launcher.outbox.close()
        if not launcher.is_over:
            log.warning("The launcher of %s is gone.", _wanted(launcher))
            self._cancel(launcher, JobCancelled(_LAUNCHER_GONE, _GONE))
            self._look(launcher)

    # ---- jobs of an earlier coordinator

    def adopted(self, job: JobAdopted) -> None:
        """A job goes on here; its launcher, if it has one, has to come back."""
        if not job.id:
            self._queue.adopt(Wanted(_NO_LAUNCHER, job.size, _STARTED_BY_OTHERS))
            return
        self._tickets += 1
        submit = control_pb2.JobSubmit(size=job.size, launcher=job.launcher, id=job.id)
        submit.command.extend(map(to_bytes, job.command))
        away = _Launcher(self._tickets, submit, number=job.job, away_since=self._clock())
        agents = {agent: self._jobs.instance(agent) for agent in job.agents}
        away.feeds = JobFeeds(away.outbox, agents, self._clock(), lambda: self._look(away))
        away.feeds.held = True
        self._launchers[away.ticket] = away
        self._queue.adopt(_wanted(away))

    def _adopted(self, job: str) -> _Launcher | None:
        """The adopted job of this id, if its launcher is away."""
        running = self._running()
        away = running is not None and running.away_since is not None and running.submit.id == job
        return running if away else None

    def _come_back(self, launcher: _Launcher, away: _Launcher) -> None:
        """The launcher of an adopted job takes its place again."""
        launcher.number, launcher.feeds = away.number, away.feeds
        launcher.end, launcher.ended_at = away.end, self._clock()
        del self._launchers[away.ticket]
        self._queue.adopt(_wanted(launcher))
        log.info("The launcher of job %d has come back.", launcher.number)
        assert launcher.feeds is not None
        launcher.feeds.begin_at(launcher.submit.taken, launcher.outbox, lambda: self._look(launcher))
        launcher.outbox.take_from(away.outbox)
        self._look(launcher)

    def settled(self) -> None:
        """Whatever goes on from an earlier coordinator is known now."""
        held, self._held = self._held, []
        for launcher in held:
            if not launcher.is_over:
                self._admit(launcher)
            for event in launcher.cancels:
                self._cancel(launcher, event)
        self.advance()

    # ---- from submission to end

    def _admit(self, launcher: _Launcher) -> None:
        submit = launcher.submit
        if submit.protocol != _PROTOCOL:
            text = (
                f"This launcher (hvd {submit.version}) speaks protocol {submit.protocol}, the coordinator {_PROTOCOL}: "
                "install the same version of hvd on both."
            )
            self._refuse(launcher, text)
        elif self._closing or submit.size < 1 or bool(submit.command) == submit.attach:
            self._refuse(launcher, self._closing or "A job has at least one rank, and a command unless it attaches.")
        elif (away := self._adopted(submit.id)) is not None:
            self._come_back(launcher, away)
        elif submit.again:
            self._tell_end(launcher)
        else:
            answer = self._queue.submit(_wanted(launcher), self._jobs.slots())
            if isinstance(answer, Refuse):
                self._refuse(launcher, answer.text)
            elif isinstance(answer, Wait):
                self._say(launcher, answer.text)
            else:
                self._start(launcher)

    def _tell_end(self, launcher: _Launcher) -> None:
        """Its job does not run any more."""
        end = self._jobs.result(launcher.submit.id)
        if end is None:
            self._refuse(launcher, _UNKNOWN)
        else:
            self._finish(launcher, end)

    def _start(self, launcher: _Launcher) -> None:
        if launcher.submit.attach:
            self._gather(launcher)
            return
        started = self._jobs.submit(_event(launcher.submit, self._limits))
        if isinstance(started, str):
            self._refuse(launcher, started)
            return
        launcher.number, job = started
        agents = {place.agent: self._jobs.instance(place.agent) for place in job.places}
        launcher.feeds = JobFeeds(launcher.outbox, agents, self._clock(), lambda: self._look(launcher))
        launcher.outbox.put_now(_accepted(job.places))
        log.info("Job %d starts: %s.", launcher.number, _wanted(launcher))

    def _gather(self, launcher: _Launcher) -> None:
        """Nothing is started: the launcher hears of ranks that others start."""
        launcher.feeds = JobFeeds(launcher.outbox, {}, self._clock(), lambda: self._look(launcher))
        event = _event(launcher.submit, self._limits)
        self._jobs.gather(GatheringOpened(event.size, event.limits, event.id, event.launcher))

    def formed(self, number: int, places: Sequence[RankPlace]) -> None:
        """Processes that others have started are a job now: of the launcher that waits for it, or of none."""
        launcher = self._running()
        if launcher is None:
            self._queue.running = Wanted(_NO_LAUNCHER, len(places), _STARTED_BY_OTHERS)
        else:
            launcher.number = number
            launcher.outbox.put_now(_accepted(places))
        log.info("Job %d starts: %d processes that others have started.", number, len(places))

    def seen(self, text: str) -> None:
        """Who has come, for the launcher that waits for ranks that others start."""
        launcher = self._running()
        if launcher is not None:
            self._say(launcher, text)

    def _say(self, launcher: _Launcher, text: str) -> None:
        launcher.outbox.put_now(control_pb2.JobUpdate(notice=control_pb2.JobNotice(text=text)))

    def _refuse(self, launcher: _Launcher, text: str) -> None:
        launcher.outbox.put_now(control_pb2.JobUpdate(refused=control_pb2.JobRefused(text=text)))
        self._forget(launcher)

    def _cancel(self, launcher: _Launcher, event: JobCancelled) -> None:
        if launcher in self._held and launcher.submit.again:
            launcher.cancels.append(event)
        elif launcher.feeds is None and not launcher.is_over:
            self._finish(launcher, JobEnded(event.code, event.reason))
        elif launcher.end is None and not launcher.is_over:
            self._jobs.cancel(event)

    def ended(self, end: JobEnded) -> None:
        """The core says that every rank of the running job is gone; its output may still be on the way."""
        launcher = self._running()
        if launcher is not None and launcher.feeds is not None:
            launcher.end, launcher.ended_at = end, self._clock()
            log.info("Job %d has ended with code %d. %s", launcher.number, end.code, end.text)
            self._look(launcher)
        elif self._queue.over(_NO_LAUNCHER):
            log.info("The job of processes that others have started has ended with code %d. %s", end.code, end.text)
            asyncio.get_running_loop().call_soon(self.advance)

    def _look(self, launcher: _Launcher) -> None:
        is_here = launcher.away_since is None
        over = launcher.feeds is not None and ((is_here and launcher.feeds.is_over) or launcher.outbox.closed)
        if launcher.end is not None and over and not launcher.is_over:
            self._finish(launcher, launcher.end)

    def _finish(self, launcher: _Launcher, end: JobEnded) -> None:
        update = control_pb2.JobUpdate()
        fill(update.ended, end)
        update.ended.SetInParent()
        launcher.outbox.put_now(update)
        self._forget(launcher)

    def _forget(self, launcher: _Launcher) -> None:
        launcher.is_over = True
        self._launchers.pop(launcher.ticket, None)
        self._queue.over(launcher.ticket)
        if self._running() is None:
            self._jobs.release()
        asyncio.get_running_loop().call_soon(self.advance)

    # ---- what happens elsewhere

    def advance(self) -> None:
        """Starts the next job if its turn has come."""
        turn = self._queue.next(self._jobs.slots()) if not self._jobs.is_adopting else None
        if turn is not None:
            self._start(self._launchers[turn.ticket])

    def lost(self, agent: str, leaving: bool) -> None:
        """An agent is gone; one that takes leave still sends what its ranks write while they end."""
        running = self._running()
        if running is not None and running.feeds is not None and not leaving:
            running.feeds.end([agent])

    def tick(self) -> None:
        """Several times a second."""
        running = self._running()
        if running is not None and running.away_since is not None:
            if self._clock() - running.away_since > _RETURN_S:
                self._do_without(running)
        elif running is not None and running.feeds is not None and running.end is not None:
            running.feeds.end_unheard(running.ended_at, self._clock())

    def _do_without(self, away: _Launcher) -> None:
        """The launcher of an adopted job is not awaited any more."""
        away.away_since = None
        if away.feeds is not None:
            away.feeds.held = False
            away.feeds.end(list(away.feeds.feeds))
        self._gone(away)

    def close(self, reason: str) -> None:
        """No more jobs: the running one is cancelled, those that wait are refused."""
        self._closing = reason
        if self._queue.running is not None and self._running() is None:
            self._jobs.cancel(JobCancelled(1, reason))
        for launcher in list(self._launchers.values()):
            if launcher.feeds is None:
                self._refuse(launcher, reason)
            else:
                self._cancel(launcher, JobCancelled(1, reason))
                if launcher.away_since is not None:
                    self._do_without(launcher)


def _accepted(places: Sequence[RankPlace]) -> control_pb2.JobUpdate:
    update = control_pb2.JobUpdate()
    pack(update.accepted.places, places)
    return update


def _wanted(launcher: _Launcher) -> Wanted:
    submit = launcher.submit
    command = tuple(map(to_text, submit.command)) or _STARTED_BY_OTHERS
    return Wanted(launcher.ticket, submit.size, command, submit.launcher, submit.wait)


def _event(submit: control_pb2.JobSubmit, limits: Config) -> JobSubmitted:
    """The submission for the core; how long ranks may take to end is the coordinator's to say."""
    if submit.HasField("limits"):
        limits = read(Config, submit.limits, **limits.of_ends())
    environment = {to_text(item.name): to_text(item.value) for item in submit.environment}
    command = tuple(map(to_text, submit.command))
    directory = to_text(submit.directory)
    return JobSubmitted(submit.size, command, environment, directory, limits, submit.id, submit.launcher)
