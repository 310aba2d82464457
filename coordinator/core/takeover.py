"""The part of the coordinator that takes over a job of an earlier one: what is awaited, in which order things go on.

What the job and its epoch are made of is in adoption.py and reunion.py.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from horovod.coordinator.core import events as ev
from horovod.coordinator.core.adoption import Adoption, TakenJob, others, remember
from horovod.coordinator.core.commands import (
    EpochStart,
    JobAdopted,
    JobEnded,
    JobFinished,
    Outbox,
    Registered,
    StartRanks,
    StopRanks,
)
from horovod.coordinator.core.config import Config
from horovod.coordinator.core.epoch import Epoch
from horovod.coordinator.core.job import Job, RankRecord
from horovod.coordinator.core.ring import Ring
from horovod.coordinator.core.selfstart import SelfStart, launcher_id
from horovod.coordinator.core.tally import Tally

__all__ = ["Agent", "Takeover", "job_finished"]


@dataclass(slots=True)
class Agent:
    """A registered agent; ``addresses`` are those of its data ``plane``."""

    host: str
    slots: int
    labels: Mapping[str, str] = field(default_factory=dict)
    addresses: tuple[str, ...] = ()
    plane: str = ""
    presents: bool = False


class Takeover:
    """Knows the coordinator's state; what happens in it is told through the coordinator's own handlers."""

    config: Config
    defaults: Config
    incarnation: int
    agents: dict[str, Agent]
    job: Job | None
    epoch: Epoch | None
    epochs: int
    ring: Ring | None
    jobs: int
    patience_s: float
    adoption: Adoption | None
    results: dict[str, JobEnded]
    selfstart: SelfStart
    tally: Tally

    @abstractmethod
    def _happened(self, out: Outbox, event: ev.Event, now: float) -> None: ...

    @abstractmethod
    def _registered(self, body: ev.Register) -> None: ...

    @abstractmethod
    def _rank_report(
        self, out: Outbox, body: ev.RankHello | ev.RankStarted | ev.RankExited | ev.RankLeft, now: float
    ) -> None: ...

    @abstractmethod
    def _rank_lost(self, out: Outbox, job: Job, record: RankRecord, now: float, reason: str) -> None: ...

    @abstractmethod
    def release(self, out: Outbox, job: Job) -> None: ...

    @abstractmethod
    def start_ranks(self, out: Outbox, job: Job, agents: tuple[str, ...]) -> None: ...

    @abstractmethod
    def _peer_lost(self, out: Outbox, epoch: Epoch, agent: str, body: ev.PeerLost) -> None: ...

    @abstractmethod
    def _reject_unreachable(self, out: Outbox, job: Job) -> None: ...

    @abstractmethod
    def _start_epoch(self, out: Outbox, job: Job) -> None: ...

    @abstractmethod
    def _finish(self, out: Outbox, job: Job) -> None: ...

    def _is_about_adoption(self, event: ev.Event, now: float) -> bool:
        """Whether the event is dealt with: it begins, furthers or has to wait for the adoption of a job."""
        body = event.body if isinstance(event, ev.Report) else None
        begins = isinstance(event, ev.JobAwaited) or (isinstance(body, ev.Register) and body.presents)
        if begins and self.adoption is None and self.job is None:
            self.adoption = Adoption(now + self.patience_s)
        adoption = self.adoption
        if adoption is None:
            return False
        if isinstance(event, ev.Report) and isinstance(body, ev.Presented):
            adoption.present(event.agent, body, now)
        elif isinstance(event, ev.AgentLost):
            adoption.lost(event.agent)
            self.tally.agents_lost += self.agents.pop(event.agent, None) is not None
        elif isinstance(body, ev.Register):
            adoption.lost(body.agent)
            self._registered(body)
        elif not isinstance(event, (ev.Tick, ev.JobAwaited)):
            adoption.waiting.append(event)
        return True

    def _look_at_adoption(self, out: Outbox, now: float) -> None:
        adoption = self.adoption
        assert adoption is not None
        if now >= adoption.deadline or adoption.missing(self.fresh) == set():
            self.adoption = None
            for _, finished in adoption.results():
                remember(self.results, finished)
            out.cast(tuple(self.agents), Registered(self.incarnation))
            self._adopt(out, adoption, now)
            for event in adoption.waiting:
                self._happened(out, event, now)

    def _adopt(self, out: Outbox, adoption: Adoption, now: float) -> None:
        start = adoption.job()
        for agent in others(adoption, start):
            self._send_away(out, agent, "The coordinator was started anew and goes on with a later job.")
        results = {agent: finished for agent, finished in adoption.results() if finished.has_output}
        if start is not None and start.id in self.results:
            self._finish_adopted(out, start, adoption, self.results[start.id])
        elif start is not None:
            self._take_job(out, TakenJob(start, adoption, self.defaults, self.incarnation, self.tally, now))
        elif results:
            latest = max(results.values(), key=lambda finished: (finished.started, finished.job))
            agents = tuple(agent for agent, finished in results.items() if finished.id == latest.id)
            self.jobs = max(self.jobs, latest.job)
            out.commands.append(JobAdopted(latest.id, latest.job, 0, (), "", agents, out.cause))
            out.commands.append(replace(self.results[latest.id], cause=out.cause))

    def _send_away(self, out: Outbox, agent: str, reason: str) -> None:
        out.send(agent, StopRanks(reason, 0.0))
        out.send(agent, JobFinished(1, reason))

    def _finish_adopted(self, out: Outbox, start: StartRanks, adoption: Adoption, end: JobEnded) -> None:
        """The job had ended, and some agents have not heard of it."""
        self.jobs = max(self.jobs, start.job)
        agents = tuple(dict.fromkeys(place.agent for place in start.places if place.agent in adoption.presented))
        self._announce_adopted(out, start, agents)
        for agent, body in adoption.presented.items():
            if any(item.id == start.id for item in body.start):
                out.send(agent, job_finished(end))
        out.commands.append(replace(end, cause=out.cause))

    def _announce_adopted(self, out: Outbox, start: StartRanks, agents: tuple[str, ...]) -> None:
        job = (start.job, start.size, start.command, start.launcher)
        if start.guests:
            out.commands.append(JobAdopted(launcher_id(start.id), *job, (), out.cause))
        else:
            out.commands.append(JobAdopted(start.id, *job, agents, out.cause))

    def _take_job(self, out: Outbox, taken: TakenJob) -> None:
        start, now = taken.start, taken.now
        self.tally.jobs_adopted += 1
        self.job = job = taken.job()
        self.jobs, self.config = max(self.jobs, start.job), taken.limits()
        self._announce_adopted(
            out, start, tuple(dict.fromkeys(p.agent for p in start.places if p.agent in self.agents))
        )
        if job.attached:
            self.selfstart.take_over(start, {*taken.parts, *taken.unstarted})
        self.start_ranks(out, job, tuple(taken.unstarted))
        self.epochs = max(self.epochs, taken.epoch_number)
        epoch_start = taken.epoch_start()
        if epoch_start is not None:
            self._take_epoch(out, taken, job, epoch_start)
        else:
            self._take_news(out, taken, job)
        for record in job.ranks:
            agent = record.place.agent
            if agent not in taken.parts and agent not in taken.unstarted:
                came = "it has begun a new session" if agent in self.agents else "it did not come back in time"
                self._rank_lost(out, job, record, now, f"{came}, after the coordinator was started anew")
        self._start_anything(out, job, now)

    def _start_anything(self, out: Outbox, job: Job, now: float) -> None:
        """What the last Hello would have led to."""
        if self.job is None:
            return
        if job.waiting():
            job.first_hello_at = job.start_warned_at = now
        self._reject_unreachable(out, job)
        self._start_epoch(out, job)
        self._finish(out, job)

    def _take_epoch(self, out: Outbox, taken: TakenJob, job: Job, start: EpochStart) -> None:
        self.epoch = epoch = taken.epoch(job, start)
        self.ring = Ring(start.ring, "as before the coordinator was started anew")
        out.epoch = epoch.number
        for agent in taken.late_starters():
            out.send(agent, start)
        reunion = taken.reunion(out, epoch)
        reunion.settle(start.process_sets)
        for agent, body in taken.parts.items():
            for lost in body.peer_lost:
                self._peer_lost(out, epoch, agent, lost)
        taken.ended(epoch, reunion, out, job)
        self._take_news(out, taken, job)
        if self.epoch is epoch:
            reunion.ask_again()

    def _take_news(self, out: Outbox, taken: TakenJob, job: Job) -> None:
        for news in taken.news():
            if self.job is job:
                self._rank_report(out, news.body, taken.now)
                self.release(out, job)

    @property
    def fresh(self) -> set[str]:
        """Agents that have nothing of an earlier coordinator."""
        return {name for name, agent in self.agents.items() if not agent.presents}

    def _presented_late(self, out: Outbox, agent: str, body: ev.Presented) -> None:
        for finished in body.finished:
            remember(self.results, finished)
        if body.start:
            reason = "The agent did not come back in time after the coordinator was started anew: its ranks are ended."
            self._send_away(out, agent, reason)


def job_finished(end: JobEnded) -> JobFinished:
    """The same for agents, which keep it for a coordinator that is started after this one."""
    return JobFinished(end.code, end.text, end.rank, end.host, end.pid, end.signal, end.last_lines)
