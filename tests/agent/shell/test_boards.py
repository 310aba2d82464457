"""Commands of the core on a real board, and outcomes that it is told."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest
from horovod import native
from horovod.agent.boards import BoardRoom, NoBoard
from horovod.agent.core import events as ev
from horovod.agent.members import Member


@pytest.fixture
def room() -> Iterator[BoardRoom]:
    before = set(os.listdir("/proc/self/fd"))
    threads = threading.active_count()
    arenas = [native.Arena(1 << 20) for _ in range(2)]
    rooms = BoardRoom(lambda: None, helpers_setting="1")
    rooms.create([Member(-1, arena.fd, os.getpid()) for arena in arenas], shared=False)
    yield rooms
    rooms.close()
    for arena in arenas:
        arena.close()
    assert threading.active_count() == threads
    assert set(os.listdir("/proc/self/fd")) <= before


def plan(number: int) -> ev.PlanAdd:
    return ev.PlanAdd(number, 0, 7, 1, 1.0, 1.0, 4096, 2, (0, 1))


def test_a_plan_is_placed_marked_read_and_removed(room: BoardRoom) -> None:
    first, second = room.plan_add(plan(5)), room.plan_add(plan(6))
    assert (first.plan, second.plan) == (5, 6)
    assert first.offset != second.offset
    assert room.plan_limit(ev.PlanLimit(5, 0, read=True)) == ev.Arrivals(5, {0: 0, 1: 0})
    assert room.plan_limit(ev.PlanLimit(5, 3, read=False)) is None
    assert room.plan_remove(ev.PlanRemove(5)) == ev.PlanRemoved(5, True)


def test_zeros_arrive_only_where_somebody_waits_and_nothing_open_is_quiet(room: BoardRoom) -> None:
    room.plan_add(plan(5))
    room.watch(True)
    assert room.sweep(ev.Sweep((5, 99), (1,))) == ev.Swept((), True)
    room.watch(False)


def test_a_look_sees_every_rank(room: BoardRoom) -> None:
    room.plan_add(plan(5))
    seen = room.look()
    assert (seen.rounds, seen.plans_used) == ((), ())
    assert [(rank.local_index, rank.blocked, rank.process_state) for rank in seen.ranks] == [
        (0, 0, "running"),
        (1, 0, "running"),
    ]


def test_the_end_of_an_epoch(room: BoardRoom) -> None:
    room.rank_dead(ev.RankDead(1))
    room.fail(ev.BoardFail(False, "rank 1 is lost"))
    assert len(room.descriptors) == 3
    room.close()
    with pytest.raises(NoBoard):
        room.look()
