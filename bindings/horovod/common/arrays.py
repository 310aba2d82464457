"""Collectives over numpy arrays: what bindings of frameworks with host calls run, eagerly and inside graphs.

Inputs are only read: frameworks lend their own memory.  Outputs are new arrays, aligned so that TensorFlow takes them
over without a copy; large ones lie in the arena, where the engine works on them in place.  Every function blocks until
its collective is over; ``start_bucket`` alone returns before, and has copied its input by then.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from horovod.common.adasum import Combination, spans_hosts, start_combination
from horovod.common.array_signatures import by_dtype, make_signature, members_of, require_client
from horovod.common.calls import clean_splits, rows_of, wait_all
from horovod.common.exceptions import MismatchError
from horovod.common.types import Client, CollectiveKind, Op, PullOp, ReduceOp

__all__ = [
    "Array",
    "Bucket",
    "Factors",
    "alltoall_array",
    "barrier",
    "broadcast_arrays",
    "gather_arrays",
    "reduce_arrays",
    "scatter_arrays",
    "start_bucket",
]

Array = np.ndarray[Any, np.dtype[Any]]
Factors = tuple[float, float]

_ALIGNMENT = 64
_IN_ARENA_BYTES = 64 << 10  # smaller results are not worth a place in the arena


def _address(array: Array) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


def _aligned(shape: Sequence[int], dtype: np.dtype[Any]) -> Array:
    """A new array whose memory TensorFlow can take over."""
    nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    raw = np.empty(nbytes + _ALIGNMENT, np.uint8)
    start = -_address(raw) % _ALIGNMENT
    return raw[start : start + nbytes].view(dtype).reshape(tuple(shape))


def _in_arena(client: Client, shape: Sequence[int], dtype: np.dtype[Any]) -> Array:
    """The same in the arena; the memory goes back with the last array over it."""
    nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    whole = np.frombuffer(client.alloc(max(nbytes, 1)), np.uint8)
    return whole[:nbytes].view(dtype).reshape(tuple(shape))


def _part_name(name: str | None, part: int, dtype: np.dtype[Any]) -> str | None:
    """The first dtype of a group has the group's name, so that mixed and uniform groups meet and are told apart."""
    return name if part == 0 or name is None else f"{name}.{dtype.name}"


def _called(kind: str, name: str | None, part: int = 0) -> str | None:
    """What an unnamed operation is called: the same each time, for ranks run these calls one by one in one order.

    A count of calls would differ for ever after one rank has made one call more, as before it joins.  ``part`` tells the
    operations of one call apart.
    """
    return None if name else f"{kind}.noname.{part}" if part else f"{kind}.noname"


# ---- allreduce


def _output_of(client: Client, array: Array) -> tuple[Array, Array]:
    """Where the engine reads, and where it writes."""
    if array.nbytes < _IN_ARENA_BYTES:
        return array, _aligned(array.shape, array.dtype)
    output = _in_arena(client, array.shape, array.dtype)
    np.copyto(output, array)
    return output, output


def reduce_arrays(
    arrays: Sequence[Array], name: str | None, op: int, factors: Factors, set_id: int, group: bool = False
) -> list[Array]:
    """The reductions of all arrays, one operation for each dtype; for Adasum one for each array."""
    if op == ReduceOp.ADASUM:
        return _combine_arrays(arrays, name, factors, set_id)
    client = require_client()
    outputs: list[Any] = [None] * len(arrays)
    ops: list[Op] = []
    for part, positions in enumerate(by_dtype(arrays)):
        members = [arrays[position] for position in positions]
        dtype, shapes = members[0].dtype, tuple(array.shape for array in members)
        signature = make_signature(
            CollectiveKind.ALLREDUCE, _part_name(name, part, dtype), dtype, shapes, set_id, op, factors,
            tensor_names=None if group else (),
        )  # fmt: skip
        pairs = [_output_of(client, array) for array in members]
        buffers = [(_address(source), _address(target), source.nbytes) for source, target in pairs]
        called = _called("allreduce", name, part)
        blocking = len(members) == len(arrays)
        ops.append(client.reduce(signature, buffers, blocking=blocking, keep=(members, pairs), name=called))
        for position, (_, target) in zip(positions, pairs, strict=True):
            outputs[position] = target
    wait_all(ops)
    return outputs


def _combine_arrays(arrays: Sequence[Array], name: str | None, factors: Factors, set_id: int) -> list[Array]:
    """Adasum: a vector is combined as a whole, and none with another one that happens to be in the call."""
    client, adasum = require_client(), int(ReduceOp.ADASUM)
    outputs: list[Array] = []
    ops: list[Op | Combination] = []
    for part, array in enumerate(arrays):
        named = f"{name}.{part}" if name and part else name
        called = _called("adasum", name, part)
        if spans_hosts():
            target = _aligned(array.shape, array.dtype)
            ops.append(start_combination(array, target, named, called, factors, set_id))
        else:
            source, target = _output_of(client, array)
            signature = make_signature(
                CollectiveKind.ALLREDUCE, named, array.dtype, (array.shape,), set_id, adasum, factors
            )
            buffers = [(_address(source), _address(target), source.nbytes)]
            ops.append(client.reduce(signature, buffers, blocking=len(arrays) == 1, keep=(array, source), name=called))
        outputs.append(target)
    wait_all(ops)
    return outputs


