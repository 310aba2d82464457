"""What every plane must do: functions of a World, whatever plane joins its hosts.

Results are compared with the dumb twin.  Where design fixes the rounding, the bits must be equal: everything that is not a rounded
sum, what members reduce for themselves, direct exchange, which adds hosts' parts in rank order, and doubling, which adds them in a
tree.  Elsewhere, in the ring, sums of floats are compared within what one rounding per hop may cost.  All ranks always have the
same bits.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np
from horovod import native
from horovod.common.engine import OK, NativeEngine
from horovod.native import DType, ReduceOp

from tests.native.twin import FLOATS, NUMPY, OPS, combined, doubled, narrow, random_array, scale, twin, widen
from tests.planes.world import Array, World, allreduce, finish, published, submit

__all__ = [
    "DIRECT_COUNTS",
    "RING_COUNTS",
    "check_allgather",
    "check_alltoall",
    "check_barrier",
    "check_broadcast",
    "check_broadcast_of",
    "check_dtypes_and_ops",
    "check_dtypes_around",
    "check_factors",
    "check_large",
    "check_orders",
    "check_reducescatter",
    "check_sets",
    "check_sizes",
]

DIRECT_COUNTS = (1, 3, 777)
RING_COUNTS = (16_385, 70_001, 300_007)
_KINDS = [(dtype, op) for dtype in DType for op in OPS]


def expected(world: World, arrays: Sequence[Array], dtype: DType, op: ReduceOp, factors: tuple[float, float]) -> Array:
    """Of a small allreduce: one rounding on each host, and one at the end or, in a tree, whenever two parts are added."""
    pre, post = factors
    if not world.remote:
        return _on_host(arrays, dtype, op, pre, post)
    parts, at = [], 0
    for count in world.shape:
        parts.append(_on_host(arrays[at : at + count], dtype, op, pre, 1.0))
        at += count
    return doubled(dtype, op, parts, post) if world.doubles else twin(dtype, op, parts, 1.0, post)


def _on_host(arrays: Sequence[Array], dtype: DType, op: ReduceOp, pre: float, post: float) -> Array:
    """A lone rank's data are what they are, whatever a NaN among them carries."""
    return arrays[0] if len(arrays) == 1 and pre == post == 1.0 else twin(dtype, op, list(arrays), pre, post)


def around(world: World, arrays: Sequence[Array], dtype: DType, op: ReduceOp) -> Array:
    """Exact inputs give exact sums in any order."""
    with np.errstate(all="ignore"):
        total = widen(dtype, arrays[0])
        for array in arrays[1:]:
            total = combined(op, total, widen(dtype, array))
        return narrow(dtype, scale(total, 1.0))


def small_numbers(dtype: DType, count: int, generator: np.random.Generator) -> Array:
    """Numbers whose sums and products every dtype holds, whatever their order."""
    numbers = generator.integers(1, 3, count)
    if dtype == DType.BFLOAT16:
        return np.asarray((numbers.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16))
    return np.asarray(numbers.astype(NUMPY[dtype]))


def check_same(results: Sequence[Array], wanted: Array, about: object) -> None:
    """Every rank has these bits."""
    for rank, found in enumerate(results):
        assert found.tobytes() == wanted.tobytes(), (about, rank, np.flatnonzero(found != wanted)[:5])


def _reduce(
    world: World, arrays: Sequence[Array], dtype: DType, op: ReduceOp, factors: tuple[float, float]
) -> list[Array]:
    plan = world.plan(arrays[0].nbytes, dtype, op, factors)
    return world.run(plan, lambda rank, engine: allreduce(engine, plan, rank, arrays[rank], blocking=rank % 2 == 0))


def check_dtypes_and_ops(world: World, count: int = 777) -> None:
    """Every dtype and reduction, with any bits."""
    generator = np.random.default_rng(count)
    for dtype, op in _KINDS:
        arrays = [random_array(dtype, count, generator) for _ in range(world.size)]
        wanted = expected(world, arrays, dtype, op, (1.0, 1.0))
        check_same(_reduce(world, arrays, dtype, op, (1.0, 1.0)), wanted, (dtype.name, op.name))


def check_dtypes_around(world: World, count: int = 70_001) -> None:
    """Every dtype and reduction in payloads that are cut into chunks and pieces."""
    generator = np.random.default_rng(count)
    for dtype, op in _KINDS:
        arrays = [small_numbers(dtype, count, generator) for _ in range(world.size)]
        wanted = around(world, arrays, dtype, op)
        check_same(_reduce(world, arrays, dtype, op, (1.0, 1.0)), wanted, (dtype.name, op.name))


