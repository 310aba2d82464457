"""Several hosts in this process: each with its board, its ranks' engines and, of the plane under test, what an agent has.

Ranks are threads.  What the plane tells is treated as an agent treats it: a loss fails the board and is passed on.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from horovod import native
from horovod.agent.boards import BoardRoom
from horovod.agent.core import events as ev
from horovod.agent.core.tally import Tally
from horovod.agent.members import Member
from horovod.common.engine import OK, PENDING, NativeEngine

T = TypeVar("T")
Array = npt.NDArray[Any]
Shape = tuple[int, ...]

LIMIT_S = 40.0
_ARENA_BYTES = 1 << 32


class Loop:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="planes")
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """In the loop, to its end."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(LIMIT_S)

    def call(self, function: Callable[[], T]) -> T:
        """In the loop."""

        async def work() -> T:
            return function()

        return self.run(work())

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(LIMIT_S)
        self._loop.close()


@dataclass
class HostRoom:
    """What an agent holds, and the engines of its ranks; ``told`` is what its plane has said."""

    place: int
    n_ranks: int
    shared: bool
    room: BoardRoom = field(default_factory=lambda: BoardRoom(lambda: None, "0", Tally()))
    told: list[ev.PlaneLost | ev.PlaneAborted] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.arenas = [native.Arena(_ARENA_BYTES) for _ in range(self.n_ranks)]
        self.room.create([Member(-1, arena.fd, os.getpid()) for arena in self.arenas], self.shared)
        board, *arenas = self.room.descriptors
        self.engines = [NativeEngine(board, arena.pointer, i, arenas) for i, arena in enumerate(self.arenas)]
        self.heard, self.closed = threading.Event(), False

    def post(self, event: ev.Event) -> None:
        """What an agent does with what its plane tells."""
        if isinstance(event, (ev.PlaneLost, ev.PlaneAborted)):
            self.told.append(event)
            self.room.fail(ev.BoardFail(False, f"host {event.host}: {event.text}"))
            self.heard.set()

    def close(self) -> None:
        """Once is enough."""
        if self.closed:
            return
        self.closed = True
        for engine in self.engines:
            engine.close()
        self.room.close()
        for arena in self.arenas:
            arena.close()


@dataclass(frozen=True)
class Plan:
    """A plan on all hosts that have members; ``at[rank]`` is its offset where that rank is."""

    number: int
    members: tuple[int, ...]
    at: dict[int, int]


class World:
    """``shape`` has the number of ranks of each host.  ``connect`` gives each room its plane; None: one host, no plane.

    ``doubles``: small sums between hosts travel by recursive doubling, as they do anyway from 8 hosts on.
    """

    def __init__(
        self,
        shape: Shape,
        connect: Callable[[Loop, Sequence[HostRoom]], Callable[[], None]] | None,
        doubles: bool = False,
    ) -> None:
        self.shape, self.loop = shape, Loop()
        self.doubles = doubles or len(shape) >= 8
        self.remote = connect is not None
        self.rooms = [HostRoom(place, count, self.remote) for place, count in enumerate(shape)]
        self.where = [(place, index) for place, count in enumerate(shape) for index in range(count)]
        self._threads = ThreadPoolExecutor(len(self.where), "rank")
        self._plans = 0
        self._disconnect: Callable[[], object] = lambda: None
        try:
            if connect is not None:
                self._disconnect = connect(self.loop, self.rooms)
        except BaseException:
            self.close()
            raise

    @property
    def size(self) -> int:
        """Ranks."""
        return len(self.where)

    def close(self) -> None:
        """As when a job is over: ranks go, then agents say goodbye, at once."""
        for room in self.rooms:
            self.loop.call(room.close)
        self._disconnect()
        self._threads.shutdown()
        self.loop.close()

    # ---- plans

    def plan(
        self,
        nbytes: int | None,
        dtype: int = native.DType.FLOAT32,
        op: int = native.ReduceOp.SUM,
        factors: tuple[float, float] = (1.0, 1.0),
        members: Sequence[int] = (),
    ) -> Plan:
        """A cooperative plan, or with ``nbytes`` None one to pull; of all ranks, or the ``members``."""
        self._plans += 1
        members = tuple(members) or tuple(range(self.size))
        hosts = [self.where[rank][0] for rank in members]
        offsets = {}
        for place in sorted(set(hosts)):
            local = self.shape[place]
            listed = tuple(self.where[r][1] if self.where[r][0] == place else local for r in members)
            if nbytes is not None:
                listed = tuple(index for index in listed if index != local)
            remote = ev.RemotePart(tuple(sorted(set(hosts))), () if nbytes is not None else tuple(hosts))
            command = ev.PlanAdd(
                self._plans,
                native.PlanKind.PULL if nbytes is None else native.PlanKind.COOPERATIVE,
                dtype,
                op,
                *factors,
                nbytes or 0,
                4,
                listed,
                remote if self.remote else None,
                "allreduce",
                nbytes or 0,
            )
            offsets[place] = self.rooms[place].room.plan_add(command).offset
        return Plan(self._plans, members, {rank: offsets[self.where[rank][0]] for rank in members})

    # ---- ranks

    def start(self, plan: Plan, body: Callable[[int, NativeEngine], T]) -> list[Any]:
        """``body(rank, engine)`` in the threads of the plan's members; futures in their order."""
        return [self._threads.submit(body, rank, self.engine(rank)) for rank in plan.members]

    def run(self, plan: Plan, body: Callable[[int, NativeEngine], T]) -> list[T]:
        """As ``start``; what came of it."""
        return [future.result(LIMIT_S) for future in self.start(plan, body)]

    def engine(self, rank: int) -> NativeEngine:
        """Of a rank."""
        place, index = self.where[rank]
        return self.rooms[place].engines[index]


def finish(engine: NativeEngine, handle: int) -> int:
    """Waits for an operation; its status."""
    deadline = time.monotonic() + LIMIT_S
    while (status := engine.wait(handle, 100)) == PENDING:
        assert time.monotonic() < deadline, "an operation does not end"
    return status


def submit(engine: NativeEngine, plan: Plan, rank: int, data: Array) -> int:
    """An allreduce in place; the handle."""
    status = engine.reduce_bound(plan.at[rank], (data.ctypes.data, data.ctypes.data, data.nbytes), False, 0)
    assert status == OK, status
    return engine.handle


def reduce_in_place(engine: NativeEngine, plan: Plan, rank: int, data: Array, blocking: bool = True) -> int:
    """An allreduce from start to end; its status."""
    status = engine.reduce_bound(plan.at[rank], (data.ctypes.data, data.ctypes.data, data.nbytes), blocking, 0)
    return finish(engine, engine.handle) if status == OK else status


def allreduce(engine: NativeEngine, plan: Plan, rank: int, data: Array, blocking: bool = True) -> Array:
    """A copy of the data, reduced."""
    out = np.array(data)
    assert reduce_in_place(engine, plan, rank, out, blocking) == OK
    return out


def published(engine: NativeEngine, plan: Plan, rank: int, data: Array, meta: Sequence[int] = ()) -> int:
    """A pull in which every member has published: reads may follow, then ``engine.done``.  The handle."""
    handle = engine.pull([(data.ctypes.data, data.nbytes)], meta, 0)
    status, _ = engine.bind(handle, plan.at[rank])
    assert status == OK, status
    assert finish(engine, handle) == OK
    return handle


__all__ = [
    "LIMIT_S",
    "Array",
    "HostRoom",
    "Loop",
    "Plan",
    "Shape",
    "World",
    "allreduce",
    "finish",
    "published",
    "reduce_in_place",
    "submit",
]
