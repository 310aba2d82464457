"""What can go wrong with a plane: every rank gets a right result or an error that names the host, in time, and nothing stays.

Half of the shapes have hosts that have nothing to do with the trouble, which stands between host 0 and all others.
"""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
from horovod.agent.core import events as ev
from horovod.common.engine import CLOSED, FAILED, OK, NativeEngine
from horovod.native import DType

from tests.planes import suite
from tests.planes.conftest import Fresh
from tests.planes.makers import Made
from tests.planes.world import LIMIT_S, Shape, World, allreduce, finish, reduce_in_place, submit

pytestmark = [pytest.mark.usefixtures("no_leaks"), pytest.mark.timeout(100)]

slow = pytest.mark.slow
SILENT_S = 4.0
BYTES = 16 << 20
SMALL_BYTES = 64 << 10
# What only the carrier of the frames changes is looked at with one plane by default, with the others on request.
what = pytest.mark.parametrize("pull", [False, pytest.param(True, marks=slow)], ids=["reduce", "pull"])
mostly_tcp = pytest.mark.parametrize("name", ["tcp", pytest.param("gloo", marks=slow)])
small_too = pytest.mark.parametrize("name", ["tcp", "doubling", pytest.param("gloo", marks=slow)])


class Rounds:
    """Ranks with large rounds, one after the other until there is an error; ``started`` when all are in the second one.

    Where small sums are what differs, rounds are small.  Ranks reduce, or with ``pull`` everybody reads what everybody publishes.
    """

    def __init__(self, world: World, pull: bool = False) -> None:
        nbytes = SMALL_BYTES if world.doubles else BYTES
        self._world, self._plan = world, world.plan(None if pull else nbytes, DType.INT32)
        self._count, self._lock, self._left = nbytes // 4, threading.Lock(), world.size
        self._round = self._pull if pull else self._reduce
        self.started = threading.Event()
        self._futures = world.start(self._plan, self._body)

    def wait_until_started(self) -> None:
        """Until there is something to break; fails at once when something is broken already."""
        deadline = time.monotonic() + LIMIT_S
        while not self.started.wait(0.05):
            over = [future.result() for future in self._futures if future.done()]
            assert not over, over
            assert time.monotonic() < deadline

    def _body(self, rank: int, engine: NativeEngine) -> tuple[int, str]:
        first = self._round(rank, engine)
        assert first == OK, (first, engine.reason())
        with self._lock:
            self._left -= 1
            if not self._left:
                self.started.set()
        while (status := self._round(rank, engine)) == OK:
            pass
        return status, engine.reason()

    def _reduce(self, rank: int, engine: NativeEngine) -> int:
        data = np.full(self._count, rank + 1, np.int32)
        status = reduce_in_place(engine, self._plan, rank, data)
        assert status != OK or data[-1] == sum(range(1, self._world.size + 1))
        return status

    def _pull(self, rank: int, engine: NativeEngine) -> int:
        data = np.full(self._count, rank + 1, np.int32)
        handle = engine.pull([(data.ctypes.data, data.nbytes)], [], 0)
        status, _ = engine.bind(handle, self._plan.at[rank])
        if status != OK or (status := finish(engine, handle)) != OK:
            return status
        for member in range(self._world.size):
            status = engine.pull_copy(handle, [(member, 0, data.ctypes.data, data.nbytes)])
            assert status != OK or data[-1] == member + 1
        engine.done(handle)
        return status

    def ends(self) -> list[tuple[int, str]]:
        """Status and reason of each rank."""
        return [future.result(LIMIT_S) for future in self._futures]


def check_lost(made: Made, ends: list[tuple[int, str]]) -> None:
    """Every rank has failed, and each host has been told of a loss that involves host 0."""
    assert {status for status, _ in ends} == {FAILED}, ends
    assert all(reason.startswith("host ") for _, reason in ends), ends
    for room in made.world.rooms[1:]:
        assert room.told
        assert room.told[0].host == 0 or isinstance(room.told[0], ev.PlaneAborted), room.told


@small_too
def test_bytes_that_come_one_by_one(fresh: Fresh, name: str) -> None:
    made = fresh(name, (1, 2), troubled=True)
    assert made.trouble is not None
    made.trouble.drip()
    suite.check_sizes(made.world, (1, 777))
    suite.check_barrier(made.world, 3)
    suite.check_broadcast_of(made.world, 0, 400)
    suite.check_broadcast_of(made.world, 2, 400)


@mostly_tcp
def test_hosts_that_meet_over_ipv6(fresh: Fresh, name: str) -> None:
    suite.check_sizes(fresh(name, (1, 1), address="::1").world, (1, 300_007))


