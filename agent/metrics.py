"""Metrics of an agent: its core, its board and the output of its ranks, read when somebody scrapes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from horovod import native
from horovod.agent.core import AgentCore
from horovod.agent.core.epoch import Epoch
from horovod.agent.core.slots import Slot
from horovod.agent.core.tally import LOCAL, Tally
from horovod.observe.metrics import Sample, StateCollector, counter, few, gauge, histogram

__all__ = ["TABLE", "AgentView", "Board", "Facts", "ShellState", "agent_collector", "slot_state"]


class Board(Protocol):
    """What is read of ``horovod.agent.board_view.BoardView``; everything is empty while there is no board."""

    def rounds(self) -> list[native.RoundInfo]: ...

    def ranks(self) -> list[native.RankInfo]: ...

    def board_bytes(self) -> int: ...

    def arena_bytes(self) -> list[int]: ...

    def net(self) -> native.NetInfo | None: ...

    def times(self) -> None: ...


class ShellState(Protocol):
    """What is read of ``horovod.agent.shell.AgentShell``."""

    @property
    def core(self) -> AgentCore: ...
    @property
    def board(self) -> Board: ...
    @property
    def output_backlog_bytes(self) -> int: ...


@dataclass(frozen=True, slots=True)
class AgentView:
    """What an agent is, and where to look; there may be no shell between jobs, the tally is the same in all of them.

    ``lobby``: the address where processes come in that others start, and how many of them wait for a rank.
    """

    name: str
    host: str
    slots: int
    tally: Tally
    shell: Callable[[], ShellState | None]
    labels: Mapping[str, str] = field(default_factory=dict)
    lobby: Callable[[], tuple[str, int]] | None = None


@dataclass(frozen=True, slots=True)
class Facts:
    """What only the daemon around the shell knows; None: this one does not, so there is no such metric."""

    is_registered: Callable[[], bool] | None = None
    sessions: Callable[[], int] | None = None
    unconfirmed_bytes: Callable[[], Mapping[str, int]] | None = None


REGISTERED = gauge("hvd_agent_registered", "Whether the coordinator knows this agent and is in touch with it.")
SESSIONS = counter(
    "hvd_agent_sessions_total", "Sessions with a coordinator that were begun; more than one: it was restarted."
)
UNCONFIRMED = gauge("hvd_agent_unconfirmed_bytes", "Sent to the coordinator, but not confirmed yet.", "kind")
SLOTS = gauge("hvd_agent_local_slots", "Places for ranks on this agent.")
RANKS = gauge("hvd_agent_ranks", "Ranks of the job on this agent.", "state")
WAITING = gauge("hvd_agent_waiting_processes", "Processes that others have started here and that wait to become ranks.")
JOBS = counter("hvd_agent_jobs_total", "Jobs of which ranks were started here.")
EPOCH = gauge("hvd_agent_epoch", "Number of the epoch that local ranks are in; 0 while there is none.")
MEMBERSHIP = (REGISTERED, SESSIONS, UNCONFIRMED, SLOTS, RANKS, WAITING, JOBS, EPOCH)

ROUNDS = counter(
    "hvd_agent_rounds_total",
    "Rounds in which all members that the board lists have arrived, up to half a second ago.",
    "collective",
    "plane",
)
PAYLOAD = counter(
    "hvd_agent_round_payload_bytes_total",
    "Payload of these rounds, of one member each; not of collectives whose sizes only the ranks know.",
    "collective",
    "plane",
)
SUBMISSIONS = counter(
    "hvd_agent_submissions_total", "Operations that local ranks have submitted, up to half a second ago."
)
ANNOUNCEMENTS = counter("hvd_agent_announcements_total", "Submissions that found no plan and had to be announced.")
PLANS_MADE = counter("hvd_agent_plans_made_total", "Plans that got a block on the board.")
PLANS = gauge("hvd_agent_plans", "Plans of the current epoch that concern local ranks.")
OPEN_ROUNDS = gauge("hvd_agent_open_rounds", "Rounds with an arrival that are not over.", "phase")
OLDEST = gauge("hvd_agent_oldest_round_seconds", "Age of the oldest round that is not complete; 0 while there is none.")
ROUNDS_TABLE = (ROUNDS, PAYLOAD, SUBMISSIONS, ANNOUNCEMENTS, PLANS_MADE, PLANS, OPEN_ROUNDS, OLDEST)

AWAITED = counter(
    "hvd_agent_rank_awaited_seconds_total",
    "Time in which open rounds waited for this local rank, sampled twice a second: the slowest by arrival has most.",
    "rank",
)
BLOCKED = gauge("hvd_agent_rank_blocked_threads", "Threads of a local rank that wait for an operation.", "rank")
BOARD_BYTES = gauge("hvd_agent_board_bytes", "Memory of the board.")
ARENA_BYTES = gauge("hvd_agent_arena_bytes", "Memory of a local rank's arena.", "rank")
OUTPUT = counter("hvd_agent_output_bytes_total", "What local ranks have written to their pipes.", "stream")
BACKLOG = gauge("hvd_agent_output_backlog_bytes", "Output that was read from pipes and is not passed on yet.")
RANKS_TABLE = (AWAITED, BLOCKED, BOARD_BYTES, ARENA_BYTES, OUTPUT, BACKLOG)

SENT = counter("hvd_agent_link_sent_bytes_total", "Bytes sent to another agent.", "neighbour")
RECEIVED = counter("hvd_agent_link_received_bytes_total", "Bytes received from another agent.", "neighbour")
RETRANSMITS = counter(
    "hvd_agent_link_retransmits_total", "Segments that had to be sent again to another agent.", "neighbour"
)
NET_ROUNDS = counter("hvd_agent_net_rounds_total", "Rounds that went over the net, by how.", "algorithm")
FRAMES = counter("hvd_agent_net_frames_total", "Frames that went over the net.", "direction")
CALLS = counter("hvd_agent_net_socket_calls_total", "System calls of the net on its sockets.", "direction")
STAGES = histogram(
    "hvd_agent_net_stage_seconds",
    "What rounds between hosts spent on: wait for this host's last arrival, reduce its members' data, network, copy to them.",
    "algorithm",
    "stage",
)
LOCAL_STAGES = histogram(
    "hvd_agent_local_stage_seconds",
    "What rounds on this host spent on: wait for the last arrival, reduce. Of one round in 16 of each plan, the first included.",
    "stage",
)
PARKED = gauge("hvd_agent_net_parked_bytes", "Came for plans or rounds that are not known here yet.")
WAITING_FRAMES = gauge("hvd_agent_net_waiting_frames", "Wait for room at another agent.")
LINKS_TABLE = (SENT, RECEIVED, RETRANSMITS, NET_ROUNDS, STAGES, LOCAL_STAGES, FRAMES, CALLS, PARKED, WAITING_FRAMES)

TABLE = (*MEMBERSHIP, *ROUNDS_TABLE, *RANKS_TABLE, *LINKS_TABLE)

STATES = ("starting", "waiting", "ready", "left", "gone")
PHASES = ("missing", "reducing", "unread")  # by phase of hvd_round_info
_UNREAD = 2
_BUCKETS, _FOLD = 24, 2  # buckets of hvd_net_times, and how many of them are one here
_BOUNDS_S = [*(2**bucket * 1024e-9 for bucket in range(_FOLD - 1, _BUCKETS - 1, _FOLD)), math.inf]


def agent_collector(view: AgentView, facts: Facts | None = None) -> StateCollector:
    """Reads the shell that serves now."""
    known = facts or Facts()

    def read() -> Iterator[Sample]:
        shell = view.shell()
        if shell is not None:
            shell.board.times()
        yield from _net(shell.board.net() if shell is not None else None)
        yield from _tally(view.tally)
        yield from _membership(view, shell.core if shell is not None else None)
        if shell is not None:
            yield from _board(shell.board)
            yield from _local_ranks(shell.board, shell.core.epoch)
            yield BACKLOG.at(shell.output_backlog_bytes)
        yield from _facts(known)

    return StateCollector(TABLE, read)


def slot_state(slot: Slot) -> str:
    """``starting``: its process has not called init."""
    if not slot.running and (slot.hello is None or slot.session is None):
        return "gone"
    return slot.session.phase.value if slot.session is not None else "starting"


def _tally(tally: Tally) -> Iterator[Sample]:
    yield JOBS.at(tally.jobs)
    yield SUBMISSIONS.at(tally.submissions)
    yield ANNOUNCEMENTS.at(tally.announcements)
    yield PLANS_MADE.at(tally.plans)
    for labels, count in tally.rounds.items():
        yield ROUNDS.at(count, *labels)
    for labels, count in tally.payload_bytes.items():
        yield PAYLOAD.at(count, *labels)
    yield from AWAITED.at_each(tally.awaited_s)
    yield from OUTPUT.at_each(tally.output_bytes)
    yield from SENT.at_each(tally.sent_bytes)
    yield from RECEIVED.at_each(tally.received_bytes)
    yield from RETRANSMITS.at_each(tally.retransmits)
    yield from _stages(tally)
    if tally.net:
        for algorithm in ("direct", "doubling", "ring", "pull"):
            yield NET_ROUNDS.at(tally.net[f"rounds_{algorithm}"], algorithm)
        yield FRAMES.at(tally.net["frames_sent"], "sent")
        yield FRAMES.at(tally.net["frames_received"], "received")
        yield CALLS.at(tally.net["writes"], "sent")
        yield CALLS.at(tally.net["reads"], "received")


def _stages(tally: Tally) -> Iterator[Sample]:
    for algorithm, stage in sorted({(algorithm, stage) for algorithm, stage, _ in tally.stages}):
        counts = [
            sum(tally.stages[algorithm, stage, bucket] for bucket in range(first, first + _FOLD))
            for first in range(0, _BUCKETS, _FOLD)
        ]
        table, labels = (LOCAL_STAGES, (stage,)) if algorithm == LOCAL else (STAGES, (algorithm, stage))
        yield table.spread([*zip(_BOUNDS_S, counts, strict=True)], tally.stage_ns[algorithm, stage] / 1e9, *labels)


def _net(info: native.NetInfo | None) -> Iterator[Sample]:
    if info is not None:
        yield PARKED.at(info.parked_bytes)
        yield WAITING_FRAMES.at(info.waiting_frames)


def _membership(view: AgentView, core: AgentCore | None) -> Iterator[Sample]:
    yield SLOTS.at(view.slots)
    states = Counter(slot_state(slot) for slot in core.slots.values()) if core is not None else Counter()
    for state in STATES:
        yield RANKS.at(states[state], state)
    if view.lobby is not None:
        yield WAITING.at(view.lobby()[1])
    epoch = core.epoch if core is not None else None
    yield EPOCH.at(epoch.number if epoch is not None else 0)
    yield PLANS.at(len(epoch.plans) if epoch is not None else 0)


def _board(board: Board) -> Iterator[Sample]:
    rounds = board.rounds()
    phases = Counter(info.phase for info in rounds)
    for phase, name in enumerate(PHASES):
        yield OPEN_ROUNDS.at(phases[phase], name)
    yield OLDEST.at(max((info.age_ns / 1e9 for info in rounds if info.phase != _UNREAD), default=0.0))
    yield BOARD_BYTES.at(board.board_bytes())


def _local_ranks(board: Board, epoch: Epoch | None) -> Iterator[Sample]:
    local = epoch.local if epoch is not None else ()
    for rank, info in zip(local, board.ranks(), strict=False):  # a board may outlive its epoch for a moment
        yield BLOCKED.at(info.blocked, str(rank))
    for rank, count in zip(local, board.arena_bytes(), strict=False):
        yield ARENA_BYTES.at(count, str(rank))


def _facts(facts: Facts) -> Iterator[Sample]:
    if facts.is_registered is not None:
        yield REGISTERED.at(facts.is_registered())
    if facts.sessions is not None:
        yield SESSIONS.at(facts.sessions())
    if facts.unconfirmed_bytes is not None:
        for kind, count in few(facts.unconfirmed_bytes()):
            yield UNCONFIRMED.at(count, kind)
