"""What the ranks of these tests run: collectives on numpy arrays, wrong calls, and ranks that fail on purpose."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from horovod.common.exceptions import (
    EngineError,
    HorovodInternalError,
    MismatchError,
    NotWhileJoinedError,
    ShutDownError,
)
from horovod.common.process_sets import ProcessSet, add_process_set, remove_process_set
from horovod.common.types import CollectiveKind, PullOp, ReduceOp, Signature
from horovod.native import OutOfMemory

from tests.common.rank_programs import Array, allgather, allreduce, barrier, client, hvd, mine, reduce_start, total


def pull(kind: CollectiveKind, name: str, array: Array, meta: Sequence[int] = (), **values: Any) -> PullOp:
    """A gather of float32 arrays that all members have published to."""
    dims = array.shape if kind in (CollectiveKind.BROADCAST, CollectiveKind.REDUCESCATTER) else (-1, *array.shape[1:])
    signature = Signature(kind, f"{kind.name.lower()}.{name}", False, 7, (dims,), **values)
    op = client().gather(signature, [(array.ctypes.data, array.nbytes)], meta, keep=array)
    op.wait()
    return op


def pull_kinds() -> None:
    """broadcast, alltoall and reducescatter, uneven, several rounds."""
    rank, size = hvd.rank(), hvd.size()
    for _ in range(4):
        out = np.zeros(5, np.float32)
        op = pull(CollectiveKind.BROADCAST, "b", mine(5), root=size - 1)
        op.copy([(size - 1, 0, out.ctypes.data, out.nbytes)])
        op.done()
        assert (out == size).all()

        send = np.repeat(np.arange(size, dtype=np.float32), rank + 1)  # rank + 1 rows for everybody
        op = pull(CollectiveKind.ALLTOALL, "a", send, [rank + 1] * size)
        rows = [op.meta(member)[rank] for member in range(size)]
        received, position = np.empty(sum(rows), np.float32), 0
        for member, count in enumerate(rows):
            op.copy([(member, 4 * rank * (member + 1), received.ctypes.data + 4 * position, 4 * count)])
            position += count
        op.done()
        assert received.tolist() == [float(rank)] * total()

        whole = np.arange(2 * size + 1, dtype=np.float32)
        part = np.empty(3 if rank == 0 else 2, np.float32)
        op = pull(CollectiveKind.REDUCESCATTER, "r", whole, op=ReduceOp.AVERAGE)
        first = 0 if rank == 0 else 3 + 2 * (rank - 1)
        op.reduce(4 * first, part.ctypes.data, part.nbytes)
        op.done()
        assert np.allclose(part, whole[first : first + len(part)])


def joins() -> None:
    """Uneven batches: whoever has run out contributes zeros; averages divide by the full size."""
    for last in (0, hvd.size() - 1, 0):
        batches = 3 + (hvd.rank() - last) % hvd.size()
        for step in range(batches):
            here = [rank for rank in range(hvd.size()) if 3 + (rank - last) % hvd.size() > step]
            expected = sum(rank + 1 for rank in here)
            assert (allreduce(mine(8), "g") == expected).all()
            assert np.allclose(allreduce(mine(8), "h", ReduceOp.AVERAGE), expected / hvd.size())
        assert 0 <= client().join() < hvd.size()
        assert (allreduce(mine(8), "g") == total()).all()
        assert allgather(mine(1)).tolist() == list(range(1, hvd.size() + 1))


def join_with_open_operations() -> None:
    """A rank joins before it has asked for its results: the last ones need zeros of the others."""
    for number in range(5):
        arrays = [mine(8) for _ in range(4 * hvd.rank())]
        ops = [reduce_start([array], f"open.{number}.{i}") for i, array in enumerate(arrays)]
        client().join()
        for i, (array, op) in enumerate(zip(arrays, ops, strict=True)):
            op.wait()
            assert (array == sum(r + 1 for r in range(hvd.size()) if 4 * r > i)).all()


def join_each_with_an_operation_of_its_own() -> None:
    """Every rank joins with an operation open that no other rank has: only the joins can complete them."""
    for number in range(5):
        array = mine(8)
        op = reduce_start([array], f"own.{number}.{hvd.rank()}")
        client().join()
        op.wait()
        assert (array == hvd.rank() + 1).all()


def other_kinds_while_joined() -> None:
    barrier()
    if hvd.rank() == 0:
        client().join()
    else:
        with pytest.raises(NotWhileJoinedError, match="join"):
            allgather(mine(1), "late")
        client().join()
    assert allgather(mine(1)).tolist() == list(range(1, hvd.size() + 1))


def without_join() -> None:
    """Uneven batches without join: the rank that is done shuts down, the others hear so."""
    for _ in range(2 + 2 * hvd.rank()):
        try:
            allreduce(mine(8), "g")
        except ShutDownError as error:
            print(f"heard: {error}")
            return


def static_sets() -> None:
    """Sets given to init, the same names in both at once, non-members."""
    hvd.shutdown()
    even, odd = ProcessSet([2, 0]), ProcessSet([1, 3])
    hvd.init(process_sets=[even, odd])
    assert (even.process_set_id, odd.process_set_id) == (1, 2)
    own, other = (even, odd) if hvd.rank() % 2 == 0 else (odd, even)
    values = {0: 2.0, 2: 6.0, 1: 7.0, 3: 9.0}
    for _ in range(3):
        array = np.full(4, values[hvd.rank()], np.float32)
        assert (allreduce(array, "same", ReduceOp.AVERAGE, own.process_set_id or 0) == (4 if own is even else 8)).all()
    assert (own.size(), own.rank(), own.included(), other.included()) == (2, hvd.rank() // 2, True, False)
    with pytest.raises(ValueError, match="not a member"):
        allreduce(mine(4), "x", set_id=other.process_set_id or 0)
    with pytest.raises(ValueError, match="repeats"):
        hvd.init(process_sets=[ProcessSet([0, 2]), ProcessSet([2, 0])])
    assert (allreduce(mine(4), "all") == total()).all()


def dynamic_sets() -> None:
    """Adding and removing, over and over; ids are reused in the order in which they came free."""
    for _ in range(20):
        first, second = add_process_set([0, 1]), add_process_set(ProcessSet([1]))
        assert (first.process_set_id, second.process_set_id) == (1, 2)
        with pytest.raises(ValueError, match="exists already"):
            add_process_set([1, 0])
        if hvd.rank() < 2:
            assert (allreduce(mine(4), "x", set_id=1) == 3).all()
        assert remove_process_set(first)
        assert first.process_set_id is None
        again = add_process_set([0, hvd.size() - 1])
        assert again.process_set_id == 1
        assert remove_process_set(again)
        assert remove_process_set(second)
        assert not remove_process_set(second)
        # Free ids are handed out first in, first out: bring them back into order.
        fillers = [add_process_set([0]), add_process_set([1])]
        if fillers[0].process_set_id != 1:
            fillers.reverse()
        assert all(remove_process_set(filler) for filler in fillers)


def mismatch(field: str) -> None:
    """Ranks disagree in one field: all get the same text, the name is free afterwards, other names are unaffected."""
    odd = hvd.rank() % 2
    values: dict[str, Any] = {"dtype": 7, "shapes": ((4,),)}
    kind, changes = CollectiveKind.ALLREDUCE, {
        "dtype": ("dtype", 7 + odd), "shape": ("shapes", ((4 + odd,),)), "op": ("op", 1 + 2 * odd),
        "prescale": ("prescale", 1.0 + odd), "postscale": ("postscale", 1.0 + odd), "root": ("root", odd),
        "device": ("device", odd),
    }  # fmt: skip
    if field == "root":
        kind = CollectiveKind.BROADCAST
    if field == "kind":
        kind = CollectiveKind.BROADCAST if odd else CollectiveKind.ALLREDUCE
        values["root"] = 0 if odd else -1
    else:
        values[changes[field][0]] = changes[field][1]
    array = np.zeros(8, np.float64)
    signature = Signature(kind, "same.name", False, values.pop("dtype"), values.pop("shapes"), **values)

    def submit() -> None:
        if kind is CollectiveKind.BROADCAST:
            client().gather(signature, [(array.ctypes.data, 16)], ()).wait()
        else:
            client().reduce(signature, [(array.ctypes.data,) * 2 + (16 + 4 * odd,)], blocking=True)

    for _ in range(2):
        with pytest.raises(MismatchError, match=r"same\.name") as caught:
            submit()
        print(f"error: {caught.value}".replace("\n", " "))
    assert (allreduce(mine(4), "other") == total()).all()


def fails(how: str) -> None:
    """The last rank fails while the others wait for it."""
    for _ in range(3):
        allreduce(mine(300_000), "g")
    if hvd.rank() == hvd.size() - 1:
        if how == "raise":
            raise RuntimeError("on purpose")
        if how == "exit":
            os._exit(0)
        if how == "exit code":
            os._exit(7)
        os.kill(os.getpid(), signal.SIGKILL if how == "kill" else signal.SIGSTOP)
    for attempt in ("g", "later"):
        try:
            allreduce(mine(300_000), attempt)
        except HorovodInternalError as error:
            print(f"{type(error).__name__}: {error}".replace("\n", " "))
    if how in ("stop", "kill"):
        sys.exit(3)


def killed_inside_a_round() -> None:
    """The last rank dies at a random moment of a stream of large rounds."""
    if hvd.rank() == hvd.size() - 1:
        threading.Timer(0.15, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
    array = np.ones(4_000_000, np.float32)
    start = time.monotonic()
    try:
        while time.monotonic() < start + 30:
            allreduce(array, "g")
    except HorovodInternalError as error:
        print(f"error: {error}".replace("\n", " "), flush=True)
    assert time.monotonic() - start < 10
    os._exit(3)


def fill_arena() -> list[Any]:
    """Takes all memory of this rank's arena."""
    taken = []
    while True:
        try:
            taken.append(client().alloc(4096))
        except OutOfMemory:
            return taken


