"""Programs that the ranks of the client's tests run: numpy buffers, no framework, every result checked."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from horovod.common.basics import HorovodBasics, client
from horovod.common.exceptions import DuplicateNameError, HorovodInternalError, MismatchError, ShutDownError
from horovod.common.types import CollectiveKind, Op, ReduceOp, Signature

hvd = HorovodBasics()
DTYPES = {"float32": 7, "float64": 8, "int32": 4, "int64": 5, "uint8": 0}
Array = np.ndarray
_signatures: dict[object, Signature] = {}


def reduce_start(
    arrays: Sequence[Array], name: str | None, op: int = ReduceOp.SUM, set_id: int = 0, blocking: bool = False
) -> Op:
    """Reduces in place."""
    key = (name, arrays[0].dtype, tuple(array.shape for array in arrays), op, set_id)
    signature = _signatures.get(key)
    if signature is None:
        signature = _signatures[key] = Signature(
            CollectiveKind.ALLREDUCE, f"allreduce.{name or 'noname'}", name is None, DTYPES[arrays[0].dtype.name],
            key[2], op=op, process_set=set_id,
        )  # fmt: skip
    buffers = [(array.ctypes.data, array.ctypes.data, array.nbytes) for array in arrays]
    return client().reduce(signature, buffers, blocking=blocking, keep=arrays)


def allreduce(array: Array, name: str | None = None, op: int = ReduceOp.SUM, set_id: int = 0) -> Array:
    reduce_start([array], name, op, set_id, blocking=True)
    return array


def mine(shape: int | tuple[int, ...], dtype: type = np.float32) -> Array:
    return np.full(shape, hvd.rank() + 1, dtype)


def total() -> int:
    return hvd.size() * (hvd.size() + 1) // 2


def barrier() -> None:
    client().reduce(Signature(CollectiveKind.BARRIER, "barrier", False, 0, ()), [], blocking=True)


def allgather(array: Array, name: str = "x") -> Array:
    signature = Signature(CollectiveKind.ALLGATHER, f"allgather.{name}", False, DTYPES[array.dtype.name], ((-1,),))
    op = client().gather(signature, [(array.ctypes.data, array.nbytes)], (len(array),))
    op.wait()
    lengths = [op.meta(member)[0] for member in range(hvd.size())]
    result = np.empty(sum(lengths), array.dtype)
    copies, position = [], result.ctypes.data
    for member in range(hvd.size()):
        copies.append((member, 0, position, op.data_bytes(member)))
        position += op.data_bytes(member)
    op.copy(copies)
    op.done()
    return result


def collectives() -> None:
    """Everything once, small and large, in place of each other."""
    for count in (0, 1, 17, 1000, 100_000, 2_000_000):
        for _ in range(3):
            assert (allreduce(mine(count), f"s{count}") == total()).all()
    assert np.allclose(allreduce(mine(5), "avg", ReduceOp.AVERAGE), total() / hvd.size())
    assert (allreduce(mine(5, np.int64), "max", ReduceOp.MAX) == hvd.size()).all()
    group = [mine(n) for n in (1, 3, 100, 0, 7)]
    reduce_start(group, "group").wait()
    assert all((array == total()).all() for array in group)
    everybody = [float(rank) for rank in range(hvd.size()) for _ in range(rank)]
    for _ in range(4):
        assert allgather(np.full(hvd.rank(), hvd.rank(), np.float32)).tolist() == everybody
        barrier()
    memory = np.frombuffer(client().alloc(1 << 20), np.float32)
    memory[:] = hvd.rank() + 1
    assert (allreduce(memory, "arena") == total()).all()


def unnamed() -> None:
    """Hundreds of unnamed operations open at once, on one announcement."""
    for _ in range(3):
        arrays = [mine(100) for _ in range(300)]
        for op in [reduce_start([array], None) for array in arrays]:
            op.wait()
        assert all((array == total()).all() for array in arrays)


def any_order() -> None:
    """Ranks submit the same names in different orders, several threads at a time."""
    names = [f"n{i}" for i in range(24)]
    if hvd.rank() % 2:
        names.reverse()
    failures: list[Exception] = []

    def work(part: Sequence[str]) -> None:
        try:
            for _ in range(20):
                arrays = [mine(64) for _ in part]
                started = [reduce_start([array], name) for array, name in zip(arrays, part, strict=True)]
                for op in started:
                    op.wait()
                assert all((array == total()).all() for array in arrays)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(names[i::4],)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures


def contests() -> None:
    """A name whose shape changes on all ranks, back and forth; and one that differs."""
    for count in (64, 64, 33, 64, 64, 1):
        assert (allreduce(mine(count), "batch") == total()).all()
    for _ in range(3):
        with pytest.raises(MismatchError):
            allreduce(mine(hvd.rank() + 1), "differs")
    assert (allreduce(mine(4), "batch") == total()).all()


def duplicates() -> None:
    first = mine(4)
    if hvd.rank() == 0:
        op = reduce_start([first], "twice")
        for _ in range(2):
            with pytest.raises(DuplicateNameError, match=r"allreduce\.twice"):
                allreduce(mine(4), "twice")
        barrier()
        op.wait()
    else:
        barrier()
        allreduce(first, "twice")
    assert (first == total()).all()
    assert (allreduce(mine(4), "twice") == total()).all()


def growth() -> tuple[int, int, int]:
    gc.collect()
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return len(os.listdir("/proc/self/fd")), threading.active_count(), resident


def cycles(count: int = 500) -> None:
    """init, a collective and shutdown, again and again: descriptors, threads and memory stay; each is quick."""
    times = []
    hvd.shutdown()
    before = growth()
    for cycle in range(count):
        start = time.perf_counter()
        hvd.init()
        assert (allreduce(mine(1000), "x") == total()).all()
        assert (allreduce(mine(1000)) == total()).all()
        hvd.shutdown()
        times.append(time.perf_counter() - start)
        if cycle == count // 2:
            before = growth()
    after = growth()
    assert (before[0], before[1]) == (after[0], after[1]), f"descriptors and threads: {before} -> {after}"
    assert after[2] - before[2] < 8 << 20, f"resident memory: {before[2]} -> {after[2]}"
    assert sorted(times)[count // 2] < 0.1, f"a cycle takes {sorted(times)[count // 2]} s"
    hvd.init()


def many_cycles() -> None:
    cycles(5000)


def skewed_shutdown() -> None:
    """One rank shuts down while the others wait for it: an error, at once; then everybody comes back."""
    if hvd.rank() == 0:
        barrier()
        hvd.shutdown()
    else:
        op = reduce_start([mine(4)], "never")
        barrier()
        for attempt in (op.wait, lambda: allreduce(mine(4), "later")):
            with pytest.raises(ShutDownError, match="rank 0"):
                attempt()
        hvd.shutdown()
    hvd.init()
    assert (allreduce(mine(4), "again") == total()).all()


def shutdown_beside_a_waiting_thread() -> None:
    outcomes: list[Exception] = []
    waiting = threading.Event()

    def wait_for_ever() -> None:
        try:
            op = reduce_start([mine(4)], f"only rank {hvd.rank()}")
            waiting.set()
            op.wait()
        except (HorovodInternalError, ValueError) as error:
            outcomes.append(error)
            waiting.set()

    thread = threading.Thread(target=wait_for_ever)
    thread.start()
    waiting.wait()
    start = time.perf_counter()
    hvd.shutdown()
    thread.join()
    assert len(outcomes) == 1
    assert time.perf_counter() - start < 2


def _child_report(open_op: Op) -> str:
    def attempt(call: Callable[[], object]) -> str:
        try:
            call()
        except Exception as error:
            return "" if "forked from rank" in str(error) else f"{type(error).__name__}: {error}"
        return "no error"

    calls = (hvd.rank, hvd.init, lambda: allreduce(mine(1), "child"), open_op.wait)
    wrong = [text for text in map(attempt, calls) if text]
    links = [str(entry.readlink()) for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink()]
    wrong += [link for link in links if "socket" in link or "memfd" in link or "pidfd" in link]
    hvd.shutdown()
    return repr(wrong)


def fork() -> None:
    """A child can't do harm: no descriptors, clear errors, and its exit does not end the parent's epoch."""
    memory = np.frombuffer(client().alloc(4096), np.float32)
    memory[:] = hvd.rank() + 1
    allreduce(memory, "arena")
    op = reduce_start([mine(4)], "open")
    expected = total()
    for _ in range(3):
        read_end, write_end = os.pipe()
        child = os.fork()
        if child == 0:
            report = _child_report(op)
            if (memory != expected).any():
                report += " memory differs"
            os.write(write_end, report.encode())
            sys.exit(0)
        os.close(write_end)
        report = os.read(read_end, 10_000).decode()
        os.close(read_end)
        assert os.waitpid(child, 0)[1] == 0
        assert report == "[]", report
        for _ in range(10):
            assert (allreduce(mine(4), "parent") == total()).all()
    op.wait()


def interrupt() -> None:
    """Ctrl-C ends a wait at once; the interrupted operation goes on and can be waited for again."""
    array = mine(4)
    if hvd.rank() == 0:
        op = reduce_start([array], "slow")
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        start = time.perf_counter()
        with pytest.raises(KeyboardInterrupt):
            op.wait()
        assert time.perf_counter() - start < 2
        barrier()
        op.wait()
    else:
        barrier()
        allreduce(array, "slow")
    assert (array == total()).all()


def trims() -> None:
    """Staging memory goes back to the system when it was not needed for a while; what lives in the arena stays."""

    def arena_bytes() -> int:
        return os.fstat(client()._process.arena.fd).st_blocks * 512  # type: ignore[attr-defined]

    kept = np.frombuffer(client().alloc(4 << 20), np.float32)
    kept[:] = 7
    for _ in range(2):
        reduce_start([mine(8 << 20)], "large").wait()
    assert arena_bytes() > 32 << 20
    client().idle()  # type: ignore[attr-defined]
    assert arena_bytes() > 32 << 20, "memory that may be needed again was given back"
    for _ in range(3):
        reduce_start([kept], "in the arena").wait()
    barrier()
    client().idle()  # type: ignore[attr-defined]
    assert arena_bytes() < 8 << 20, arena_bytes()
    assert (kept == 7 * hvd.size() ** 3).all()
    assert (allreduce(mine(8 << 20), "large") == total()).all()


def names() -> None:
    """A new name each step: the tables stay as small as the agent keeps them."""
    for step in range(300):
        assert (allreduce(mine(16), f"loss.{step}") == total()).all()


if __name__ == "__main__":
    affinity = os.sched_getaffinity(0)
    hvd.init()
    assert os.sched_getaffinity(0) == affinity
    assert threading.active_count() == 2
    assert not [module for module in sys.modules if module.startswith("grpc")]
    globals()[sys.argv[1]]()
    hvd.shutdown()
    assert threading.active_count() == 1
    print("done")