class Bucket:
    """Gradients that are being reduced: one span of the arena."""

    __slots__ = ("_array", "_op")

    def __init__(self, op: Op | Combination, array: Array) -> None:
        self._op = op
        self._array = array

    def wait(self) -> None:
        """Returns when the gradients are reduced; raises the failure."""
        self._op.wait()

    def take(self) -> Array:
        """The reduced gradients, after ``wait``; nobody writes to this memory again before the array is gone."""
        return self._array


def start_bucket(
    arrays: Sequence[Array], name: str, tensor_names: tuple[str, ...], op: int, factors: Factors, set_id: int
) -> Bucket:
    """Copies flat arrays of one dtype, one behind the other, and starts their reduction."""
    client, dtype = require_client(), arrays[0].dtype
    count = sum(array.size for array in arrays)
    if op == ReduceOp.ADASUM and spans_hosts():
        source, output = np.concatenate([array.reshape(-1) for array in arrays]), _aligned((count,), dtype)
        return Bucket(start_combination(source, output, name, None, factors, set_id), output)
    bucket, start = _in_arena(client, (count,), dtype), 0
    for array in arrays:
        bucket[start : start + array.size] = array.reshape(-1)
        start += array.size
    signature = make_signature(
        CollectiveKind.ALLREDUCE, name, dtype, ((count,),), set_id, op, factors, tensor_names=tensor_names
    )
    address = _address(bucket)
    submitted = client.reduce(signature, [(address, address, bucket.nbytes)], blocking=False, keep=bucket)
    return Bucket(submitted, bucket)


def barrier(set_id: int) -> None:
    """Returns when all ranks of the set have called it."""
    signature = make_signature(CollectiveKind.BARRIER, "barrier", np.dtype(np.uint8), (), set_id)
    require_client().reduce(signature, (), blocking=True).wait()


# ---- allgather


def _open_shape(array: Array) -> tuple[int, ...]:
    return (-1, *array.shape[1:]) if array.ndim else ()


def _row_bytes(array: Array) -> int:
    """Bytes of one index of dimension 0, also where there is none."""
    return int(np.prod(array.shape[1:], dtype=np.int64)) * array.itemsize


def _refuse_scalars(arrays: Sequence[Array], what: str) -> None:
    """Every rank must have dimension 0; told after the round, so that all members of it are told."""
    if any(array.ndim == 0 for array in arrays):
        raise MismatchError(
            f"{what}: a tensor without dimensions can't be cut or joined along dimension 0; reshape it."
        )


def _pieces(arrays: Sequence[Array]) -> list[tuple[int, int]]:
    return [(_address(array), array.nbytes) for array in arrays]


def _read_gathered(op: PullOp, inputs: Sequence[Array], members: int) -> tuple[list[Array], list[list[int]]]:
    """The members' rows joined, array by array, and how many each member has."""
    rows = [list(op.meta(member)) for member in range(members)]
    outputs, copies, offsets = [], [], [0] * members
    for index, array in enumerate(inputs):
        output = _aligned((sum(counts[index] for counts in rows), *array.shape[1:]), array.dtype)
        address, row_bytes = _address(output), _row_bytes(array)
        for member in range(members):
            nbytes = rows[member][index] * row_bytes
            copies.append((member, offsets[member], address, nbytes))
            offsets[member] += nbytes
            address += nbytes
        outputs.append(output)
    op.copy([copy for copy in copies if copy[3]])
    return outputs, rows


def _finish(ops: Sequence[PullOp]) -> None:
    for op in ops:
        op.done()


def gather_arrays(
    arrays: Sequence[Array], name: str | None, set_id: int, group: bool = False
) -> tuple[list[Array], Array]:
    """All ranks' arrays joined along dimension 0, and the rows of each member in each array, as int64."""
    client, ops = require_client(), []
    groups = by_dtype(arrays)
    for part, positions in enumerate(groups):
        inputs = [arrays[position] for position in positions]
        dtype, shapes = inputs[0].dtype, tuple(_open_shape(array) for array in inputs)
        signature = make_signature(
            CollectiveKind.ALLGATHER, _part_name(name, part, dtype), dtype, shapes, set_id,
            tensor_names=None if group else (),
        )  # fmt: skip
        counts = [len(array) if array.ndim else 1 for array in inputs]
        called = _called("allgather", name, part)
        ops.append(client.gather(signature, _pieces(inputs), counts, keep=inputs, name=called))
    members = len(members_of(set_id))
    outputs: list[Any] = [None] * len(arrays)
    rows = np.zeros((members, len(arrays)), np.int64)
    try:
        wait_all(ops)
        _refuse_scalars(arrays, f"allgather.{name or 'noname'}")
        for op, positions in zip(ops, groups, strict=True):
            joined, counted = _read_gathered(op, [arrays[position] for position in positions], members)
            rows[:, positions] = counted
            for position, output in zip(positions, joined, strict=True):
                outputs[position] = output
    finally:
        _finish(ops)
    return outputs, rows


