"""The agent's state as JSON: its ranks, its epoch and what is open on the board.

Nothing secret: no nonces, no keys, no environment, no command, no output of ranks.  Lists are bounded.
"""

from __future__ import annotations

import time

from horovod import native
from horovod.agent.core.agent import AgentCore
from horovod.agent.core.epoch import Epoch
from horovod.agent.core.slots import Slot
from horovod.agent.metrics import PHASES, AgentView, ShellState, slot_state
from horovod.observe.state import Json

__all__ = ["agent_snapshot"]

_MOST_RANKS = 1024
_MOST_ROUNDS = 64

Part = dict[str, Json]


def agent_snapshot(view: AgentView) -> Part:
    """Everything at once; ``job`` is null when no job has ranks here."""
    shell = view.shell()
    return {
        "name": view.name,
        "host": view.host,
        "slots": view.slots,
        "labels": dict(view.labels),
        "lobby": dict(zip(("address", "waiting"), view.lobby(), strict=True)) if view.lobby is not None else None,
        "jobs": view.tally.jobs,
        "job": _job(shell) if shell is not None else None,
    }


def _job(shell: ShellState) -> Part:
    core = shell.core
    return {
        "epoch": _epoch(core.epoch) if core.epoch is not None else None,
        "ranks": [_rank(rank, slot) for rank, slot in list(core.slots.items())[:_MOST_RANKS]],
        "blocked": _blocked(shell),
        "rounds": _rounds(shell),
        "output_backlog_bytes": shell.output_backlog_bytes,
    }


def _epoch(epoch: Epoch) -> Part:
    return {
        "number": epoch.number,
        "size": len(epoch.places),
        "local_ranks": list(epoch.local),
        "ring": [host.agent for host in epoch.ring],
        "plans": len(epoch.plans),
        "joined": list(epoch.joined),
        "reason": epoch.ended.text if epoch.ended is not None else "",
    }


def _rank(rank: int, slot: Slot) -> Json:
    return {"rank": rank, "local_rank": slot.place.local_rank, "pid": slot.pid, "state": slot_state(slot)}


def _blocked(shell: ShellState) -> list[Json]:
    """Local ranks with threads that wait, and since when."""
    now_ns, epoch = time.monotonic_ns(), shell.core.epoch
    pairs = zip(epoch.local if epoch is not None else (), shell.board.ranks(), strict=False)
    return [
        {"rank": rank, "threads": info.blocked, "age_s": round(max(0, now_ns - info.blocked_ns) / 1e9, 3)}
        for rank, info in pairs
        if info.blocked
    ]


def _rounds(shell: ShellState) -> list[Json]:
    rounds = [info for info in shell.board.rounds() if PHASES[info.phase] != "unread"]
    return [_round(shell.core, info) for info in rounds[:_MOST_ROUNDS]]


def _round(core: AgentCore, info: native.RoundInfo) -> Json:
    plan = core.epoch.plans.get(info.plan_id) if core.epoch is not None else None
    return {
        "name": plan.signature.name if plan is not None else "",
        "round": info.round,
        "phase": PHASES[info.phase],
        "age_s": round(info.age_ns / 1e9, 3),
        "arrived": info.n_arrived,
        "members": info.n_members,
    }