def arena_array(count: int) -> Array:
    array = np.frombuffer(client().alloc(4 * count), np.float32)
    array[:] = hvd.rank() + 1
    return array


def refused_for_want_of_room(wait: Callable[[], object]) -> None:
    with pytest.raises(EngineError, match="HVD_ARENA_BYTES") as caught:
        wait()
    print(f"error: {caught.value}".replace("\n", " "))


def no_room(name: str, warm: str) -> None:
    """The last rank has no room for the second of three operations: all hear so, the others are not affected."""
    count, first, third = 25_000, arena_array(25_000), arena_array(25_000)
    chosen = name or None
    for _ in range(int(warm)):
        allreduce(arena_array(count), chosen)
    taken = fill_arena() if hvd.rank() == hvd.size() - 1 else []
    ops = [reduce_start([first], chosen)]
    if chosen:
        ops[0].wait()
    ops.append(reduce_start([mine(count)], chosen))
    if chosen:
        refused_for_want_of_room(ops[1].wait)
    third *= 2
    ops.append(reduce_start([third], chosen))
    ops[0].wait()
    if not chosen:
        refused_for_want_of_room(ops[1].wait)
    ops[2].wait()
    assert (first == total()).all()
    assert (third == 2 * total()).all()
    del taken
    assert (allreduce(mine(count), chosen) == total()).all()