# ---- broadcast


def broadcast_arrays(
    arrays: Sequence[Array], root: int, name: str | None, set_id: int, tensor_names: tuple[str, ...] = ()
) -> list[Array]:
    """The root's arrays, one operation for each dtype."""
    client, ops = require_client(), []
    ranks, groups = members_of(set_id), by_dtype(arrays)
    for part, positions in enumerate(groups):
        inputs = [arrays[position] for position in positions]
        dtype, shapes = inputs[0].dtype, tuple(array.shape for array in inputs)
        signature = make_signature(
            CollectiveKind.BROADCAST, _part_name(name, part, dtype), dtype, shapes, set_id, root=root,
            tensor_names=tuple(tensor_names[position] for position in positions) if tensor_names else (),
        )  # fmt: skip
        pieces = _pieces(inputs) if client.rank == root else []
        called = _called("broadcast", name, part)
        ops.append(client.gather(signature, pieces, (), keep=inputs, name=called))
    outputs: list[Any] = [None] * len(arrays)
    try:
        wait_all(ops)
        for op, positions in zip(ops, groups, strict=True):
            copies, offset = [], 0
            for position in positions:
                outputs[position] = output = _aligned(arrays[position].shape, arrays[position].dtype)
                copies.append((ranks.index(root), offset, _address(output), output.nbytes))
                offset += output.nbytes
            op.copy([copy for copy in copies if copy[3]])
    finally:
        _finish(ops)
    return outputs


# ---- alltoall


def alltoall_array(array: Array, splits: Any, name: str | None, set_id: int) -> tuple[Array, Array]:
    """The rows that all ranks have for this one, and how many came from each, as int32."""
    client, what = require_client(), f"alltoall.{name or 'noname'}"
    ranks = members_of(set_id)
    counts = clean_splits(splits, len(array), len(ranks), what) if array.ndim else [1] * len(ranks)
    signature = make_signature(CollectiveKind.ALLTOALL, name, array.dtype, (_open_shape(array),), set_id)
    nbytes = sum(counts) * _row_bytes(array) if array.ndim else array.nbytes
    called = _called("alltoall", name)
    op = client.gather(signature, [(_address(array), nbytes)], counts, keep=array, name=called)
    try:
        op.wait()
        _refuse_scalars([array], what)
        return _read_exchanged(op, array, len(ranks), ranks.index(client.rank))
    finally:
        op.done()


def _read_exchanged(op: PullOp, array: Array, members: int, me: int) -> tuple[Array, Array]:
    """Takes from each member the rows that it has for this one."""
    splits = [op.meta(member) for member in range(members)]
    received = [counts[me] for counts in splits]
    output = _aligned((sum(received), *array.shape[1:]), array.dtype)
    address, row_bytes, copies = _address(output), _row_bytes(array), []
    for member in range(members):
        nbytes = received[member] * row_bytes
        if nbytes:
            copies.append((member, sum(splits[member][:me]) * row_bytes, address, nbytes))
        address += nbytes
    op.copy(copies)
    return output, np.asarray(received, np.int32)


# ---- reducescatter


def scatter_arrays(
    arrays: Sequence[Array], name: str | None, op: int, factors: Factors, set_id: int, group: bool = False
) -> list[Array]:
    """This rank's rows of the reductions, one operation for each dtype."""
    client, ops = require_client(), []
    groups = by_dtype(arrays)
    for part, positions in enumerate(groups):
        inputs = [arrays[position] for position in positions]
        dtype, shapes = inputs[0].dtype, tuple(array.shape for array in inputs)
        signature = make_signature(
            CollectiveKind.REDUCESCATTER, _part_name(name, part, dtype), dtype, shapes, set_id, op, factors,
            tensor_names=None if group else (),
        )  # fmt: skip
        called = _called("reducescatter", name, part)
        ops.append(client.gather(signature, _pieces(inputs), (), keep=inputs, name=called))
    ranks = members_of(set_id)
    outputs: list[Any] = [None] * len(arrays)
    try:
        wait_all(ops)
        for done, positions in zip(ops, groups, strict=True):
            _read_scattered(done, arrays, positions, outputs, len(ranks), ranks.index(client.rank))
    finally:
        _finish(ops)
    return outputs


def _read_scattered(
    op: PullOp, arrays: Sequence[Array], positions: Sequence[int], outputs: list[Any], members: int, me: int
) -> None:
    """Reduces this member's rows of each array."""
    offset = 0
    for position in positions:
        array = arrays[position]
        first, count = rows_of(len(array), members, me)
        outputs[position] = output = _aligned((count, *array.shape[1:]), array.dtype)
        if output.nbytes:
            op.reduce(offset + first * _row_bytes(array), _address(output), output.nbytes)
        offset += array.nbytes
