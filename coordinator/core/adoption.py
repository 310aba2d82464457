"""A coordinator that was started anew takes over the job that runs: from what the agents present.

Until every agent of that job has presented itself, or is given up, nothing is ordered and what else happens waits.  Then the
job and its epoch are put together as they were, and what has happened to ranks since is told like news.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from horovod.coordinator.core import events as ev
from horovod.coordinator.core.commands import EpochStart, JobEnded, Outbox, StartRanks
from horovod.coordinator.core.config import Config
from horovod.coordinator.core.epoch import Epoch
from horovod.coordinator.core.job import Job, RankPhase, RankRecord
from horovod.coordinator.core.reunion import Reunion
from horovod.coordinator.core.tally import Tally
from horovod.coordinator.core.values import ErrorKind

__all__ = ["Adoption", "News", "TakenJob", "others", "remember"]

_MOST_RESULTS = 8


@dataclass(frozen=True, slots=True)
class News:
    """What has happened to a rank, in the order in which it did; ``lost`` says why nobody knows how it ended."""

    at: float
    body: ev.RankLeft | ev.RankExited | ev.RankHello
    lost: str = ""


@dataclass(slots=True)
class Adoption:
    """Agents that come back; ``waiting`` are the events that have to wait for that."""

    deadline: float
    presented: dict[str, ev.Presented] = field(default_factory=dict)
    came_at: dict[str, float] = field(default_factory=dict)
    waiting: list[ev.Event] = field(default_factory=list)

    def present(self, agent: str, body: ev.Presented, now: float) -> None:
        """An agent tells what it knows."""
        self.presented[agent], self.came_at[agent] = body, now

    def lost(self, agent: str) -> None:
        """It is gone again."""
        self.presented.pop(agent, None)
        self.waiting = [e for e in self.waiting if not (isinstance(e, ev.Report) and e.agent == agent)]

    def job(self) -> StartRanks | None:
        """The latest job that an agent has ranks of."""
        starts = [start for body in self.presented.values() for start in body.start]
        return max(starts, key=lambda start: (start.started, start.job), default=None)

    def missing(self, fresh: set[str]) -> set[str] | None:
        """Agents of the job that have not come; None: nobody knows of a job.  ``fresh`` ones have nothing to present."""
        job = self.job()
        if job is None:
            return None
        return {place.agent for place in job.places} - self.presented.keys() - fresh

    def results(self) -> Iterator[tuple[str, ev.FinishedJob]]:
        """Jobs that agents know the end of."""
        for agent, body in self.presented.items():
            for finished in body.finished:
                yield agent, finished


@dataclass(slots=True)
class TakenJob:
    """The job of ``start``, from what its agents have presented; ``fresh`` are agents that have no memory of it."""

    start: StartRanks
    adoption: Adoption
    config: Config
    incarnation: int
    tally: Tally
    now: float
    parts: dict[str, ev.Presented] = field(init=False)
    facts: dict[int, ev.RankPresented] = field(init=False)

    def __post_init__(self) -> None:
        everybody = self.adoption.presented
        self.parts = {
            agent: body for agent, body in everybody.items() if any(s.id == self.start.id for s in body.start)
        }
        self.facts = {fact.rank: fact for body in self.parts.values() for fact in body.ranks}

    @property
    def unstarted(self) -> list[str]:
        """Agents of the job that came back, but have never heard of it."""
        known = self.adoption.presented
        agents = dict.fromkeys(place.agent for place in self.start.places)
        return [a for a in agents if a in known and a not in self.parts and known[a].last_job != self.start.id]

    @property
    def epoch_number(self) -> int:
        """The latest one that began anywhere."""
        return max((body.last_epoch for body in self.parts.values()), default=0)

    def limits(self) -> Config:
        """Those of the job; how long ranks may take to end is this coordinator's to say."""
        return replace(self.start.limits, **self.config.of_ends())

    def job(self) -> Job:
        """As it was before what ``news`` tells."""
        start, number = self.start, self.epoch_number if self.epoch_start() is not None else 0
        job = Job(start.size, start.command, start.environment, start.directory, list(map(RankRecord, start.places)))
        job.number, job.id, job.started, job.launcher = start.job, start.id, start.started, start.launcher
        job.attached, job.guests = bool(start.guests), start.guests
        for record in job.ranks:
            record.restore(self.facts.get(record.place.rank), number)
        return job

    def epoch_start(self) -> EpochStart | None:
        """The order that began the latest epoch."""
        number = self.epoch_number
        starts = [start for body in self.parts.values() if body.last_epoch == number for start in body.epoch_start]
        return starts[0] if starts else None

    def epoch(self, job: Job, start: EpochStart) -> Epoch:
        """The latest epoch, with nothing in it yet."""
        generation = max((record.generation for record in job.ranks if record.phase is RankPhase.READY), default=0)
        for record in job.ranks:  # also those of which nothing is known: they were in it
            if record.phase is not RankPhase.READY:
                record.become(RankPhase.READY)
                record.generation = generation
                record.hello = record.hello or ev.RankHello(record.place.rank, generation)
        epoch = Epoch(self.epoch_number, generation, start.places, self.limits(), self.incarnation, self.tally)
        epoch.extended_join = job.extended_join
        return epoch

    def late_starters(self) -> list[str]:
        """Agents that have not heard of the start of the latest epoch."""
        return [agent for agent, body in self.parts.items() if body.last_epoch < self.epoch_number]

    def reunion(self, out: Outbox, epoch: Epoch) -> Reunion:
        """The epoch's own part."""
        number = self.epoch_number
        parts = {a: body.epoch[0] for a, body in self.parts.items() if body.last_epoch == number and body.epoch}
        inside = {place.agent for place in self.start.places if self._is_inside(place.rank)}
        gone = frozenset(place.agent for place in self.start.places) - inside - parts.keys()
        return Reunion(out, epoch, parts, gone, self.now)

    def _is_inside(self, rank: int) -> bool:
        fact = self.facts.get(rank)
        number = self.epoch_number
        return fact is not None and not fact.exited and (fact.epoch == number or fact.left_epoch < number)

    def culprit(self) -> int:
        """The rank that left the latest epoch first, -1 when none has."""
        left = [news for news in self.news() if isinstance(news.body, ev.RankLeft)]
        return left[0].body.rank if left else -1

    def news(self) -> list[News]:
        """What has happened to ranks in the latest epoch, and after it."""
        found: list[News] = []
        for agent, body in self.parts.items():
            came_at = self.adoption.came_at[agent]
            for fact in body.ranks:
                found += self._news_of(fact, came_at)
        return sorted(found, key=lambda news: news.at)

    def _news_of(self, fact: ev.RankPresented, came_at: float) -> Iterator[News]:
        number = self.epoch_number
        left_at = came_at - fact.left_s
        if fact.left and number and fact.left_epoch == number:
            yield News(left_at, fact.left[0])
            if fact.hello and fact.epoch != number:
                yield News(left_at, fact.hello[0])
        if fact.exited:
            yield News(came_at - fact.exited_s, fact.exited[0])

    def ended(self, epoch: Epoch, reunion: Reunion, out: Outbox, job: Job) -> None:
        """Ends the epoch if it has ended on some agent."""
        for part in reunion.parts.values():
            for error in part.ended:
                if epoch.ended is None and error.kind is ErrorKind.SHUT_DOWN:
                    job.culprit = self.culprit()
                epoch.end(out, error)


def remember(results: dict[str, JobEnded], finished: ev.FinishedJob) -> None:
    """How a job ended, for its launcher when that comes back."""
    details = (finished.rank, finished.host, finished.pid, finished.signal, finished.last_lines)
    results[finished.id] = JobEnded(finished.code, finished.text, *details)
    while len(results) > _MOST_RESULTS:
        del results[next(iter(results))]


def others(adoption: Adoption, start: StartRanks | None) -> Mapping[str, ev.Presented]:
    """Agents that present ranks of another job."""
    wanted = start.id if start is not None else ""
    return {a: body for a, body in adoption.presented.items() if any(s.id != wanted for s in body.start)}