@small_too
def test_a_slow_peer(fresh: Fresh, name: str) -> None:
    """Others neither lose it nor wait for it where it is not needed."""
    made = fresh(name, (1, 1, 1), silent_s=SILENT_S, troubled=True)
    assert made.trouble is not None
    made.trouble.delay(0.05)
    fast = made.world.plan(4 << 10, DType.INT32, members=(1, 2))
    late = made.world.plan(4 << 10, DType.INT32)
    data = [np.full(1 << 10, rank + 1, np.int32) for rank in range(3)]
    slow_one = threading.Event()

    def body(rank: int, engine: NativeEngine) -> list[int]:
        found = []
        if rank == 0:
            slow_one.wait(LIMIT_S)
        else:
            handle = submit(engine, late, rank, data[rank])
            found += [int(allreduce(engine, fast, rank, np.full(1 << 10, rank + 1, np.int32))[0]) for _ in range(50)]
            slow_one.set()
            assert finish(engine, handle) == OK
            return [*found, int(data[rank][0])]
        return [int(allreduce(engine, late, rank, data[rank])[0])]

    assert made.world.run(late, body) == [[6], [5] * 50 + [6], [5] * 50 + [6]]
    suite.check_sizes(made.world, (777, 300_007))
    assert [room.told for room in made.world.rooms] == [[], [], []]


@what
@pytest.mark.parametrize(("name", "shape"), [("local", (3,)), ("tcp", (1, 2)), ("doubling", (1, 2)), ("gloo", (1, 2))])
def test_an_abort_in_flight(fresh: Fresh, name: str, shape: Shape, pull: bool) -> None:
    """One host ends the epoch while large rounds are under way: all ranks everywhere learn why."""
    made = fresh(name, shape)
    rounds = Rounds(made.world, pull)
    rounds.wait_until_started()
    since = time.monotonic()
    made.world.rooms[-1].room.fail(ev.BoardFail(False, "rank 2 was killed"))
    ends = rounds.ends()
    assert time.monotonic() - since < 10
    assert {status for status, _ in ends} == {FAILED}
    assert all(reason.endswith("rank 2 was killed") for _, reason in ends), ends
    others = made.world.rooms[:-1]
    assert [room.told for room in others] == [[ev.PlaneAborted(1, 1, "rank 2 was killed")] for _ in others]


@what
@small_too
def test_a_peer_that_vanishes_without_a_reset(fresh: Fresh, name: str, pull: bool) -> None:
    made = fresh(name, (1, 1, 2), silent_s=SILENT_S, troubled=True)
    assert made.trouble is not None
    rounds = Rounds(made.world, pull)
    rounds.wait_until_started()
    since = time.monotonic()
    made.trouble.vanish()
    check_lost(made, rounds.ends())
    assert SILENT_S * 0.5 < time.monotonic() - since < SILENT_S + 10
    assert any("silence" in told.text for room in made.world.rooms for told in room.told)


@what
@small_too
def test_connections_that_break(fresh: Fresh, name: str, pull: bool) -> None:
    """Long before silence could tell."""
    made = fresh(name, (1, 1, 2), silent_s=60.0, troubled=True)
    assert made.trouble is not None
    rounds = Rounds(made.world, pull)
    rounds.wait_until_started()
    made.trouble.reset()
    check_lost(made, rounds.ends())


@pytest.mark.slow
def test_whose_gloo_is_gone_is_the_one_that_is_blamed(fresh: Fresh) -> None:
    made = fresh("gloo", (1, 1), silent_s=60.0, troubled=True)
    assert made.trouble is not None
    made.trouble.reset()
    for room in made.world.rooms:
        assert room.heard.wait(LIMIT_S)
        assert room.told[0].host == 0
    assert "was killed by signal 9" in made.world.rooms[0].told[0].text


@pytest.mark.slow
def test_whose_gloo_stands_still_is_the_one_that_is_blamed(fresh: Fresh) -> None:
    """Also by its own host, for which everybody else is silent."""
    made = fresh("gloo", (1, 1), silent_s=SILENT_S, troubled=True)
    assert made.trouble is not None
    made.trouble.vanish()
    for room in made.world.rooms:
        assert room.heard.wait(LIMIT_S)
        assert room.told[0].host == 0, room.told
    assert "does not answer" in made.world.rooms[0].told[0].text or isinstance(
        made.world.rooms[0].told[0], ev.PlaneAborted
    )


@mostly_tcp
def test_closing_lets_rounds_finish(fresh: Fresh, name: str) -> None:
    """A rank's shutdown does not overtake what all have arrived in, and a goodbye is no loss."""
    made = fresh(name, (1, 1))
    plan = made.world.plan(4 << 20, DType.INT32)
    done = [threading.Event() for _ in range(2)]

    def body(rank: int, engine: NativeEngine) -> tuple[int, int]:
        data = np.full(1 << 20, rank + 1, np.int32)
        handle = submit(engine, plan, rank, data)
        if rank == 0:
            assert finish(engine, handle) == OK
            made.world.rooms[0].room.fail(ev.BoardFail(True, "shutdown"))
            done[0].set()
            return OK, int(data[0])
        assert done[0].wait(LIMIT_S)
        return finish(engine, handle), int(data[0])

    assert made.world.run(plan, body) == [(OK, 3), (OK, 3)]
    nothing = np.zeros(1 << 20, np.int32)
    assert reduce_in_place(made.world.engine(0), plan, 0, nothing) == CLOSED
    made.world.loop.call(made.world.rooms[0].close)
    assert not made.world.rooms[1].heard.wait(0.3)
