"""Carries out what the core wants done on the board of the epoch, and answers with what came of it.

One board at a time.  Its threads are stopped before it is closed; arenas are duplicated, so that a rank's connection
may end while others still reduce what it left.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from horovod import native
from horovod.agent.board_view import BoardView, Books
from horovod.agent.connections import close_all
from horovod.agent.core import events as ev
from horovod.agent.core.tally import Tally
from horovod.agent.cores import available_cores
from horovod.agent.helpers import Helpers, helper_count
from horovod.agent.members import Member, process_state
from horovod.agent.planes.plane import Plane

__all__ = ["BoardRoom", "NoBoard"]

_SPIN_NS = 50_000
_SPIN_CROWDED_NS = 1_000  # more ranks than cores: who spins keeps the others from arriving
_BELL_MS = 500
_SIGNS_OF_LIFE_BYTES = 64 << 10  # more than what idle connections carry between two looks
_LOOKED_AT_ONCE = 2048
_ARENA_BYTES = 256 << 30  # address space; memory where data from other hosts lie
_COMPLETE = 2  # phase of a round in hvd_round_info


class NoBoard(native.NativeError):
    """There is no board: it could not be made."""


@dataclass(slots=True)
class _Block:
    """A plan on the board; ``arrivals`` as they were when somebody last looked."""

    offset: int
    members: tuple[int, ...]
    arrivals: tuple[int, ...] = ()
    remote: bool = False


@dataclass(slots=True)
class _Room:
    board: native.Board
    members: list[Member]
    arenas: list[int]
    helpers: Helpers
    books: Books
    arena: native.Arena | None = None  # for what comes from other hosts
    plane: Plane | None = None
    blocks: dict[int, _Block] = field(default_factory=dict)
    bell: _BellThread | None = None
    look_from: int = 0
    received: int = 0  # bytes from other hosts, when somebody last looked


class _BellThread:
    """Tells the loop of arrivals while somebody is joined."""

    def __init__(self, board: native.Board, ring: Callable[[], None]) -> None:
        self._board, self._ring = board, ring
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hvd-bell", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            if self._board.wait_bell(_BELL_MS) and not self._stop.is_set():
                self._ring()

    def stop(self) -> None:
        """Ends the thread: it is not inside the board when this returns."""
        self._stop.set()
        while self._thread.is_alive():
            self._board.ring_agent()
            self._thread.join(0.01)


class BoardRoom:
    """The board, if there is one.  ``ring`` is called from a thread."""

    def __init__(self, ring: Callable[[], None], helpers_setting: str = "", tally: Tally | None = None) -> None:
        self._ring, self._helpers_setting = ring, helpers_setting
        self._tally = tally or Tally()
        self.view = BoardView()
        self._room: _Room | None = None

    @property
    def descriptors(self) -> list[int]:
        """What a Welcome takes along: the board, the arenas of all local ranks, and the agent's if there is one."""
        room = self._require()
        return [room.board.fd, *room.arenas, *([room.arena.fd] if room.arena is not None else [])]

    def _require(self) -> _Room:
        if self._room is None:
            raise NoBoard("there is no board")
        return self._room

    def create(self, members: Sequence[Member], shared: bool) -> None:
        """Makes the board of an epoch; ``shared`` with other hosts."""
        self.close()
        count = len(members)
        arena = native.Arena(_ARENA_BYTES) if shared else None
        arenas = [os.dup(member.arena_fd) for member in members]
        try:
            board = native.Board(count, _SPIN_NS if count <= available_cores() else _SPIN_CROWDED_NS)
        except native.NativeError:
            close_all(arenas)
            if arena is not None:
                arena.close()
            raise
        helpers = Helpers(board, arenas, helper_count(count, self._helpers_setting))
        self._room = _Room(board, list(members), arenas, helpers, Books(self._tally), arena)
        self.view.show(board, arenas, self._room.books)

    def connect(self, make: Callable[[native.Board, Sequence[int], native.Arena], Plane]) -> None:
        """The other hosts are reached from now on through the plane that ``make`` gives."""
        room = self._require()
        if room.arena is None:
            raise NoBoard("the board is for this host alone")
        room.plane = self.view.plane = make(room.board, room.arenas, room.arena)

    def close(self) -> None:
        """Unmaps the board and lets the arenas go."""
        room, self._room = self._room, None
        if room is None:
            return
        with contextlib.suppress(native.NativeError):  # of a damaged board
            self._count_all(room)
        self.view.hide()
        if room.bell is not None:
            room.bell.stop()
        room.helpers.stop()
        if room.plane is not None:
            room.plane.close()
        room.board.close()
        close_all([room.board.fd, *room.arenas])
        if room.arena is not None:
            room.arena.close()

    # ---- plans

    def plan_add(self, command: ev.PlanAdd) -> ev.PlanPlaced:
        """Makes a block."""
        spec = native.PlanSpec(
            plan_id=command.plan,
            kind=command.kind,
            dtype=command.dtype,
            op=command.op,
            prescale=command.prescale,
            postscale=command.postscale,
            nbytes=command.nbytes,
            depth=command.depth,
            members=command.members,
            flags=native.PlanFlag.REMOTE if command.remote is not None else native.PlanFlag(0),
        )
        room = self._require()
        offset = room.board.plan_add(spec)
        if command.remote is not None and room.plane is not None:
            room.plane.plan_add(offset, command.remote)
        none_yet = (0,) * len(command.members)
        room.blocks[command.plan] = _Block(offset, command.members, none_yet, command.remote is not None)
        room.books.opened(
            command, room.plane.name if command.remote is not None and room.plane is not None else "local"
        )
        return ev.PlanPlaced(command.plan, offset)

    def plan_limit(self, command: ev.PlanLimit) -> ev.Arrivals | None:
        """Marks a plan, then reads the arrivals: in this order, see hvd_board_plan_limit."""
        room = self._require()
        block = room.blocks[command.plan]
        room.board.plan_limit(block.offset, command.limit)
        room.books.limited(command.plan, command.limit)
        if not command.read:
            if block.remote and room.plane is not None:
                room.plane.plan_limit(command.plan, command.limit)
            return None
        counts = room.board.plan_arrivals(block.offset, len(block.members))
        local = room.board.local_size
        here = {index: count for index, count in zip(block.members, counts, strict=True) if index < local}
        return ev.Arrivals(command.plan, here)

    def plan_remove(self, command: ev.PlanRemove) -> ev.PlanRemoved:
        """Frees a block if nobody refers to it."""
        room = self._require()
        block = room.blocks[command.plan]
        room.books.arrived(command.plan, room.board.plan_arrivals(block.offset, len(block.members)))
        if block.remote and room.plane is not None:
            if not room.plane.plan_remove(command.plan):
                return ev.PlanRemoved(command.plan, False)
            block.remote = False
        done = room.board.plan_remove(block.offset)
        if done:
            del room.blocks[command.plan], room.books.accounts[command.plan]
        return ev.PlanRemoved(command.plan, done)

    # ---- the epoch

    def fail(self, command: ev.BoardFail) -> None:
        """Ends the epoch for everybody who sleeps on the board."""
        code = native.Status.CLOSED if command.closed else native.Status.FAILED
        room = self._require()
        room.board.fail(code, command.text)
        if room.plane is not None and not command.closed:
            room.plane.abort(command.text)

    def rank_dead(self, command: ev.RankDead) -> None:
        """Its claims count as ended."""
        self._require().board.rank_dead(command.local_index)

    def watch(self, on: bool) -> None:
        """Listens to arrivals, or no longer."""
        room = self._require()
        room.board.watch_arrivals(on)
        if on and room.bell is None:
            room.bell = _BellThread(room.board, self._ring)
        elif not on and room.bell is not None:
            room.bell.stop()
            room.bell = None

    def sweep(self, command: ev.Sweep) -> ev.Swept:
        """Arrives with zeros, or with nothing, for joined ranks."""
        room = self._require()
        late = self._late(room, command.due)
        used = tuple(plan for plan in command.plans if self._zeros(room, plan, command, late))
        # Results that nobody has asked for yet wait for no one: a rank may join before it reads them.
        left = dict(command.left)
        over = all(
            info.phase == _COMPLETE or info.round >= left.get(info.plan_id, info.round + 1)
            for info in room.board.scan()
        )
        return ev.Swept(used, quiet=over and not late)

    def _late(self, room: _Room, due: Sequence[tuple[int, int, int]]) -> set[tuple[int, int]]:
        """(plan, local index) where a rank has not arrived yet in what it was told to run."""
        arrivals: dict[int, dict[int, int]] = {}
        late: set[tuple[int, int]] = set()
        for plan, index, rounds in due:
            if plan not in arrivals:
                arrivals[plan] = self._arrivals(room, plan)
            if arrivals[plan].get(index, rounds) < rounds:
                late.add((plan, index))
        return late

    def _arrivals(self, room: _Room, plan: int) -> dict[int, int]:
        block = room.blocks.get(plan)
        if block is None:
            return {}
        return dict(zip(block.members, room.board.plan_arrivals(block.offset, len(block.members)), strict=True))

    def _zeros(self, room: _Room, plan: int, command: ev.Sweep, late: set[tuple[int, int]]) -> bool:
        block = room.blocks.get(plan)
        if block is None:
            return False
        indices = [index for index in command.joined if index in block.members and (plan, index) not in late]
        # Each of them, not up to the first.
        rounds = [room.board.arrive_for(block.offset, index, command.absent) for index in indices]
        return any(rounds)

    # ---- looking

    def look(self) -> ev.Seen:
        """What is open, and what the ranks do."""
        room = self._require()
        found = [self._seen_round(room, info) for info in room.board.scan() if info.phase != _COMPLETE]
        rounds = tuple(seen for seen in found if seen is not None)
        ranks = tuple(self._seen_rank(room, index) for index in range(len(room.members)))
        away = any(room.blocks[seen.plan].remote and not seen.missing for seen in rounds)
        return ev.Seen(rounds, ranks, tuple(self._used(room)), away and self._has_received(room))

    def _has_received(self, room: _Room) -> bool:
        """Whether data came in from other hosts since the last time; also when the plane can't say."""
        info = room.plane.stat() if room.plane is not None else None
        if info is None:
            return True
        before, room.received = room.received, info.bytes_received
        return room.received - before > _SIGNS_OF_LIFE_BYTES

    def _seen_round(self, room: _Room, info: native.RoundInfo) -> ev.SeenRound | None:
        block = room.blocks.get(info.plan_id)
        if block is None:
            return None
        arrived, holds = room.board.round_members(info.offset, info.round, len(block.members))
        local = range(room.board.local_size)  # others' agents report about the others
        missing = tuple(i for i, here in zip(block.members, arrived, strict=True) if not here and i in local)
        holders = tuple(i for i, held in zip(block.members, holds, strict=True) if held and i in local)
        return ev.SeenRound(info.plan_id, info.round, info.age_ns / 1e9, missing, holders)

    def _seen_rank(self, room: _Room, index: int) -> ev.SeenRank:
        info = room.board.rank_info(index)
        room.books.submitted(index, info.submits)
        blocked_s = max(0.0, (time.monotonic_ns() - info.blocked_ns) / 1e9) if info.blocked else 0.0
        state = process_state(room.members[index].pid)
        return ev.SeenRank(index, info.submits, info.blocked, info.blocked_tag, blocked_s, state)

    def _used(self, room: _Room) -> list[int]:
        """Plans in which somebody has arrived since the last look; of very many plans, some at a time."""
        plans = list(room.blocks)
        start = room.look_from if room.look_from < len(plans) else 0
        room.look_from = start + _LOOKED_AT_ONCE
        used = []
        for plan in plans[start : start + _LOOKED_AT_ONCE]:
            block = room.blocks[plan]
            arrivals = room.board.plan_arrivals(block.offset, len(block.members))
            if arrivals != block.arrivals:
                block.arrivals = arrivals
                room.books.arrived(plan, arrivals)
                used.append(plan)
        return used

    def _count_all(self, room: _Room) -> None:
        """What nobody has looked at since it happened."""
        for plan, block in room.blocks.items():
            room.books.arrived(plan, room.board.plan_arrivals(block.offset, len(block.members)))
        for index in range(len(room.members)):
            room.books.submitted(index, room.board.rank_info(index).submits)
        self.view.times()
        self.view.net()