def check_sizes(world: World, counts: Sequence[int] = (*DIRECT_COUNTS, *RING_COUNTS)) -> None:
    """Sizes around what is cut into chunks and pieces, odd ones too, some rounds each."""
    generator = np.random.default_rng(1)
    for dtype in (DType.UINT8, DType.FLOAT32):
        for count in counts:
            plan = world.plan(count * native.dtype_bytes(dtype), dtype)
            for _ in range(3):
                arrays = [small_numbers(dtype, count, generator) for _ in range(world.size)]
                found = world.run(plan, lambda rank, engine: allreduce(engine, plan, rank, arrays[rank]))  # noqa: B023
                check_same(found, around(world, arrays, dtype, ReduceOp.SUM), (dtype.name, count))


def check_factors(world: World) -> None:
    """Factors apply once at each rank and once at the end; rounded sums have the same bits on all ranks."""
    generator = np.random.default_rng(2)
    for dtype in (DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32, DType.FLOAT64, DType.INT32):
        for count in (500, 50_001):
            arrays = [_in_range(dtype, count, generator) for _ in range(world.size)]
            factors = (0.5, 1.0 / world.size)
            found = _reduce(world, arrays, dtype, ReduceOp.SUM, factors)
            wanted = expected(world, arrays, dtype, ReduceOp.SUM, factors)
            if count == 500 or dtype not in FLOATS:
                check_same(found, wanted, (dtype.name, count))
            else:
                check_same(found, found[0], (dtype.name, count))
                np.testing.assert_allclose(
                    _wide(dtype, found[0]), _wide(dtype, wanted), **_tolerance(dtype, world.size)
                )


def _in_range(dtype: DType, count: int, generator: np.random.Generator) -> Array:
    numbers = generator.uniform(-100, 100, count).astype(np.float32)
    return numbers.astype(NUMPY[dtype]) if dtype != DType.BFLOAT16 else narrow(dtype, numbers)


def _wide(dtype: DType, array: Array) -> Array:
    return np.asarray(widen(dtype, array).astype(np.float64))


def _tolerance(dtype: DType, size: int) -> dict[str, float]:
    bits = {DType.FLOAT16: 11, DType.BFLOAT16: 8, DType.FLOAT32: 24, DType.FLOAT64: 53}[dtype]
    return {"rtol": 0.0, "atol": 100 * size * 2.0**-bits}


