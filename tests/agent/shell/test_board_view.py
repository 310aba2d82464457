"""A board that is looked at: rounds are counted once, whatever becomes of plan and board."""

from __future__ import annotations

import ctypes
import os
import time
from collections import Counter
from collections.abc import Iterator

import pytest
from horovod import native
from horovod.agent.boards import BoardRoom
from horovod.agent.core import events as ev
from horovod.agent.core.tally import LOCAL, Tally
from horovod.agent.members import Member

pytestmark = [pytest.mark.usefixtures("no_leaks"), pytest.mark.timeout(30)]

PLAN = 5
BYTES = 12


class Ranks:
    """Two ranks of this process on the board of a room."""

    def __init__(self) -> None:
        self.tally = Tally()
        self.room = BoardRoom(lambda: None, "0", self.tally)
        self.arenas = [native.Arena(1 << 24) for _ in range(2)]
        self.engines: list[int] = []
        self.offset = 0
        self._data = (ctypes.c_int32 * 3)()

    def begin(self) -> None:
        self.room.create([Member(-1, arena.fd, os.getpid()) for arena in self.arenas], shared=False)
        board_fd, *arena_fds = self.room.descriptors
        descriptors = (ctypes.c_int * 2)(*arena_fds)
        for index, arena in enumerate(self.arenas):
            found = ctypes.c_void_p()
            status = native.lib.hvd_engine_open(board_fd, arena.pointer, index, descriptors, 2, ctypes.byref(found))
            native.check(status, "Opening")
            self.engines.append(int(found.value or 0))
        spec = ev.PlanAdd(PLAN, 0, native.DType.INT32, 1, 1.0, 1.0, BYTES, 2, (0, 1), None, "allreduce", BYTES)
        self.offset = self.room.plan_add(spec).offset

    def submit(self, index: int) -> int:
        op, address = ctypes.c_int64(), ctypes.addressof(self._data)
        arguments = (self.engines[index], self.offset, address, address, BYTES, 0, 7, ctypes.byref(op))
        assert native.lib.hvd_op_reduce_bound(*arguments) >= native.Status.OK
        return op.value

    def wait(self, index: int, op: int) -> None:
        assert native.lib.hvd_op_wait(self.engines[index], op, 5000) == native.Status.OK

    def run(self, rounds: int) -> None:
        for _ in range(rounds):
            for index, op in enumerate([self.submit(0), self.submit(1)]):
                self.wait(index, op)

    def end(self) -> None:
        """As when ranks are gone: the board goes last."""
        for engine in self.engines:
            native.lib.hvd_engine_close(engine)
        self.engines.clear()
        self.room.close()


@pytest.fixture
def ranks(no_leaks: None) -> Iterator[Ranks]:
    made = Ranks()
    made.begin()
    yield made
    made.end()
    for arena in made.arenas:
        arena.close()


def rounds(ranks: Ranks) -> int:
    return ranks.tally.rounds["allreduce", "local"]


def test_a_look_counts_rounds_bytes_and_submissions(ranks: Ranks) -> None:
    ranks.run(3)
    ranks.room.look()
    ranks.room.look()
    assert (rounds(ranks), ranks.tally.payload_bytes["allreduce", "local"]) == (3, 3 * BYTES)
    assert (ranks.tally.submissions, ranks.tally.plans) == (6, 1)


def test_an_open_round_is_seen_and_counts_when_all_have_arrived(ranks: Ranks) -> None:
    ranks.run(1)
    assert ranks.room.view.rounds() == []
    op = ranks.submit(0)
    (info,) = ranks.room.view.rounds()
    assert (info.round, info.phase, info.n_arrived) == (1, 0, 1)
    ranks.room.look()
    assert rounds(ranks) == 1
    ranks.wait(1, ranks.submit(1))
    ranks.wait(0, op)
    ranks.room.look()
    assert rounds(ranks) == 2
    assert [info.submits for info in ranks.room.view.ranks()] == [2, 2]


