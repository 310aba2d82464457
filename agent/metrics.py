"""Metrics of an agent: its core, its board and the output of its ranks, read when somebody scrapes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

from horovod import native
from horovod.agent.core import AgentCore
from horovod.agent.core.agent import Slot
from horovod.agent.core.tally import Tally
from horovod.observe.metrics import MOST_LABELS, Sample, StateCollector, counter, few, gauge

__all__ = ["TABLE", "AgentState", "Board", "Facts", "LinkStat", "agent_collector", "slot_state"]


class Board(Protocol):
    """What is read of ``horovod.agent.board_view.BoardView``; everything is empty while there is no board."""

    def rounds(self) -> list[native.RoundInfo]: ...

    def ranks(self) -> list[native.RankInfo]: ...

    def board_bytes(self) -> int: ...

    def arena_bytes(self) -> list[int]: ...


class AgentState(Protocol):
    """What is read of ``horovod.agent.shell.AgentShell``."""

    @property
    def core(self) -> AgentCore: ...
    @property
    def board(self) -> Board: ...
    @property
    def tally(self) -> Tally: ...
    @property
    def output_backlog_bytes(self) -> int: ...


@dataclass(frozen=True, slots=True)
class LinkStat:
    """All connections to one other agent, since this agent began; ``retransmits`` is None where nobody can tell."""

    agent: str
    sent_bytes: int
    received_bytes: int
    retransmits: int | None = None


@dataclass(frozen=True, slots=True)
class Facts:
    """What only the daemon around the shell knows; None: this one does not, so there is no such metric."""

    is_registered: Callable[[], bool] | None = None
    reconnects: Callable[[], int] | None = None
    links: Callable[[], Iterable[LinkStat]] | None = None


REGISTERED = gauge("hvd_agent_registered", "Whether the coordinator knows this agent and is in touch with it.")
RECONNECTS = counter("hvd_agent_coordinator_reconnects_total", "Connections to the coordinator after the first one.")
SLOTS = gauge("hvd_agent_local_slots", "Places for ranks on this agent.")
RANKS = gauge("hvd_agent_ranks", "Ranks of the job on this agent.", "state")
JOBS = counter("hvd_agent_jobs_total", "Jobs of which ranks were started here.")
EPOCH = gauge("hvd_agent_epoch", "Number of the epoch that local ranks are in; 0 while there is none.")
MEMBERSHIP = (REGISTERED, RECONNECTS, SLOTS, RANKS, JOBS, EPOCH)

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
RETRANSMITS = counter("hvd_agent_link_retransmits_total", "TCP segments sent again to another agent.", "neighbour")
LINKS_TABLE = (SENT, RECEIVED, RETRANSMITS)

TABLE = (*MEMBERSHIP, *ROUNDS_TABLE, *RANKS_TABLE, *LINKS_TABLE)

STATES = ("starting", "waiting", "ready", "left", "gone")
PHASES = ("missing", "reducing", "unread")  # by phase of hvd_round_info
_UNREAD = 2


def agent_collector(agent: Callable[[], AgentState], facts: Facts | None = None) -> StateCollector:
    """Reads the shell that serves now."""
    known = facts or Facts()

    def read() -> Iterator[Sample]:
        shell = agent()
        yield from _membership(shell.core)
        yield from _rounds(shell)
        yield from _local_ranks(shell)
        yield from _facts(known)

    return StateCollector(TABLE, read)


def slot_state(slot: Slot) -> str:
    """``starting``: its process has not called init."""
    if not slot.running:
        return "gone"
    return slot.session.phase.value if slot.session is not None else "starting"


def _membership(core: AgentCore) -> Iterator[Sample]:
    yield SLOTS.at(core.info.slots)
    states = Counter(slot_state(slot) for slot in core.slots.values())
    for state in STATES:
        yield RANKS.at(states[state], state)
    yield JOBS.at(core.jobs)
    yield EPOCH.at(core.epoch.number if core.epoch is not None else 0)


def _rounds(shell: AgentState) -> Iterator[Sample]:
    tally, epoch = shell.tally, shell.core.epoch
    for labels, count in tally.rounds.items():
        yield ROUNDS.at(count, *labels)
    for labels, count in tally.payload_bytes.items():
        yield PAYLOAD.at(count, *labels)
    yield SUBMISSIONS.at(tally.submissions)
    yield ANNOUNCEMENTS.at(tally.announcements)
    yield PLANS_MADE.at(tally.plans)
    yield PLANS.at(len(epoch.plans) if epoch is not None else 0)
    rounds = shell.board.rounds()
    phases = Counter(info.phase for info in rounds)
    for phase, name in enumerate(PHASES):
        yield OPEN_ROUNDS.at(phases[phase], name)
    yield OLDEST.at(max((info.age_ns / 1e9 for info in rounds if info.phase != _UNREAD), default=0.0))


def _local_ranks(shell: AgentState) -> Iterator[Sample]:
    epoch, board, tally = shell.core.epoch, shell.board, shell.tally
    yield from AWAITED.at_each(tally.awaited_s)
    local = epoch.local if epoch is not None else ()
    for rank, info in zip(local, board.ranks(), strict=False):  # a board may outlive its epoch for a moment
        yield BLOCKED.at(info.blocked, str(rank))
    yield BOARD_BYTES.at(board.board_bytes())
    for rank, count in zip(local, board.arena_bytes(), strict=False):
        yield ARENA_BYTES.at(count, str(rank))
    for stream, count in few(tally.output_bytes):
        yield OUTPUT.at(count, stream)
    yield BACKLOG.at(shell.output_backlog_bytes)


def _facts(facts: Facts) -> Iterator[Sample]:
    if facts.is_registered is not None:
        yield REGISTERED.at(facts.is_registered())
    if facts.reconnects is not None:
        yield RECONNECTS.at(facts.reconnects())
    for link in islice(facts.links(), MOST_LABELS) if facts.links is not None else ():
        yield SENT.at(link.sent_bytes, link.agent)
        yield RECEIVED.at(link.received_bytes, link.agent)
        if link.retransmits is not None:
            yield RETRANSMITS.at(link.retransmits, link.agent)
