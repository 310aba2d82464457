"""What the ranks of tests over several hosts run.  Every result is checked where it arrives."""

from __future__ import annotations

import hashlib
import importlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest
from horovod.common.basics import client
from horovod.common.exceptions import EngineError, HorovodInternalError, MismatchError
from horovod.common.process_sets import ProcessSet
from horovod.common.types import ReduceOp

from tests.common.rank_programs import allgather, allreduce, barrier, hvd, mine, reduce_start, total
from tests.multi.programs import arena_array, fill_arena, refused_for_want_of_room


def sum_once() -> None:
    """The shortest job."""
    assert (allreduce(mine(1000), "x") == total()).all()


def several(*names: str) -> None:
    """Programs of other modules, one after the other, in one job."""
    for name in names:
        module, _, function = name.rpartition(".")
        print(f"program {name}", flush=True)
        if function == "dynamic_sets":
            hvd.shutdown()
            hvd.init(process_sets="dynamic")
        getattr(importlib.import_module(module), function)()
        hvd.shutdown()
        os.environ.pop("HOROVOD_DYNAMIC_PROCESS_SETS", None)
        hvd.init()


def small_of_all_kinds() -> None:
    """A few of everything, for connections that are slow."""
    assert (allreduce(mine(16_500), "ring") == total()).all()
    everybody = [float(rank) for rank in range(hvd.size()) for _ in range(rank)]
    assert allgather(np.full(hvd.rank(), hvd.rank(), np.float32)).tolist() == everybody
    barrier()


def same_bits() -> None:
    """Sums of numbers that round, of sizes for either way between hosts: prints a digest of each."""
    random = np.random.default_rng(hvd.rank())
    for dtype in (np.float32, np.float64):
        for count in (1, 17, 1000, 16_384, 16_385, 100_003, 1_000_001):
            for op in (ReduceOp.SUM, ReduceOp.AVERAGE):
                array = random.standard_normal(count).astype(dtype)
                result = allreduce(array, f"bits.{count}.{dtype.__name__}.{op}", op)
                print("bits", count, dtype.__name__, op, hashlib.sha256(result.tobytes()).hexdigest()[:16])


# ---- epochs


def many_epochs(count: str) -> None:
    """init and shutdown again and again: each time the agents connect anew."""
    for _ in range(int(count)):
        hvd.shutdown()
        hvd.init()
        assert (allreduce(mine(1000), "x") == total()).all()
        assert (allreduce(mine(100_000), "y") == total()).all()


def short_epochs(count: str) -> None:
    """init and shutdown with nothing between: some ranks have left before others are let in."""
    for _ in range(int(count)):
        hvd.shutdown()
        hvd.init()
    assert (allreduce(mine(1000), "x") == total()).all()


# ---- names, joins, sets


def late_contest(odd: str) -> None:
    """One rank uses a name for another shape while the others are in the next round of its plan already."""
    for attempt in range(4):
        name = f"batch.{attempt}"
        for _ in range(2):
            assert (allreduce(mine(64), name) == total()).all()
        differs = hvd.rank() == int(odd) % hvd.size()
        if differs:
            time.sleep(0.05 * attempt)  # so that others get into the round, all of them or none
        with pytest.raises(MismatchError, match=name):
            allreduce(mine(65 if differs else 64), name)
        assert (allreduce(mine(64), name) == total()).all()


def no_room(memory: str) -> None:
    """The last rank has no room for the first of two unnamed sums, when the others are in both rounds: the second is right.

    Where their data lie in the arena, the partial sums of their hosts are there already: then the second is refused, too.
    """
    count, last = 25_000, hvd.rank() == hvd.size() - 1
    allreduce(arena_array(count), None)
    here = memory == "arena"
    arrays = [
        arena_array(count) if here and not last else mine(count),
        arena_array(count) if here or last else mine(count),
    ]
    arrays[1] *= 2
    taken = fill_arena() if last else []
    if last:
        time.sleep(0.5)
    ops = [reduce_start([array], None) for array in arrays]
    for _ in range(0 if last else 100):
        time.sleep(0.002)
        assert not any(op.poll() for op in ops)
    refused_for_want_of_room(ops[0].wait)
    if memory == "arena":
        with pytest.raises(EngineError, match=r"was refused on all ranks: rank \d .*can't start it again"):
            ops[1].wait()
    else:
        ops[1].wait()
        assert (arrays[1] == 2 * total()).all(), arrays[1]
    del taken
    assert (allreduce(mine(count), None) == total()).all()