def test_what_nobody_looked_at_counts_when_plan_or_board_go(ranks: Ranks) -> None:
    ranks.run(2)
    assert ranks.room.plan_remove(ev.PlanRemove(PLAN)).done
    assert rounds(ranks) == 2
    spec = ev.PlanAdd(PLAN + 1, 0, native.DType.INT32, 1, 1.0, 1.0, BYTES, 2, (0, 1), None, "allreduce", BYTES)
    ranks.offset = ranks.room.plan_add(spec).offset
    ranks.run(4)
    ranks.end()
    assert (rounds(ranks), ranks.tally.submissions) == (6, 12)
    ranks.begin()
    ranks.run(1)
    ranks.room.look()
    assert (rounds(ranks), ranks.tally.submissions) == (7, 14)


def timed(ranks: Ranks) -> dict[str, int]:
    """How many rounds, by stage."""
    found: Counter[str] = Counter()
    for (algorithm, stage, _bucket), count in ranks.tally.stages.items():
        assert algorithm == LOCAL
        found[stage] += count
    return dict(found)


def test_one_round_in_sixteen_is_timed_and_counts_once(ranks: Ranks) -> None:
    ranks.run(16)
    first = ranks.submit(0)
    until = time.monotonic_ns() + 3_000_000
    while time.monotonic_ns() < until:
        continue
    ranks.wait(1, ranks.submit(1))
    ranks.wait(0, first)
    ranks.room.view.times()
    ranks.room.view.times()
    assert timed(ranks) == {"wait": 2, "reduce": 2}
    assert ranks.tally.stage_ns[LOCAL, "wait"] >= 3_000_000
    assert max(bucket for _, stage, bucket in ranks.tally.stages if stage == "wait") >= 12
    ranks.run(15)
    ranks.room.view.times()
    assert timed(ranks) == {"wait": 2, "reduce": 2}
    ranks.run(1)
    ranks.end()  # what nobody has looked at is counted
    assert timed(ranks) == {"wait": 3, "reduce": 3}
    ranks.begin()
    ranks.run(1)
    ranks.room.view.times()
    assert timed(ranks) == {"wait": 4, "reduce": 4}


def test_rounds_at_the_limit_do_not_count(ranks: Ranks) -> None:
    ranks.run(2)
    ranks.room.plan_limit(ev.PlanLimit(PLAN, 0, read=True))
    ranks.room.look()
    assert rounds(ranks) == 0
    ranks.room.plan_limit(ev.PlanLimit(PLAN, 2, read=False))
    ops = [ranks.submit(0), ranks.submit(1)]
    ranks.room.plan_remove(ev.PlanRemove(PLAN))
    assert rounds(ranks) == 2
    for engine, op in zip(ranks.engines, ops, strict=True):
        native.lib.hvd_op_fail(engine, op)


def test_rounds_with_other_hosts_go_by_their_plane(ranks: Ranks) -> None:
    remote = ev.RemotePart((0, 1))
    books = ranks.room._require().books
    books.opened(ev.PlanAdd(9, 0, 7, 1, 1.0, 1.0, 4, 2, (0,), remote, "broadcast", 4), "tcp")
    books.arrived(9, (5,))
    books.arrived(9, ())
    del books.accounts[9]
    assert ranks.tally.rounds["broadcast", "tcp"] == 5


def test_memory_is_what_was_touched(ranks: Ranks) -> None:
    view = ranks.room.view
    before = view.arena_bytes()
    block = ranks.arenas[1].buffer(1 << 20)
    ctypes.memset(block, 1, 1 << 20)
    after = view.arena_bytes()
    assert after[1] - before[1] >= 1 << 20
    assert after[0] == before[0]
    assert view.board_bytes() > 0
    del block
    ranks.end()
    assert (view.rounds(), view.ranks(), view.board_bytes(), view.arena_bytes()) == ([], [], 0, [])
