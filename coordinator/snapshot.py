"""The coordinator's state as JSON, for people and scripts: who is there, what runs, what waits, and why epochs ended.

Nothing secret: no environment, no arguments of the command, no output of ranks, no keys.  Lists are bounded.
"""

from __future__ import annotations

from horovod.coordinator.core.epoch import Epoch
from horovod.coordinator.core.gathering import Gathering
from horovod.coordinator.core.job import Job, RankRecord
from horovod.coordinator.core.stalls import Wait
from horovod.coordinator.core.tally import PastEpoch
from horovod.coordinator.metrics import CoordinatorState, busy_agents
from horovod.observe.state import Json

__all__ = ["coordinator_snapshot"]

_MOST_AGENTS = 1024
_MOST_RANKS = 4096
_MOST_WAITS = 64
_MOST_NAMED = 64

Part = dict[str, Json]


def coordinator_snapshot(core: CoordinatorState, now: float) -> Part:
    """Everything at once; ``now`` as in the core's events."""
    return {
        "incarnation": core.incarnation,
        "agents": _agents(core),
        "job": _job(core.job) if core.job is not None else None,
        "self_started": _self_started(core.selfstart.gathering),
        "epoch": _epoch(core, core.epoch, now) if core.epoch is not None else None,
        "past_epochs": [_past(past) for past in core.tally.past_epochs],
    }


def _agents(core: CoordinatorState) -> list[Json]:
    shown, busy = list(core.agents.items())[:_MOST_AGENTS], busy_agents(core)
    return [
        {
            "name": name,
            "host": agent.host,
            "slots": agent.slots,
            "labels": dict(agent.labels),
            "plane": agent.plane,
            "state": "busy" if name in busy else "idle",
        }
        for name, agent in shown
    ]


def _job(job: Job) -> Part:
    return {
        "size": job.size,
        "program": job.command[0] if job.command else "",
        "self_started": job.attached,
        "stopping": job.stopping,
        "failure": job.failure.text if job.failure is not None else "",
        "ranks": [_rank(record) for record in job.ranks[:_MOST_RANKS]],
    }


def _self_started(book: Gathering) -> Part:
    """Processes that others have started and that wait; ``attached``: for the job of a launcher."""
    return {
        "size": book.size,
        "attached": book.attached > 0,
        "waiting": [
            {"agent": agent, "pid": guest.pid, "rank": guest.rank if guest.rank >= 0 else None}
            for (agent, _), guest in list(book.waiting.items())[:_MOST_RANKS]
        ],
        "waiting_count": len(book.waiting),
    }


def _rank(record: RankRecord) -> Json:
    place = record.place
    return {
        "rank": place.rank,
        "agent": place.agent,
        "host": place.host,
        "pid": record.pid,
        "state": record.phase.value,
    }


def _epoch(core: CoordinatorState, epoch: Epoch, now: float) -> Part:
    waits = epoch.waits(now) if epoch.ended is None else []
    ring = core.ring
    return {
        "number": epoch.number,
        "size": len(epoch.places),
        "state": epoch.state.value,
        "reason": epoch.ended.text if epoch.ended is not None else "",
        "plans": len(epoch.plans.table),
        "process_sets": len(epoch.sets.sets),
        "joined": list(epoch.joined),
        "ring": [host.agent for host in ring.hosts] if ring is not None else [],
        "ring_round_trips_s": list(ring.round_trips_s) if ring is not None else [],
        "ring_reason": ring.reason if ring is not None else "",
        "waits": [_wait(wait) for wait in waits[:_MOST_WAITS]],
        "more_waits": max(0, len(waits) - _MOST_WAITS),
    }


def _wait(wait: Wait) -> Json:
    return {
        "what": wait.what,
        "age_s": round(wait.age_s, 3),
        "missing": list(wait.missing[:_MOST_NAMED]),
        "missing_count": len(wait.missing),
        "holders": list(wait.holders[:_MOST_NAMED]),
        "waiting": list(wait.waiting[:_MOST_NAMED]),
        "waiting_count": len(wait.waiting),
    }


def _past(past: PastEpoch) -> Json:
    kind = past.error.kind.name.lower()
    return {"number": past.number, "size": past.size, "reason": kind, "text": past.error.text}
