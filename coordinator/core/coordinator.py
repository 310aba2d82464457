"""The coordinator: membership, jobs and epochs; hands everything inside an epoch to it.

Owns the agents, the job and the current epoch.  Only it raises the epoch number.  It never touches clock, network or
files: time is an argument, commands are returned.  Messages of an older epoch are dropped and counted.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from horovod.coordinator.core import events as ev
from horovod.coordinator.core.adoption import Adoption
from horovod.coordinator.core.commands import (
    Cast,
    Command,
    EpochStart,
    Host,
    JobEnded,
    MeasureRoundTrips,
    Outbox,
    RankRejected,
    Registered,
    Send,
    StartRanks,
    StopRanks,
    Warn,
)
from horovod.coordinator.core.config import Config
from horovod.coordinator.core.distances import Distances
from horovod.coordinator.core.epoch import Epoch
from horovod.coordinator.core.hellos import disagreement
from horovod.coordinator.core.job import Failure, Job, RankCause, RankPhase, RankRecord, leave_text, place_ranks, where
from horovod.coordinator.core.process_sets import SetCall
from horovod.coordinator.core.ring import Ring, by_labels, order_ring
from horovod.coordinator.core.selfstart import SelfStart, released
from horovod.coordinator.core.takeover import Agent, Takeover, job_finished
from horovod.coordinator.core.tally import Tally
from horovod.coordinator.core.values import Error, ErrorKind, ProcessSet

# Reports after which processes that wait for a rank may get one, or hear something new.
_MOVES = (ev.Register, ev.Presented, ev.Guests, ev.RankHello, ev.RankLeft, ev.RankExited, ev.PeerLost)


@dataclass(slots=True)
class Coordinator(Takeover):
    """``handle`` one event at a time, in the order in which they come."""

    config: Config = field(default_factory=Config)
    incarnation: int = 1
    secret: bytes = b""  # keys of epochs are made from it: random, and known to the coordinator alone
    agents: dict[str, Agent] = field(default_factory=dict)
    job: Job | None = None
    epoch: Epoch | None = None
    epochs: int = 0
    ring: Ring | None = None
    distances: Distances = field(default_factory=Distances)
    jobs: int = 0
    stale: int = 0
    handled: int = 0
    patience_s: float = 15.0  # for agents of a job that an earlier coordinator has started
    adoption: Adoption | None = None
    results: dict[str, JobEnded] = field(default_factory=dict)  # by job id; of jobs of earlier coordinators
    tally: Tally = field(default_factory=Tally)
    selfstart: SelfStart = field(default_factory=SelfStart)
    defaults: Config = field(init=False)  # the limits of jobs that name none

    def __post_init__(self) -> None:
        self.defaults = self.config

    def handle(self, event: ev.Event, now: float) -> list[Command]:
        """Commands that follow from the event."""
        self.handled += 1
        had_job = self.job is not None
        out = Outbox(self.handled, self.epoch.number if self.epoch else 0)
        if self._is_about_adoption(event, now):
            self._look_at_adoption(out, now)
        else:
            self._happened(out, event, now)
        if self.adoption is None and (not isinstance(event, ev.Report) or isinstance(event.body, _MOVES)):
            self.selfstart.after(out, self, had_job, isinstance(event, ev.Tick))
        return [command for command in map(self._for_those_here, out.commands) if command is not None]

    def _happened(self, out: Outbox, event: ev.Event, now: float) -> None:
        if isinstance(event, ev.Report):
            self._report(out, event, now)
        elif isinstance(event, ev.JobSubmitted):
            self._submit(out, event, now)
        elif isinstance(event, ev.GatheringOpened):
            self.selfstart.open(event)
        elif isinstance(event, ev.JobCancelled):
            self._cancel(out, event)
        elif isinstance(event, ev.AgentLost):
            self._agent_lost(out, event, now)
        elif isinstance(event, ev.Tick):
            self._tick(out, now)

    def _for_those_here(self, command: Command) -> Command | None:
        """Without agents that are lost."""
        if isinstance(command, Send):
            return command if command.agent in self.agents else None
        if isinstance(command, Cast) and not self.agents.keys() >= set(command.agents):
            left = tuple(agent for agent in command.agents if agent in self.agents)
            return replace(command, agents=left) if left else None
        return command

    # ---- reports -----------------------------------------------------------------------------------------------

    def _report(self, out: Outbox, event: ev.Report, now: float) -> None:
        body = event.body
        if isinstance(body, ev.Register):
            self._registered(body)
            out.send(body.agent, Registered(self.incarnation))
        elif isinstance(body, ev.Presented):
            self._presented_late(out, event.agent, body)
        elif isinstance(body, ev.Guests):
            self.selfstart.gathering.report(event.agent, body.items, body.resting)
        elif isinstance(body, ev.RoundTrips):
            self.distances.learn(event.agent, body.items, self.agents)
        elif isinstance(body, (ev.RankHello, ev.RankStarted, ev.RankExited, ev.RankLeft)):
            self._rank_report(out, body, now)
        elif self.epoch is None or event.epoch != self.epoch.number:
            self.stale += 1
        else:
            self._epoch_report(out, self.epoch, event.agent, body, now)

    def _registered(self, body: ev.Register) -> None:
        self.agents[body.agent] = Agent(body.host, body.slots, body.labels, body.addresses, body.plane, body.presents)
        self.distances.forget(body.agent)
        self.selfstart.gathering.forget(body.agent)

    def _rank_report(
        self, out: Outbox, body: ev.RankHello | ev.RankStarted | ev.RankExited | ev.RankLeft, now: float
    ) -> None:
        if self.job is None or not 0 <= body.rank < self.job.size:
            self.stale += 1
            return
        record = self.job.ranks[body.rank]
        if isinstance(body, ev.RankStarted):
            record.pid = body.pid
            record.move(RankCause.STARTED)
        elif isinstance(body, ev.RankHello):
            self._hello(out, self.job, record, body, now)
        elif isinstance(body, ev.RankLeft):
            self._left(out, record, body)
        else:
            self._exited(out, self.job, body, now)

    def _epoch_report(self, out: Outbox, epoch: Epoch, agent: str, body: ev.Body, now: float) -> None:
        if isinstance(body, ev.Announcements):
            for item in body.items:
                epoch.announce(out, item, now)
        elif isinstance(body, ev.Held):
            epoch.held(out, agent, body.plan, body.arrivals)
        elif isinstance(body, ev.PlanRetired):
            epoch.plans.retired(agent, body.plan)
        elif isinstance(body, ev.JoinRequested):
            epoch.join(out, body.rank, body.request, now)
        elif isinstance(body, ev.JoinQuiet):
            epoch.join_quiet(out, agent, body.plans)
        elif isinstance(body, ev.SetAddRequested):
            epoch.set_call(out, body.rank, SetCall(body.request, tuple(sorted(body.ranks))), now)
        elif isinstance(body, ev.SetRemoveRequested):
            epoch.set_call(out, body.rank, SetCall(body.request, remove=body.id), now)
        elif isinstance(body, ev.Observation):
            epoch.observe(agent, body)
        elif isinstance(body, ev.PeerLost):
            self._peer_lost(out, epoch, agent, body)

    def _peer_lost(self, out: Outbox, epoch: Epoch, agent: str, body: ev.PeerLost) -> None:
        if epoch.has_failed:
            return  # as hundreds of others may say of the same host
        hosts = {place.agent: place.host for place in epoch.places}
        text = (
            f"Host {hosts.get(body.agent, '?')} (agent {body.agent}) can't be reached any more from host "
            f"{hosts.get(agent, '?')} (agent {agent}): {body.text}."
        )
        if epoch.ended is None and self.job is not None and body.agent in self.job.agents:
            self.job.blame(self.job.agents[body.agent][0], text)
        epoch.end(out, Error(ErrorKind.LOST, text))

    # ---- init and shutdown -------------------------------------------------------------------------------------

    def _hello(self, out: Outbox, job: Job, record: RankRecord, hello: ev.RankHello, now: float) -> None:
        if not record.move(RankCause.HELLO):
            reason = f"Rank {hello.rank} is {record.phase.value} already: two processes claim to be rank {hello.rank}."
            out.send(record.place.agent, RankRejected(hello.rank, reason))
            return
        record.hello, record.generation = hello, hello.generation
        record.pid = record.pid or hello.pid
        if job.first_hello_at is None:
            job.first_hello_at = job.start_warned_at = now
        self._reject_unreachable(out, job)
        self._start_epoch(out, job)

    def _start_epoch(self, out: Outbox, job: Job) -> None:
        if job.phases[RankPhase.WAITING] < job.size or self.epoch is not None:
            return
        reason = disagreement(job)
        if reason:
            self._reject_waiting(out, job, reason, retry=True)
            return
        self.epochs += 1
        generation = job.ranks[0].generation
        epoch = Epoch(self.epochs, generation, job.places, self.config, self.incarnation, self.tally)
        epoch.extended_join = job.extended_join
        sets = [ProcessSet(0, tuple(range(job.size)))]
        hello = job.ranks[0].hello
        for wanted in hello.process_sets if hello else ():
            added = epoch.sets.add(wanted.ranks)
            if isinstance(added, ProcessSet):  # a repeated one is the binding's to report; the epoch stands
                sets.append(added)
        self.epoch, job.first_hello_at, job.culprit, job.blamed = epoch, None, -1, None
        out.epoch = epoch.number
        for record in job.ranks:
            record.move(RankCause.EPOCH_START)
        agents = {name: self.in_ring(name) for name in epoch.agents}
        self.ring = order_ring(agents, self.distances, self.config.deterministic)
        start = EpochStart(job.places, tuple(sets), self.ring.hosts, self._epoch_key(epoch.number))
        out.cast(epoch.agents, start)

    def in_ring(self, name: str) -> tuple[Host, Mapping[str, str]]:
        """How the others reach this agent, and where it is."""
        agent = self.agents[name]
        return Host(name, agent.host, agent.addresses), agent.labels

    def _epoch_key(self, number: int) -> bytes:
        if not self.secret:
            return b""
        text = f"epoch {self.incarnation}/{number}"
        return hmac.new(self.secret, text.encode(), hashlib.sha256).digest()

    def _left(self, out: Outbox, record: RankRecord, body: ev.RankLeft) -> None:
        if self.epoch is None or body.generation != record.generation or not record.move(RankCause.LEFT):
            self.stale += 1
            return
        rank = record.place.rank
        if self.epoch.ended is None and self.job is not None:
            self.job.culprit = rank
        if self.job is not None:
            self.job.note_leave(record, body.reason)
        self.epoch.end(out, Error(ErrorKind.SHUT_DOWN, leave_text(record, body.reason)))
        self._forget_epoch(out, rank)

    def _forget_epoch(self, out: Outbox, rank: int) -> None:
        if self.epoch is None or self.job is None:
            return
        self.epoch.left.add(rank)
        if len(self.epoch.left) == len(self.epoch.places):
            self.epoch = None
            self._start_epoch(out, self.job)

    def _reject_waiting(self, out: Outbox, job: Job, reason: str, retry: bool) -> None:
        for record in job.waiting():
            record.move(RankCause.REJECTED)
            job.note_leave(record, f"was turned away: {reason.rstrip('.')}")
            out.send(record.place.agent, RankRejected(record.place.rank, reason, retry))

    def _reject_unreachable(self, out: Outbox, job: Job) -> None:
        if job.phases[RankPhase.GONE] and job.phases[RankPhase.WAITING]:
            first = next(record for record in job.ranks if record.phase is RankPhase.GONE)
            reason = (
                f"hvd.init() can't complete: rank {where(first)} has exited with code {first.code}. All {job.size} ranks must "
                "call it."
            )
            self._reject_waiting(out, job, reason, retry=False)

    # ---- exits and ends ----------------------------------------------------------------------------------------

    def _exited(self, out: Outbox, job: Job, event: ev.RankExited, now: float, lost: str = "") -> None:
        record = job.ranks[event.rank]
        if record.phase is RankPhase.GONE:
            return
        if job.attached and self.epoch is None:
            self.selfstart.dissolve(out, self, job)
            return
        was_ready = record.phase is RankPhase.READY
        failure = job.note_exit(event, lost)
        if failure is not None:
            self._failed(out, job, failure, was_ready, now)
        if was_ready:
            self._forget_epoch(out, event.rank)
        self._reject_unreachable(out, job)
        self._finish(out, job)

    def _failed(self, out: Outbox, job: Job, failure: Failure, was_ready: bool, now: float) -> None:
        culprit = job.culprit
        if job.failure is None or (failure.rank == culprit and not job.stopping):
            job.failure = job.blamed or failure
        if was_ready and self.epoch is not None:
            text = f"{failure.text} The operations that needed it can't finish."
            self.epoch.end(out, Error(ErrorKind.LOST, text))
        alive = 0 <= culprit < job.size and job.ranks[culprit].phase is not RankPhase.GONE
        if culprit not in (-1, failure.rank) and alive:
            # Its shutdown came first; its exit, which explains the others', is on the way.
            job.stop_at = job.stop_at or now + self.config.culprit_exit_s
        elif job.stopping or job.stop_at is not None:
            return
        elif job.phases[RankPhase.READY] or job.phases[RankPhase.LEFT]:
            # They get an error, which names what happened: SIGTERM must not come before they can show it.
            job.stop_at = now + self.config.last_words_s
        else:
            self._stop(out, job, (job.blamed or failure).text)

    def _stop(self, out: Outbox, job: Job, reason: str) -> None:
        if job.stopping:
            return
        job.stopping, job.stop_at = True, None
        self._order_stop(out, job, reason, self.config.grace_s)

    def _order_stop(self, out: Outbox, job: Job, reason: str, grace_s: float) -> None:
        out.cast(tuple(job.agents), StopRanks(reason, grace_s))

    def release(self, out: Outbox, job: Job) -> None:
        """Ranks that have left are out of a job of processes that others have started."""
        if job.attached and job.phases[RankPhase.LEFT] and [record for record in job.ranks if released(record)]:
            self._finish(out, job)

    def _finish(self, out: Outbox, job: Job) -> None:
        if not job.is_over:
            return
        code, text = job.result()
        self.tally.job_ended(code, job.cancelled is not None)
        first, end = job.failure, JobEnded(code, text, cause=out.cause)
        if first is not None and job.cancelled is None:
            details = (first.rank, first.host, first.pid, first.signal, first.last_lines)
            end = JobEnded(code, text, *details, cause=out.cause)
        out.cast(tuple(job.agents), job_finished(end))
        if not (job.attached and self.selfstart.hold_back(end)):
            out.commands.append(end)
        self.job = self.epoch = None

    def _submit(self, out: Outbox, event: ev.JobSubmitted, now: float) -> None:
        if self.job is not None:
            self.tally.job_ends["refused"] += 1
            text = f"A job of {self.job.size} ranks runs already: {self.job.title}. Wait for its end."
            out.commands.append(JobEnded(1, text, cause=out.cause))
            return
        slots = {name: (agent.host, agent.slots) for name, agent in self.agents.items()}
        if (event.limits or self.config).deterministic:  # not in the order in which they happened to come
            slots = dict(sorted(slots.items()))
        placed = place_ranks(event.size, slots)
        if isinstance(placed, str):
            self.tally.job_ends["refused"] += 1
            out.commands.append(JobEnded(1, placed, cause=out.cause))
            return
        self.jobs += 1
        self.config = event.limits or self.defaults
        records = [RankRecord(place) for place in placed]
        self.job = job = Job(event.size, event.command, event.environment, event.directory, records)
        job.number, job.id, job.started, job.launcher = self.jobs, event.id, self.incarnation, event.launcher
        self.start_ranks(out, job, tuple(job.agents))
        if not self.config.deterministic:
            self._measure(out, job, now)

    def start_ranks(self, out: Outbox, job: Job, agents: tuple[str, ...]) -> None:
        what = (job.command, job.environment, job.directory, job.size, job.places, job.number)
        out.cast(agents, StartRanks(*what, job.guests, job.id, job.started, job.launcher, self.config))

    def _measure(self, out: Outbox, job: Job, now: float) -> None:
        """While the ranks start: the ring is made of what is known when the last one is there."""
        labels = {name: self.agents[name].labels for name in job.agents if self.agents[name].addresses}
        for name, others in self.distances.wanted(by_labels(labels), now).items():
            out.send(name, MeasureRoundTrips(tuple(self.in_ring(other)[0] for other in others)))

    def _cancel(self, out: Outbox, event: ev.JobCancelled) -> None:
        self.selfstart.cancel(out, self, event)
        if self.job is None:
            return
        if self.job.attached and self.epoch is not None:
            self.epoch.end(out, Error(ErrorKind.LOST, f"The job was cancelled: {event.reason}"))
        if self.job.cancelled is None:
            self.job.cancelled = (event.code, event.reason)
        self._stop(out, self.job, event.reason)
        if event.at_once:
            self._order_stop(out, self.job, event.reason, 0.0)

    def _agent_lost(self, out: Outbox, event: ev.AgentLost, now: float) -> None:
        agent = self.agents.pop(event.agent, None)
        self.selfstart.gathering.forget(event.agent)
        job = self.job
        self.distances.forget(event.agent)
        self.tally.agents_lost += agent is not None
        if agent is None or job is None:
            return
        for rank in job.agents.get(event.agent, ()):
            self._rank_lost(out, job, job.ranks[rank], now, event.reason)

    def _rank_lost(self, out: Outbox, job: Job, record: RankRecord, now: float, reason: str) -> None:
        """With its agent."""
        if self.job is not None and record.phase is not RankPhase.GONE:
            text = f"agent {record.place.agent} on host {record.place.host} is lost: {reason}"
            self._exited(out, job, ev.RankExited(record.place.rank, record.pid, 1, left=False), now, text)

    # ---- time --------------------------------------------------------------------------------------------------

    def _tick(self, out: Outbox, now: float) -> None:
        job = self.job
        if job is None:
            return
        if job.stop_at is not None and now >= job.stop_at:
            self._stop(out, job, job.failure.text if job.failure else "a rank failed")
        if self.epoch is not None:
            self.epoch.look_at_waits(out, now)
        if job.first_hello_at is not None and self.epoch is None and job.waiting():
            self._look_at_start(out, job, now)

    def _look_at_start(self, out: Outbox, job: Job, now: float) -> None:
        assert job.first_hello_at is not None
        waited = now - job.first_hello_at
        limit = self.config.start_timeout_s
        if 0 < limit <= waited:
            reason = f"{job.start_text(waited)} The start timeout of {limit:g} s is over."
            first = job.absent()[0]
            if job.failure is None:
                job.failure = Failure(first.place.rank, first.place.host, first.pid, 1, 0, reason)
            self._reject_waiting(out, job, reason, retry=False)
            self._stop(out, job, reason)
        elif now - job.start_warned_at >= self.config.start_warning_s > 0:
            job.start_warned_at = now
            out.send(job.places[0].agent, Warn(job.start_text(waited)))

    def check_invariants(self) -> None:
        """Raises AssertionError when the book is wrong."""
        self.selfstart.gathering.check_invariants()
        self.distances.check_invariants()
        if self.job is not None:
            self.job.check_invariants()
        if self.epoch is not None:
            self.epoch.check_invariants()
            assert self.job is not None
            ready = {r.place.rank for r in self.job.ranks if r.phase is RankPhase.READY}
            assert not ready & self.epoch.left
