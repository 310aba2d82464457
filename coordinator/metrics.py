"""Metrics of a coordinator: its state, read when somebody scrapes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Protocol

from horovod.coordinator.core.adoption import Adoption
from horovod.coordinator.core.epoch import CAUSES, Epoch
from horovod.coordinator.core.job import Job, RankPhase
from horovod.coordinator.core.plans import PlanState
from horovod.coordinator.core.ring import Ring
from horovod.coordinator.core.selfstart import SelfStart
from horovod.coordinator.core.takeover import Agent
from horovod.coordinator.core.tally import JOB_RESULTS, Tally
from horovod.coordinator.core.values import ErrorKind
from horovod.observe.metrics import Sample, StateCollector, counter, few, gauge

__all__ = ["TABLE", "CoordinatorState", "Facts", "busy_agents", "coordinator_collector"]


class CoordinatorState(Protocol):
    """What is read of ``horovod.coordinator.core.Coordinator``."""

    @property
    def agents(self) -> Mapping[str, Agent]: ...
    @property
    def job(self) -> Job | None: ...
    @property
    def epoch(self) -> Epoch | None: ...
    @property
    def epochs(self) -> int: ...
    @property
    def ring(self) -> Ring | None: ...
    @property
    def incarnation(self) -> int: ...
    @property
    def handled(self) -> int: ...
    @property
    def stale(self) -> int: ...
    @property
    def tally(self) -> Tally: ...
    @property
    def adoption(self) -> Adoption | None: ...
    @property
    def selfstart(self) -> SelfStart: ...


@dataclass(frozen=True, slots=True)
class Facts:
    """What only the daemon around the core knows; None: this one does not, so there is no such metric."""

    silence_s: Callable[[], Mapping[str, float]] | None = None
    reconnects: Callable[[], int] | None = None
    waiting_jobs: Callable[[], int] | None = None


AGENTS = gauge("hvd_agents", "Registered agents: busy ones have ranks of the running job.", "state")
SLOTS = gauge("hvd_slots", "Places for ranks on all agents.")
AGENT_SLOTS = gauge("hvd_agent_slots", "Places for ranks on an agent.", "agent")
AGENTS_GONE = counter("hvd_agents_gone_total", "Agents that were lost or have taken leave.")
SILENCE = gauge("hvd_agent_silence_seconds", "Since an agent was heard last.", "agent")
RECONNECTS = counter("hvd_agent_reconnects_total", "Sessions of agents that went on over a new connection.")
MEMBERSHIP = (AGENTS, SLOTS, AGENT_SLOTS, AGENTS_GONE, SILENCE, RECONNECTS)

JOB_RUNNING = gauge("hvd_job_running", "Whether a job runs.")
JOB_RANKS = gauge("hvd_job_ranks", "Size of the running job.")
RANKS = gauge("hvd_ranks", "Ranks of the running job.", "state")
JOBS = counter("hvd_jobs_total", "Jobs that have ended, and jobs that could not be started.", "result")
EXIT_CODE = gauge("hvd_job_last_exit_code", "Exit code of the job that ended last.")
ADOPTIONS = counter(
    "hvd_jobs_adopted_total", "Running jobs of an earlier coordinator that this one took over when it was started."
)
AWAITING = gauge(
    "hvd_coordinator_adopting", "Whether agents of an earlier coordinator are awaited: nothing is ordered meanwhile."
)
SELF_STARTED_SIZE = gauge(
    "hvd_self_started_size", "Ranks of the next job of processes that others start; 0: none is awaited."
)
SELF_STARTED_WAITING = gauge(
    "hvd_self_started_waiting", "Processes that others have started and that wait to become ranks."
)
WAITING_JOBS = gauge("hvd_jobs_waiting", "Jobs that wait for the end of the running one.")
SELF_STARTED = (SELF_STARTED_SIZE, SELF_STARTED_WAITING)
JOBS_TABLE = (JOB_RUNNING, JOB_RANKS, RANKS, JOBS, EXIT_CODE, ADOPTIONS, AWAITING, WAITING_JOBS, *SELF_STARTED)

EPOCH = gauge("hvd_epoch", "Number of the current epoch; 0 while there is none.")
EPOCH_RANKS = gauge("hvd_epoch_ranks", "Ranks in the current epoch that have not left.")
EPOCHS = counter("hvd_epochs_total", "Epochs that have begun.")
EPOCH_ENDS = counter("hvd_epoch_ends_total", "Epochs by the first reason of their end.", "reason")
RING_HOSTS = gauge("hvd_ring_hosts", "Hosts in the ring of the current epoch.")
PROCESS_SETS = gauge("hvd_process_sets", "Process sets of the current epoch, the global one included.")
JOINED = gauge("hvd_joined_ranks", "Ranks that have run out of data and wait in join.")
EPOCHS_TABLE = (EPOCH, EPOCH_RANKS, EPOCHS, EPOCH_ENDS, RING_HOSTS, PROCESS_SETS, JOINED)

PLANS = gauge("hvd_plans", "Plans of the current epoch.", "state")
PLANS_MADE = counter("hvd_plans_made_total", "Negotiations that ended with a plan.")
PLANS_RETIRED = counter("hvd_plans_retired_total", "Plans that all agents have let go before the end of their epoch.")
CONTESTS = counter("hvd_contests_total", "Announcements of a name that had a plan with another signature.")
ANNOUNCEMENTS = counter("hvd_announcements_total", "Operations without a plan that ranks have announced.")
NEGOTIATIONS = gauge("hvd_negotiations", "Names that some ranks have announced and others not yet.")
REFUSALS = counter("hvd_refusals_total", "Announcements that were refused.", "reason")
MISMATCHES = counter("hvd_mismatches_total", "Names that ranks announced with different signatures.")
NEGOTIATION_TABLE = (PLANS, PLANS_MADE, PLANS_RETIRED, CONTESTS, ANNOUNCEMENTS, NEGOTIATIONS, REFUSALS, MISMATCHES)

WAITS = gauge("hvd_waits", "Operations that wait for ranks, negotiated or not.")
OLDEST_WAIT = gauge("hvd_oldest_wait_seconds", "Age of the oldest of them; 0 while there is none.")
STALLS = counter("hvd_stall_warnings_total", "Warnings about operations that waited for too long.")
DEADLOCKS = counter("hvd_deadlocks_total", "Cycles of ranks that wait for each other.")
AWAITED = counter(
    "hvd_rank_awaited_reports_total",
    "Reports of agents in which rounds waited for this rank: the slowest rank by arrival has most.",
    "rank",
)
WAITS_TABLE = (WAITS, OLDEST_WAIT, STALLS, DEADLOCKS, AWAITED)

INCARNATION = gauge("hvd_coordinator_incarnation", "Rises with each start of the coordinator.")
EVENTS = counter("hvd_coordinator_events_total", "Messages, submissions and ticks that were handled.")
STALE = counter("hvd_stale_messages_total", "Messages of an epoch that was over, which were dropped.")
CORE_TABLE = (INCARNATION, EVENTS, STALE)

TABLE = (*MEMBERSHIP, *JOBS_TABLE, *EPOCHS_TABLE, *NEGOTIATION_TABLE, *WAITS_TABLE, *CORE_TABLE)


def coordinator_collector(
    core: CoordinatorState, clock: Callable[[], float], facts: Facts | None = None
) -> StateCollector:
    """Reads this core; ``clock`` is the one that its events are stamped with."""
    known = facts or Facts()

    def read() -> Iterator[Sample]:
        parts = (_membership(core), _jobs(core), _epochs(core), _negotiation(core), _waits(core, clock()), _core(core))
        return chain(*parts, _facts(known))

    return StateCollector(TABLE, read)


def busy_agents(core: CoordinatorState) -> set[str]:
    """Agents with ranks of the running job."""
    places = core.job.places if core.job is not None else ()
    return {place.agent for place in places} & core.agents.keys()


def _membership(core: CoordinatorState) -> Iterator[Sample]:
    busy = len(busy_agents(core))
    yield AGENTS.at(busy, "busy")
    yield AGENTS.at(len(core.agents) - busy, "idle")
    yield SLOTS.at(sum(agent.slots for agent in core.agents.values()))
    for name, agent in few(core.agents):
        yield AGENT_SLOTS.at(agent.slots, name)
    yield AGENTS_GONE.at(core.tally.agents_lost)


def _jobs(core: CoordinatorState) -> Iterator[Sample]:
    job, tally = core.job, core.tally
    yield JOB_RUNNING.at(job is not None)
    yield JOB_RANKS.at(job.size if job else 0)
    phases = Counter(record.phase for record in job.ranks) if job else Counter()
    for phase in RankPhase:
        yield RANKS.at(phases[phase], phase.value)
    for result in JOB_RESULTS:
        yield JOBS.at(tally.job_ends[result], result)
    yield ADOPTIONS.at(tally.jobs_adopted)
    yield AWAITING.at(core.adoption is not None)
    if tally.last_exit_code is not None:
        yield EXIT_CODE.at(tally.last_exit_code)
    yield SELF_STARTED_SIZE.at(core.selfstart.gathering.size)
    yield SELF_STARTED_WAITING.at(len(core.selfstart.gathering.waiting))


def _epochs(core: CoordinatorState) -> Iterator[Sample]:
    epoch = core.epoch
    yield EPOCH.at(epoch.number if epoch else 0)
    yield EPOCH_RANKS.at(len(epoch.places) - len(epoch.left) if epoch else 0)
    yield EPOCHS.at(core.epochs)
    for kind in CAUSES:
        yield EPOCH_ENDS.at(core.tally.epoch_ends[kind], kind.name.lower())
    yield RING_HOSTS.at(len(core.ring.hosts) if epoch and core.ring else 0)
    yield PROCESS_SETS.at(len(epoch.sets.sets) if epoch else 0)
    yield JOINED.at(len(epoch.joined) if epoch else 0)


def _negotiation(core: CoordinatorState) -> Iterator[Sample]:
    epoch, tally = core.epoch, core.tally
    states = Counter(plan.state for plan in epoch.plans.table.values()) if epoch else Counter()
    for state in PlanState:
        if state is not PlanState.GONE:
            yield PLANS.at(states[state], state.value)
    yield PLANS_MADE.at(tally.plans_made)
    yield PLANS_RETIRED.at(tally.plans_retired)
    yield CONTESTS.at(tally.contests)
    yield ANNOUNCEMENTS.at(tally.announcements)
    yield NEGOTIATIONS.at(len(epoch.negotiation.entries) if epoch else 0)
    for kind in ErrorKind:
        yield REFUSALS.at(tally.refusals[kind], kind.name.lower())
    yield MISMATCHES.at(tally.mismatches)


def _waits(core: CoordinatorState, now: float) -> Iterator[Sample]:
    epoch, tally = core.epoch, core.tally
    ages = epoch.wait_ages(now) if epoch and epoch.ended is None else []
    yield WAITS.at(len(ages))
    yield OLDEST_WAIT.at(max(ages, default=0.0))
    yield STALLS.at(tally.stall_warnings)
    yield DEADLOCKS.at(tally.deadlocks)
    yield from AWAITED.at_each(tally.awaited)


def _core(core: CoordinatorState) -> Iterator[Sample]:
    yield INCARNATION.at(core.incarnation)
    yield EVENTS.at(core.handled)
    yield STALE.at(core.stale)


def _facts(facts: Facts) -> Iterator[Sample]:
    if facts.silence_s is not None:
        for name, silence_s in few(facts.silence_s()):
            yield SILENCE.at(silence_s, name)
    if facts.reconnects is not None:
        yield RECONNECTS.at(facts.reconnects())
    if facts.waiting_jobs is not None:
        yield WAITING_JOBS.at(facts.waiting_jobs())
