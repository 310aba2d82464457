"""Jobs of processes that others have started: when one forms, who is told what, when it is over.

Works on the coordinator after each event that may have changed something; the book of waiting processes is gathering.py.

Rules.  One job at a time, as ever: while another one runs, guests wait.  While the epoch of a self-started job is open, one
guest more than ranks is refused, naming who holds the places.  A rank that has left is out of its job, whatever its process does
next: it may wait for the next one.  So the job is over when all its ranks have left or are gone, and the same processes or new
ones can be the next.  A guest that goes away between being taken and the beginning of the epoch takes nobody along: the job
dissolves, and the others wait again.

A coordinator that was started anew goes on with such a job like with any other.  Its id ends with a number of its own, as one
launcher may have several of them, one after the other; before it is the launcher's, or nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Set
from dataclasses import replace
from typing import TYPE_CHECKING

from horovod.coordinator.core.commands import (
    Gathering as Told,
)
from horovod.coordinator.core.commands import (
    GatheringSeen,
    GuestRejected,
    JobEnded,
    JobFinished,
    JobFormed,
    Outbox,
    StartRanks,
)
from horovod.coordinator.core.config import Config
from horovod.coordinator.core.events import GatheringOpened, JobCancelled
from horovod.coordinator.core.gathering import Gathering, Key, number_ranks
from horovod.coordinator.core.job import Job, RankCause, RankPhase, RankRecord, where
from horovod.coordinator.core.ring import order_ring

if TYPE_CHECKING:
    from horovod.coordinator.core.coordinator import Coordinator

__all__ = ["SelfStart", "launcher_id", "released"]

_NAMED = 16
_NOBODY_ASKED = (
    "No job waits for processes that start by themselves. Run hvd-coordinator with --np N, or "
    "horovodrun --coordinator HOST:PORT --attach -np N."
)


class SelfStart:
    """Knows the gathering and what was told of it; ``limits`` are those of standing jobs.

    ``held``: no standing job forms, as a launched one has the turn, be it that its last output is still on its way.
    """

    def __init__(self, standing: int = 0, limits: Config | None = None) -> None:
        self.gathering = Gathering(standing)
        self.held = False
        self._limits, self._opened = limits, GatheringOpened(0, limits)
        self._told: dict[str, str] = {}
        self._seen = ""
        self._last_end: JobEnded | None = None  # of the open submission

    # ---- a launcher that attaches

    def open(self, event: GatheringOpened) -> None:
        """A launcher waits for so many ranks."""
        self.gathering.attached, self._opened, self._last_end, self._seen = event.size, event, None, ""

    def take_over(self, start: StartRanks, known: Set[str]) -> None:
        """A job of an earlier coordinator goes on; its processes wait for no other one, as these agents may still say."""
        places = zip(start.places, start.guests, strict=True)
        self.gathering.settled.update((place.agent, guest) for place, guest in places if place.agent in known)
        if launcher_id(start.id):
            self.open(GatheringOpened(start.size, start.limits, launcher_id(start.id), start.launcher))

    def cancel(self, out: Outbox, core: Coordinator, event: JobCancelled) -> None:
        """The launcher that has attached ends what it waits for; a running job ends first."""
        if core.job is None and self.gathering.attached:
            for key in list(self.gathering.waiting):
                self._reject(out, key, f"The job was cancelled: {event.reason}")
            self._close(out, JobEnded(event.code, event.reason))

    def hold_back(self, end: JobEnded) -> bool:
        """Whether the launcher hears of this end later: its ranks may form another job."""
        if not self.gathering.attached:
            return False
        self._last_end = end
        return True

    def _close(self, out: Outbox, end: JobEnded) -> None:
        self.gathering.attached, self._last_end = 0, None
        out.commands.append(replace(end, cause=out.cause))

    # ---- after each event

    def after(self, out: Outbox, core: Coordinator, had_job: bool, is_tick: bool) -> None:
        """Forms a job, turns guests away, tells those that wait.  ``had_job``: before the event; who waits to launch is first."""
        if core.job is not None and core.job.attached:
            core.release(out, core.job)
        book = self.gathering
        if not (book.waiting or book.attached):
            return
        for key, reason in book.misfits():
            self._reject(out, key, reason)
        if core.job is None and not had_job and (book.attached or not self.held):
            self._form(out, core)
        job = core.job
        if job is not None and job.attached and not (core.epoch is not None and core.epoch.ended is not None):
            for key in list(book.waiting):
                self._reject(out, key, _full(job))
        self._tell(out, core, is_tick)

    def _reject(self, out: Outbox, key: Key, reason: str) -> None:
        self.gathering.settle(key)
        out.send(key[0], GuestRejected(key[1], reason))

    def _form(self, out: Outbox, core: Coordinator) -> None:
        book, end = self.gathering, self._last_end
        keys = book.first()
        if not keys:
            if end is not None and (end.code != 0 or not (book.waiting or sum(book.resting.values()))):
                self._close(out, end)
            return
        agents = dict.fromkeys(agent for agent, _ in keys)
        asked = self._opened if book.attached else GatheringOpened(0, self._limits)
        core.config = asked.limits or core.defaults
        there = {name: core.in_ring(name) for name in agents}
        ring = [host.agent for host in order_ring(there, core.distances, core.config.deterministic).hosts]
        row = [(key[0], book.settle(key)) for key in book.in_row(keys, ring)]
        placed = number_ranks(row, {name: core.agents[name].host for name in agents})
        core.jobs += 1
        records = [RankRecord(item.place, pid=item.guest.pid) for item in placed]
        core.job = job = Job(len(records), (), {}, "", records, attached=True, number=core.jobs)
        job.guests = tuple(item.guest.id for item in placed)
        job.id, job.started = f"{asked.id}/{core.incarnation}.{core.jobs}", core.incarnation
        job.launcher = asked.launcher
        core.start_ranks(out, job, tuple(job.agents))
        out.commands.append(JobFormed(core.job.places, out.cause))

    def dissolve(self, out: Outbox, core: Coordinator, job: Job) -> None:
        """One that was taken is gone before the beginning: the others are guests again."""
        for name in dict.fromkeys(place.agent for place in job.places):
            out.send(name, JobFinished(0, ""))
        core.job = None
        if not self.gathering.attached:
            out.commands.append(JobEnded(0, "", cause=out.cause))

    # ---- words

    def _tell(self, out: Outbox, core: Coordinator, is_tick: bool) -> None:
        """Agents whose first process waits hear at once, the others and the launcher with the next tick: thousands may come."""
        agents = dict.fromkeys(agent for agent, _ in self.gathering.waiting)
        self._told = {agent: text for agent, text in self._told.items() if agent in agents}
        if not is_tick and len(self._told) == len(agents):
            return
        text = self.text(core)
        for agent in agents:
            if agent not in self._told or (is_tick and self._told[agent] != text):
                self._told[agent] = text
                out.send(agent, Told(text))
        is_between = self._last_end is not None and not agents  # most likely it is over
        if is_tick and self.gathering.attached and core.job is None and text != self._seen and not is_between:
            self._seen = text
            out.commands.append(GatheringSeen(text, out.cause))

    def text(self, core: Coordinator) -> str:
        """What guests wait for."""
        book, job = self.gathering, core.job
        if job is not None and not job.attached:
            return "A job that horovodrun has started runs; its end is awaited."
        if not book.size:
            return _NOBODY_ASKED
        count = len(book.waiting)
        text = f"{count} of {book.size} ranks have come: {_by_agent(core, book)}."
        if job is not None:
            left = [record for record in job.ranks if record.phase is not RankPhase.GONE]
            return f"{text} The job before is not over: {_names(left)} must end or call hvd.shutdown()."
        free = [
            f"{name} ({agent.slots - sum(key[0] == name for key in book.waiting)})"
            for name, agent in core.agents.items()
            if name in book.lists and agent.slots > sum(key[0] == name for key in book.waiting)
        ]
        places = f" Free slots: agent {', agent '.join(free[:_NAMED])}." if free else ""
        return f"{text} Missing: {book.size - count}.{places}"


def _by_agent(core: Coordinator, book: Gathering) -> str:
    counts = Counter(agent for agent, _ in book.waiting)
    pids = {name: [str(guest.pid) for key, guest in book.waiting.items() if key[0] == name] for name in counts}
    shown = [f"agent {name} (process {', '.join(pids[name][:_NAMED])})" for name in counts]
    return ", ".join(shown[:_NAMED]) or "none"


def _names(records: list[RankRecord]) -> str:
    shown = [f"rank {where(record)}" for record in records[:_NAMED]]
    return ", ".join(shown) + (f" and {len(records) - _NAMED} more" if len(records) > _NAMED else "")


def _full(job: Job) -> str:
    return (
        f"This process can't be a rank: the job has {job.size} rank{'s' if job.size > 1 else ''}, and all have come: "
        f"{_names(job.ranks)}. Wait until they have ended, or ask for more ranks: --np of hvd-coordinator, -np of "
        "horovodrun --attach. A subprocess of a rank can't be a rank: remove HOROVOD_AGENT from its environment."
    )


def launcher_id(job: str) -> str:
    """Of a job of processes that others have started: the id of the launcher that has attached, "" if none has."""
    return job.rpartition("/")[0]


def released(record: RankRecord) -> bool:
    """A rank that has left is out of a self-started job; whether that is news."""
    return record.phase is RankPhase.LEFT and record.move(RankCause.EXITED)
