"""What an agent presents to a coordinator that was started anew: bodies of Presented in control.proto as dataclasses.

Fields that hold at most one value are tuples, as in the messages.
"""

from __future__ import annotations

from dataclasses import dataclass

from horovod.agent.core.orders import EpochStart, RetirePlan, StartRanks
from horovod.agent.core.reports import Announcement, PeerLost, RankCount, RankExited, RankHello, RankLeft
from horovod.agent.core.terms import Error, ProcessSet, RankRequest, Signature


@dataclass(frozen=True, slots=True)
class RankPresented:
    """A rank on this host; ``left_s`` and ``exited_s``: so long ago."""

    rank: int
    pid: int = 0
    epoch: int = 0
    hello: tuple[RankHello, ...] = ()
    left_epoch: int = 0
    left: tuple[RankLeft, ...] = ()
    left_s: float = 0.0
    exited: tuple[RankExited, ...] = ()
    exited_s: float = 0.0


@dataclass(frozen=True, slots=True)
class PlanPresented:
    """A plan; ``limit`` and ``contest`` are -1 where there is none."""

    plan: int
    signature: Signature
    members: tuple[int, ...]
    held: bool = False
    limit: int = -1
    contest: int = -1


@dataclass(frozen=True, slots=True)
class SetAnswer:
    """What all ranks were told of their n-th call that adds or removes a process set: one of the three."""

    number: int
    added: tuple[ProcessSet, ...] = ()
    removed: tuple[int, ...] = ()
    refused: tuple[Error, ...] = ()


@dataclass(frozen=True, slots=True)
class SetCallPresented:
    """A rank's n-th call, without an answer."""

    rank: int
    request: int
    number: int
    ranks: tuple[int, ...] = ()
    remove: int = -1


@dataclass(frozen=True, slots=True)
class RefusalPresented:
    """A refusal that all members of the set hear at their next use of the name; ``told`` have heard it."""

    id: int
    process_set: int
    name: str
    error: Error
    told: tuple[int, ...]
    joins_done: int = 0


@dataclass(frozen=True, slots=True)
class EpochPresented:
    """What an epoch is on this host."""

    ended: tuple[Error, ...] = ()
    plans: tuple[PlanPresented, ...] = ()
    highest_plan: int = 0
    retired: tuple[RetirePlan, ...] = ()
    announcements: tuple[Announcement, ...] = ()
    sets: tuple[ProcessSet, ...] = ()
    free_sets: tuple[int, ...] = ()
    next_set: int = 1
    set_changes: int = 0
    set_answers: tuple[SetAnswer, ...] = ()
    set_calls: tuple[SetCallPresented, ...] = ()
    set_counts: tuple[RankCount, ...] = ()
    joins: tuple[RankRequest, ...] = ()
    joins_done: int = 0
    last_joined: int = -1
    zero_plans: tuple[int, ...] = ()
    refusals: tuple[RefusalPresented, ...] = ()


@dataclass(frozen=True, slots=True)
class FinishedJob:
    """How the last job ended; ``has_output``: some of it is not confirmed."""

    id: str
    code: int
    text: str
    rank: int = -1
    host: str = ""
    pid: int = 0
    signal: int = 0
    last_lines: str = ""
    has_output: bool = False
    job: int = 0
    started: int = 0


@dataclass(frozen=True, slots=True)
class Presented:
    """All that this agent knows."""

    last_job: str = ""
    start: tuple[StartRanks, ...] = ()
    ranks: tuple[RankPresented, ...] = ()
    last_epoch: int = 0
    epoch_start: tuple[EpochStart, ...] = ()
    epoch: tuple[EpochPresented, ...] = ()
    peer_lost: tuple[PeerLost, ...] = ()
    finished: tuple[FinishedJob, ...] = ()


__all__ = [
    "EpochPresented",
    "FinishedJob",
    "PlanPresented",
    "Presented",
    "RankPresented",
    "RefusalPresented",
    "SetAnswer",
    "SetCallPresented",
]