def no_room_for_the_whole(name: str) -> None:
    """The last rank has room for a window, but not for all, as it goes between hosts: that shows only when there is a plan."""
    count, left = 1_000_000, 400  # pages
    taken = fill_arena() if hvd.rank() == hvd.size() - 1 else []
    del taken[-left:]
    for _ in range(2):
        refused_for_want_of_room(lambda: allreduce(mine(count), name or None))
        assert (allreduce(mine(10), "small") == total()).all()
    del taken
    assert (allreduce(mine(count), name or None) == total()).all()


def many_names(count: str) -> None:
    """So many names at once, each rank in an order of its own; twice, so that they have plans."""
    names = [f"n{number}" for number in range(int(count))]
    np.random.default_rng(hvd.rank()).shuffle(names)
    for _ in range(2):
        started = [(array, reduce_start([array], name)) for name, array in ((name, mine(2)) for name in names)]
        for array, op in started:
            op.wait()
            assert (array == total()).all()


def joined_host(ranks: str) -> None:
    """These ranks, a whole host, run out of data first; the others go on, with small and large sums."""
    early = hvd.rank() in [int(rank) for rank in ranks.split(",")]
    left = [rank for rank in range(hvd.size()) if str(rank) not in ranks.split(",")]
    for turn in range(3):
        assert (allreduce(mine(100), "small") == total()).all()
        assert (allreduce(mine(100_000), "large") == total()).all()
        if not early:
            for step in range(5):
                expected = sum(rank + 1 for rank in left)
                assert (allreduce(mine(100), "small") == expected).all()
                assert (allreduce(mine(100_000), "large") == expected).all()
                assert (allreduce(mine(10 + step), f"new.{turn}.{step}") == expected).all()
        client().join()


def set_over(ranks: str) -> None:
    """A process set of these ranks beside the global one."""
    members = [int(rank) for rank in ranks.split(",")]
    group = ProcessSet(members)
    hvd.shutdown()
    hvd.init(process_sets=[group])
    for count in (10, 100_000):
        for _ in range(3):
            if hvd.rank() in members:
                result = allreduce(mine(count), "in", set_id=group.process_set_id or 0)
                assert (result == sum(rank + 1 for rank in members)).all()
            assert (allreduce(mine(count), "in") == total()).all()


# ---- faults


def _tell(error: Exception) -> None:
    print(f"{type(error).__name__}: {error}".replace("\n", " "), flush=True)


def stream(megabytes: str, victim: str = "-1", after_s: str = "0.3") -> None:
    """Sums of so many megabytes until an error, which is told; the victim kills itself meanwhile."""
    array = np.ones(int(float(megabytes) * (1 << 18)), np.float32)
    try:
        for number in range(100_000):
            array.fill(1)
            allreduce(array, "g")
            assert array[0] == array[-1] == hvd.size()
            if number == 0:
                print("streaming", flush=True)
                if hvd.rank() == int(victim):
                    threading.Timer(float(after_s), os.kill, (os.getpid(), signal.SIGKILL)).start()
    except HorovodInternalError as error:
        _tell(error)
    os._exit(3)


def stream_until(path: str, kilobytes: str = "100") -> None:
    """Sums until a file is there, which rank 0 looks for."""
    array = np.ones(int(kilobytes) * 256, np.float32)
    print("streaming", flush=True)
    over = np.zeros(1, np.float32)
    while not over[0]:
        array.fill(1)
        assert (allreduce(array, "g") == hvd.size()).all()
        over = allreduce(np.array([hvd.rank() == 0 and os.path.exists(path)], np.float32), "over")


def wait_for_each_other() -> None:
    """A deadlock over hosts: each rank waits for a name that the others never submit."""
    allreduce(mine(4), "warm")
    try:
        allreduce(mine(4), f"only.{hvd.rank()}")
    except HorovodInternalError as error:
        _tell(error)


def go_on_early() -> None:
    """Rank 0 has its part of a gather at once, and waits in the next operation while the others still get theirs."""
    for count in (4, 16 << 20):
        part = np.full(count if hvd.rank() == 0 else 4, hvd.rank(), np.uint8)
        assert len(allgather(part)) == count + 4 * (hvd.size() - 1)
        assert (allreduce(mine(4), "next") == total()).all()


def stall(rank: str, name: str) -> None:
    """One rank does something else for too long; ``warm`` has a plan, of which its host has heard nothing then."""
    allreduce(mine(4), "warm")
    if hvd.rank() == int(rank):
        time.sleep(4)
    try:
        allreduce(mine(4), name)
    except HorovodInternalError as error:
        _tell(error)


def main() -> None:
    """Runs the program that the command line names."""
    program: Callable[..., None] = globals()[sys.argv[1]]
    hvd.init()
    program(*sys.argv[2:])
    hvd.shutdown()
    print("done")


if __name__ == "__main__":
    main()