def check_large(world: World, nbytes: int = 64 << 20) -> None:
    """One large payload, twice through the same plan."""
    plan = world.plan(nbytes, DType.INT32)
    arrays = [np.arange(rank, rank + nbytes // 4, dtype=np.int32) for rank in range(world.size)]
    wanted = np.sum(arrays, axis=0, dtype=np.int32)
    for _ in range(2):
        check_same(world.run(plan, lambda rank, engine: allreduce(engine, plan, rank, arrays[rank])), wanted, nbytes)


def check_barrier(world: World, rounds: int = 20) -> None:
    """Nobody leaves before all have come."""
    plan = world.plan(0)
    lock, come = threading.Lock(), [0] * rounds
    nothing = np.empty(0, np.float32)

    def body(rank: int, engine: NativeEngine) -> list[int]:
        seen = []
        for number in range(rounds):
            with lock:
                come[number] += 1
            allreduce(engine, plan, rank, nothing)
            seen.append(come[number])
        return seen

    assert world.run(plan, body) == [[world.size] * rounds] * world.size


def check_orders(world: World, plans: int = 100) -> None:
    """Many small rounds at once, submitted in another order by each rank."""
    made = [world.plan(4 * 64, DType.INT32) for _ in range(plans)]

    def body(rank: int, engine: NativeEngine) -> list[Array]:
        order = np.random.default_rng(rank).permutation(plans)
        data = [np.full(64, number * 10 + rank, np.int32) for number in range(plans)]
        handles = [submit(engine, made[number], rank, data[number]) for number in order]
        assert [finish(engine, handle) for handle in handles] == [OK] * plans
        return data

    for data in world.run(made[0], body):
        for number, found in enumerate(data):
            assert (found == world.size * number * 10 + sum(range(world.size))).all()


# ---- pulls: what is published may be read by every member


def check_allgather(world: World) -> None:
    """Parts of different lengths, none at all among them; large ones too."""
    for unit in (1, 1000, 200_003):
        plan = world.plan(None, DType.UINT8)
        parts = [np.random.default_rng(rank).integers(0, 256, rank * unit, np.uint8) for rank in range(world.size)]

        def body(rank: int, engine: NativeEngine) -> bytes:
            handle = published(engine, plan, rank, parts[rank], [rank, -7])  # noqa: B023
            found = b""
            for member in range(world.size):
                meta, nbytes = engine.meta(handle, member)
                assert meta == (member, -7)
                out = np.empty(nbytes, np.uint8)
                assert engine.pull_copy(handle, [(member, 0, out.ctypes.data, nbytes)]) == OK
                found += out.tobytes()
            engine.done(handle)
            return found

        assert world.run(plan, body) == [b"".join(part.tobytes() for part in parts)] * world.size


def check_broadcast(world: World) -> None:
    """One member publishes, all read."""
    check_broadcast_of(world, 0, 1)
    check_broadcast_of(world, world.size - 1, 100_003)


def check_broadcast_of(world: World, root: int, count: int) -> None:
    """So many numbers from this rank."""
    plan = world.plan(None, DType.INT64)
    source, nothing = np.random.default_rng(root).integers(-9, 9, count), np.empty(0, np.int64)

    def body(rank: int, engine: NativeEngine) -> Array:
        handle = published(engine, plan, rank, source if rank == root else nothing)
        out = np.empty_like(source)
        assert engine.pull_copy(handle, [(root, 0, out.ctypes.data, out.nbytes)]) == OK
        engine.done(handle)
        return out

    check_same(world.run(plan, body), source, (root, count))


def check_alltoall(world: World) -> None:
    """Every member sends to each member another part, some of them empty."""
    plan = world.plan(None, DType.INT32)

    def part(sender: int, receiver: int) -> Array:
        return np.arange((sender * 3 + receiver) % 5 * 1000, dtype=np.int32) * 8 + sender

    def body(rank: int, engine: NativeEngine) -> Array:
        parts = [part(rank, receiver) for receiver in range(world.size)]
        handle = published(engine, plan, rank, np.concatenate(parts), [each.nbytes for each in parts])
        found = []
        for member in range(world.size):
            splits, _ = engine.meta(handle, member)
            out = np.empty(splits[rank] // 4, np.int32)
            assert engine.pull_copy(handle, [(member, sum(splits[:rank]), out.ctypes.data, out.nbytes)]) == OK
            found.append(out)
        engine.done(handle)
        return np.concatenate(found)

    for rank, found in enumerate(world.run(plan, body)):
        wanted = np.concatenate([part(sender, rank) for sender in range(world.size)])
        assert found.tobytes() == wanted.tobytes(), rank


def check_reducescatter(world: World, count: int = 131) -> None:
    """Each member reduces its own part of what all have published: exact in every dtype, with any bits."""
    generator = np.random.default_rng(3)
    for dtype, op in _KINDS:
        size, factors = native.dtype_bytes(dtype), (1.0, 1.0 / world.size if op == ReduceOp.SUM else 1.0)
        plan = world.plan(None, dtype, op, factors)
        arrays = [random_array(dtype, count * world.size, generator) for _ in range(world.size)]

        def body(rank: int, engine: NativeEngine) -> Array:
            handle = published(engine, plan, rank, arrays[rank])  # noqa: B023
            out = np.empty(count, arrays[rank].dtype)  # noqa: B023
            status = engine.pull_reduce(handle, rank * count * size, out.ctypes.data, out.nbytes)  # noqa: B023
            engine.done(handle)
            assert status == OK
            return out

        found = np.concatenate(world.run(plan, body))
        assert found.tobytes() == twin(dtype, op, arrays, *factors).tobytes(), (dtype.name, op.name)


def check_sets(world: World) -> None:
    """Sets of some ranks of some hosts, one after the other and at once."""
    sets = [members for members in ((0,), (0, world.size - 1), tuple(range(0, world.size, 2))) if len(set(members)) > 1]
    plans = [world.plan(4 * 20_000, DType.INT32, members=members) for members in sets]

    def body(rank: int, engine: NativeEngine) -> list[tuple[int, Array]]:
        mine = [number for number, plan in enumerate(plans) if rank in plan.members]
        data = [np.full(20_000, rank + 1, np.int32) for _ in mine]
        handles = [submit(engine, plans[number], rank, array) for number, array in zip(mine, data, strict=True)]
        assert [finish(engine, handle) for handle in handles] == [OK] * len(mine)
        return list(zip(mine, data, strict=True))

    everyone = world.plan(0)
    for found in world.run(everyone, body):
        for number, array in found:
            assert (array == sum(member + 1 for member in sets[number])).all()
