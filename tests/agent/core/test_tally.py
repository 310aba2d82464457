"""What an agent counts: numbers that go on over epochs, and time in which ranks are awaited."""

from __future__ import annotations

import pytest
from horovod.agent.core import events as ev
from horovod.agent.core import values as v
from horovod.agent.core.plans import known_bytes
from horovod.agent.core.tally import LONGEST_STEP_S, Tally

from tests.agent.core.fakes import SUM, World


def test_jobs_and_announcements_count_over_epochs() -> None:
    world = World()
    world.begin()
    world.rank(0, v.Announce(1, SUM))
    world.rank(1, v.Announce(1, SUM))
    assert (world.core.tally.jobs, world.core.tally.announcements) == (1, 2)
    for rank in (0, 1):
        world.rank(rank, v.Leave(1))
    world.begin(2)
    world.rank(0, v.Announce(2, SUM))
    assert world.core.tally.announcements == 3


def test_a_rank_is_awaited_from_look_to_look() -> None:
    world = World()
    world.begin()
    world.plan()
    for now, missing in ((1.0, (1,)), (1.5, (1,)), (2.0, ()), (2.5, (0, 1)), (3600.0, (1,))):
        world.now = now
        world.seen = ev.Seen((ev.SeenRound(7, 0, now, missing, ()),), ())
        world.tell(ev.Tick())
    assert world.core.tally.awaited_s == {0: 0.5, 1: 0.5 + 0.5 + LONGEST_STEP_S}


def test_nobody_is_awaited_in_an_epoch_that_has_ended() -> None:
    world = World()
    world.begin()
    world.plan()
    world.seen = ev.Seen((ev.SeenRound(7, 0, 1.0, (1,), ()),), ())
    world.tell(ev.Tick())
    world.order(v.EndEpoch(v.Error(v.ErrorKind.LOST, "gone")))
    world.now = 1.0
    world.tell(ev.Tick())
    assert world.core.tally.awaited_s == {1: 0.0}


def test_plans_say_what_they_are_for() -> None:
    world = World()
    world.begin()
    (added,) = [command for command in world.plan() if isinstance(command, ev.PlanAdd)]
    assert (added.collective, added.payload) == ("allreduce", 12)


@pytest.mark.parametrize(
    ("shapes", "dtype", "expected"),
    [(((3,), (2, 5)), 7, 52), (((),), 8, 8), ((), 7, 0), (((-1, 4),), 7, 0), (((3,), (-1,)), 7, 0), (((0, 4),), 7, 0)],
)
def test_bytes_are_known_only_when_all_sizes_are(
    shapes: tuple[tuple[int, ...], ...], dtype: int, expected: int
) -> None:
    assert known_bytes(v.Signature(v.Kind.BROADCAST, "x", dtype=dtype, shapes=shapes)) == expected


def test_rounds_go_by_collective_and_plane() -> None:
    tally = Tally()
    tally.ran("allreduce", "local", 3, 100)
    tally.ran("allgather", "tcp", 2, 0)
    assert dict(tally.rounds) == {("allreduce", "local"): 3, ("allgather", "tcp"): 2}
    assert dict(tally.payload_bytes) == {("allreduce", "local"): 300}
