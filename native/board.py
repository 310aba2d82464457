"""The agent's handle on a board: plan blocks, marks, failure, and what is open."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

from horovod.native._abi import BOARD_STAGES, CBoardTimes, CPlanSpec, CRankInfo, CRoundInfo, lib
from horovod.native.errors import Status, check


@dataclass(frozen=True, slots=True)
class PlanSpec:
    """hvd_plan_spec: ``members`` are local indices in set-rank order, ``nbytes`` the payload of a cooperative plan.

    With PlanFlag.REMOTE in ``flags`` members on other hosts take part: see Net.plan_add.  A pull plan lists them too, with the
    agent's index (``local_size`` of the board).
    """

    plan_id: int
    kind: int
    dtype: int
    op: int
    prescale: float
    postscale: float
    nbytes: int
    depth: int
    members: tuple[int, ...]
    flags: int = 0


@dataclass(frozen=True, slots=True)
class RoundInfo:
    """hvd_round_info: phase 0 members are missing, 1 being reduced, 2 not read by all, 3 between hosts."""

    plan_id: int
    offset: int
    round: int
    age_ns: int
    n_members: int
    n_arrived: int
    phase: int


@dataclass(frozen=True, slots=True)
class RankInfo:
    """hvd_rank_info."""

    submits: int
    blocked: int
    blocked_tag: int
    blocked_ns: int
    claims: int


@dataclass(frozen=True, slots=True)
class BoardTime:
    """How long a stage of this host's own rounds took, one of 16: ``counts[b]`` took less than ``2 ** b * 1024`` ns, and not less
    than half; the last bucket takes the rest.  ``stage``: wait (from the first to the last arrival) or reduce.
    """

    stage: str
    counts: Sequence[int]
    sum_ns: int


class Board:
    """Shared memory where ``local_size`` ranks and the agent meet."""

    def __init__(self, local_size: int, spin_ns: int) -> None:
        pointer, fd = ctypes.c_void_p(), ctypes.c_int(-1)
        status = lib.hvd_board_create(local_size, spin_ns, ctypes.byref(pointer), ctypes.byref(fd))
        check(status, f"Creating a board for {local_size} ranks")
        self.pointer = int(pointer.value or 0)
        self.fd = fd.value
        self.local_size = local_size

    def plan_add(self, spec: PlanSpec) -> int:
        """Makes the plan's block; its offset."""
        members = (ctypes.c_uint32 * len(spec.members))(*spec.members)
        native = CPlanSpec(
            spec.plan_id,
            spec.kind,
            spec.dtype,
            spec.op,
            spec.prescale,
            spec.postscale,
            spec.nbytes,
            spec.depth,
            len(spec.members),
            members,
            spec.flags,
        )
        offset = ctypes.c_uint64()
        status = lib.hvd_board_plan_add(self.pointer, ctypes.byref(native), ctypes.byref(offset))
        check(status, f"Making plan {spec.plan_id}")
        return offset.value

    def plan_remove(self, offset: int) -> bool:
        """Frees the block; False while a claim still refers to it."""
        return check(lib.hvd_board_plan_remove(self.pointer, offset), "Removing a plan") == Status.OK

    def plan_limit(self, offset: int, limit: int) -> None:
        """Marks the plan: rounds at or above ``limit`` do not run."""
        check(lib.hvd_board_plan_limit(self.pointer, offset, limit), "Marking a plan")

    def plan_arrivals(self, offset: int, n_members: int) -> tuple[int, ...]:
        """Rounds in which each member has arrived."""
        counts = (ctypes.c_uint64 * n_members)()
        check(lib.hvd_board_plan_arrivals(self.pointer, offset, counts), "Reading arrivals")
        return tuple(counts)

    def arrive_for(self, offset: int, local_index: int, absent: bool = False) -> int:
        """Takes part for a joined rank, with zeros or, ``absent``, with nothing; in how many rounds."""
        rounds = ctypes.c_uint64()
        status = lib.hvd_board_plan_arrive_for(self.pointer, offset, local_index, int(absent), ctypes.byref(rounds))
        check(status, "Arriving for a joined rank")
        return rounds.value

    def watch_arrivals(self, on: bool) -> None:
        """While set, every arrival rings the agent's bell."""
        check(lib.hvd_board_watch_arrivals(self.pointer, int(on)), "Watching arrivals")

    def wait_bell(self, timeout_ms: int) -> bool:
        """Sleeps until the bell rings; False when the time was over."""
        return bool(lib.hvd_board_wait_bell(self.pointer, timeout_ms) == Status.OK)

    def ring_agent(self) -> None:
        """Wakes whoever waits for the agent's bell."""
        lib.hvd_board_ring_agent(self.pointer)

    def fail(self, code: int, reason: str) -> None:
        """Ends the epoch with Status.CLOSED or Status.FAILED."""
        text = reason.encode()[:3990].replace(b"\0", b" ")
        check(lib.hvd_board_fail(self.pointer, code, text), "Failing the board")

    def rank_dead(self, local_index: int) -> None:
        """The process of this rank is gone: its claims count as ended."""
        check(lib.hvd_board_rank_dead(self.pointer, local_index), "Marking a rank dead")

    def scan(self, capacity: int = 256) -> list[RoundInfo]:
        """Rounds with an arrival that are not complete and read by all, oldest first."""
        found, count = (CRoundInfo * capacity)(), ctypes.c_uint32()
        check(lib.hvd_board_scan(self.pointer, found, capacity, ctypes.byref(count)), "Scanning the board")
        fields = [field[0] for field in CRoundInfo._fields_]
        return [RoundInfo(*(getattr(item, name) for name in fields)) for item in found[: min(count.value, capacity)]]

    def round_members(self, offset: int, round_number: int, n_members: int) -> tuple[list[bool], list[bool]]:
        """Which members have arrived, and which hold a claim."""
        arrived, holder = (ctypes.c_uint8 * n_members)(), (ctypes.c_uint8 * n_members)()
        status = lib.hvd_board_round_members(self.pointer, offset, round_number, arrived, holder)
        check(status, "Looking at a round")
        return [bool(x) for x in arrived], [bool(x) for x in holder]

    def times(self) -> list[BoardTime]:
        """How long the stages of rounds took whose members are all on this host."""
        found = CBoardTimes()
        check(lib.hvd_board_time_stat(self.pointer, ctypes.byref(found)), "Looking at the board")
        return [BoardTime(name, tuple(found.counts[s]), found.sum_ns[s]) for s, name in enumerate(BOARD_STAGES)]

    def rank_info(self, local_index: int) -> RankInfo:
        """What the rank has published about itself."""
        info = CRankInfo()
        check(lib.hvd_board_rank_info(self.pointer, local_index, ctypes.byref(info)), "Looking at a rank")
        return RankInfo(info.submits, info.blocked, info.blocked_tag, info.blocked_ns, info.claims)

    def help(self, arena_fds: Sequence[int], timeout_ms: int) -> None:
        """Reduces what is open until the time is over."""
        descriptors = (ctypes.c_int * len(arena_fds))(*arena_fds)
        status = lib.hvd_board_help(self.pointer, descriptors, len(arena_fds), timeout_ms)
        check(status, "Helping")

    def close(self) -> None:
        """Unmaps.  No thread may be inside another call."""
        pointer, self.pointer = self.pointer, 0
        if pointer:
            lib.hvd_board_close(pointer)
