"""Ranks that wait for each other, as the ranks of these tests run them."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest
from horovod.common.exceptions import StalledError
from horovod.common.process_sets import add_process_set
from horovod.common.types import CollectiveKind, Signature

from tests.common.rank_programs import allgather, allreduce, barrier, client, hvd, mine, reduce_start, total


def cycle(second_thread: str) -> None:
    """Each rank waits for a name that the other submits later, or never; a second thread may resolve it."""
    own, other = ("a", "b") if hvd.rank() == 0 else ("b", "a")
    allreduce(mine(4), "warm")
    start = time.monotonic()
    if second_thread == "yes":
        threading.Timer(0.6, lambda: allreduce(mine(4), other)).start()
        assert (allreduce(mine(4), own) == total()).all()
        barrier()
        return
    with pytest.raises(StalledError) as caught:
        allreduce(mine(4), own)
    print(f"after {time.monotonic() - start:.1f} s: {caught.value}".replace("\n", " "))
    assert time.monotonic() - start < 8


def cycle_of_calls(other: str) -> None:
    """Rank 0 adds a process set while rank 1 waits in something else."""
    allreduce(mine(4), "warm")
    others: dict[str, Callable[[], object]] = {
        "allreduce": lambda: allreduce(mine(4), "a"),
        "gather": lambda: allgather(mine(4), "a"),
        "join": client().join,
    }
    call = others[other] if hvd.rank() else lambda: add_process_set([0])
    with pytest.raises(StalledError) as caught:
        call()
    print(f"error: {caught.value}".replace("\n", " "))


def _reduce(name: str, count: int = 4, dtype: str = "float32", root: int = -1, prescale: float = 1.0) -> None:
    """Waits for a collective with one thing changed."""
    array = mine(count, np.dtype(dtype).type)
    kind = CollectiveKind.ALLREDUCE if root < 0 else CollectiveKind.BROADCAST
    number = {"float32": 7, "float64": 8}[dtype]
    signature = Signature(kind, f"x.{name}", False, number, ((count,),), prescale=prescale, root=max(root, 0))
    if root < 0:
        client().reduce(signature, [(array.ctypes.data, array.ctypes.data, array.nbytes)], blocking=False).wait()
    else:
        op = client().gather(signature, [(array.ctypes.data, array.nbytes)], ())
        op.wait()
        op.done()


def cycle_after_a_change(what: str) -> None:
    """Rank 1 uses a known name for something else, rank 0 never does and waits in a barrier."""
    changes: dict[str, tuple[dict[str, object], dict[str, object]]] = {
        "nothing": ({}, {}),
        "shape": ({}, {"count": 3}),
        "dtype": ({}, {"dtype": "float64"}),
        "prescale": ({}, {"prescale": 2.0}),
        "root": ({"root": 0}, {"root": 1}),
        "kind": ({}, {"root": 0}),
    }
    before, after = changes[what]
    for _ in range(2):
        _reduce("known", **before)  # type: ignore[arg-type]
    _wait_for_each_other(lambda: _reduce("known", **after))  # type: ignore[arg-type]


def cycle_behind_another_operation(first: str) -> None:
    """Rank 1 waits for the second of two unnamed operations: only the first one of them was announced."""
    if first == "known":
        allreduce(mine(4))

    def second() -> None:
        ops = [reduce_start([mine(4)], None) for _ in range(2)]
        ops[1].wait()

    _wait_for_each_other(second)


def _wait_for_each_other(of_rank_1: Callable[[], None]) -> None:
    with pytest.raises(StalledError) as caught:
        of_rank_1() if hvd.rank() == 1 else barrier()
    print(f"error: {caught.value}".replace("\n", " "))


def main() -> None:
    """Runs the program that the command line names."""
    hvd.init()
    globals()[sys.argv[1]](*sys.argv[2:])
    hvd.shutdown()
    print("done")


if __name__ == "__main__":
    main()