def no_room_to_publish() -> None:
    """The last rank can't publish its rows, nor stage a blocking reduction: both are refused everywhere."""
    taken = fill_arena() if hvd.rank() == hvd.size() - 1 else []
    refused_for_want_of_room(lambda: allgather(mine(25_000), "rows"))
    refused_for_want_of_room(lambda: allreduce(mine(10_000), "blocking"))
    del taken
    assert len(allgather(mine(25_000), "rows")) == 25_000 * hvd.size()
    assert (allreduce(mine(10_000), "blocking") == total()).all()


def too_large_for_the_arena() -> None:
    """No rank has room for an asynchronous operation of 4 MB in 1 MiB; a blocking one goes through in pieces."""
    refused_for_want_of_room(lambda: reduce_start([mine(1_000_000)], "large").wait())
    assert (allreduce(mine(10), "small") == total()).all()
    assert (allreduce(mine(1_000_000), "pieces") == total()).all()
    assert (allreduce(mine(10), "small") == total()).all()


def many_names(count: str) -> None:
    """A new name each step: neither the rank nor its arena grows."""

    def resident() -> int:
        gc.collect()
        with open("/proc/self/statm") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    before = 0
    for step in range(int(count)):
        allreduce(mine(1024), f"loss.{step}")
        if step == int(count) // 2:
            before = resident()
    assert resident() - before < 4 << 20, f"{before} -> {resident()}"


def stranger() -> None:
    """A subprocess that inherits the variables of its rank is told that it is none; the rank goes on."""
    program = "from horovod.common.basics import HorovodBasics; HorovodBasics().init()"
    child = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=False)
    assert child.returncode == 1
    assert "inherited" in child.stderr, child.stderr
    assert (allreduce(mine(4), "x") == total()).all()


def other_user() -> None:
    """A process of another user that knows all that a rank knows is told why it can't join; the ranks go on."""
    hvd.shutdown()
    reading, writing = os.pipe()
    child = os.fork()  # no exec: the other user may not be able to read the interpreter
    if child == 0:
        os.setgid(65534)
        os.setuid(65534)
        try:
            hvd.init()
            os.write(writing, b"it was let in")
        except ValueError as error:
            os.write(writing, str(error).encode())
        os._exit(0)
    os.close(writing)
    hvd.init()
    with open(reading) as pipe:
        print("error:", pipe.read().replace("\n", " "))
    assert os.waitpid(child, 0)[1] == 0
    assert (allreduce(mine(4), "x") == total()).all()


def different_sets() -> None:
    """Ranks that give different lists to init are told so."""
    hvd.shutdown()
    with pytest.raises(ValueError) as caught:
        hvd.init(process_sets=[ProcessSet([hvd.rank()])])
    print(f"error: {caught.value}".replace("\n", " "))
    assert not hvd.is_initialized()
    hvd.init()
    assert (allreduce(mine(4), "x") == total()).all()


def late_second_init() -> None:
    """One rank comes back long before the others have left."""
    for _ in range(3):
        if hvd.rank():
            with pytest.raises(ShutDownError):
                allreduce(mine(4), "never")
        hvd.shutdown()
        hvd.init()
    assert (allreduce(mine(4), "x") == total()).all()


def main() -> None:
    """Runs the program that the command line names."""
    program: Callable[..., None] = globals()[sys.argv[1]]
    hvd.init(process_sets="dynamic" if sys.argv[1] == "dynamic_sets" else None)
    program(*sys.argv[2:])
    hvd.shutdown()
    print("done")


if __name__ == "__main__":
    main()
