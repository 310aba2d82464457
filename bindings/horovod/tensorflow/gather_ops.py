"""allgather, broadcast and alltoall; gradients flow through all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from horovod.common.array_signatures import members_of, require_client
from horovod.common.arrays import Array, alltoall_array, broadcast_arrays, gather_arrays, reduce_arrays
from horovod.common.checks import check_root
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.common.types import ReduceOp
from horovod.tensorflow.bridge import call_host, speaks_tensorflow
from horovod.tensorflow.calls import clean_name, clean_set, label, to_tensor, to_tensors

__all__ = ["allgather", "alltoall", "broadcast", "broadcast_", "gather_tensors", "grouped_allgather"]

_AVERAGE = int(ReduceOp.AVERAGE)


def _averaged(grads: Sequence[Any], process_set: ProcessSet) -> list[Any]:
    """The average of gradients over the ranks."""
    set_id = clean_set(process_set)
    dense = [tf.convert_to_tensor(grad) for grad in grads]
    name = clean_name(None, "allreduce", dense[0], False)

    def run(*arrays: Array) -> list[Array]:
        return reduce_arrays(arrays, name, _AVERAGE, (1.0, 1.0), set_id, len(arrays) > 1)

    return call_host(run, dense, [grad.dtype for grad in dense], "HorovodAllreduce")


# ---- allgather


def gather_tensors(
    tensors: Sequence[Any], name: str | None, process_set: ProcessSet, group: bool
) -> tuple[list[Any], Any]:
    """The tensors of all ranks, and how many rows each rank gave to each; without gradients."""
    set_id = clean_set(process_set)

    def run(*arrays: Array) -> list[Array]:
        outputs, rows = gather_arrays(arrays, name, set_id, group)
        return [*outputs, rows]

    *results, rows = call_host(run, tensors, [*[tensor.dtype for tensor in tensors], tf.int64], "HorovodAllgather")
    if not tf.executing_eagerly():
        for tensor, result in zip(tensors, results, strict=True):
            if tensor.shape.rank:
                result.set_shape([None, *tensor.shape[1:]])
        # How many members there are is asked for when it runs: an elastic job changes it.
        rows.set_shape([None, len(tensors)])
    return results, rows


def _differentiable(tensors: Sequence[Any], name: str | None, process_set: ProcessSet, group: bool) -> list[Any]:
    """The gradient is averaged over the ranks; each rank keeps that of its own rows."""

    @tf.custom_gradient  # type: ignore[untyped-decorator,unused-ignore]
    def forward(*inputs: Any) -> Any:
        results, rows = gather_tensors(inputs, name, process_set, group)

        def backward(*grads: Any) -> list[Any]:
            me = process_set.rank() or 0
            starts = tf.reduce_sum(rows[:me], axis=0)
            averaged = _averaged(grads, process_set)
            return [grad[starts[i] : starts[i] + rows[me, i]] for i, grad in enumerate(averaged)]

        return results, backward

    return list(forward(*tensors))


@speaks_tensorflow
def allgather(
    tensor: Any, name: str | None = None, ignore_name_scope: bool = False, process_set: ProcessSet = global_process_set
) -> Any:
    """The ranks' tensors joined along dimension 0, in the order of ranks; gradients flow through it.

    Dimension 0 may differ between ranks, the others may not.
    """
    dense = to_tensor(tensor, label("allgather", name))
    (result,) = _differentiable([dense], clean_name(name, "allgather", dense, ignore_name_scope), process_set, False)
    return result


@speaks_tensorflow
def grouped_allgather(
    tensors: Sequence[Any],
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Several allgathers as one operation; gradients flow through it."""
    dense = to_tensors(tensors, label("allgather", name))
    if not dense:
        return []
    return _differentiable(dense, clean_name(name, "allgather", dense[0], ignore_name_scope), process_set, True)


# ---- broadcast


def _broadcast_tensors(
    tensors: Sequence[Any], root: int, name: str | None, set_id: int, names: tuple[str, ...] = ()
) -> list[Any]:
    def run(*arrays: Array) -> list[Array]:
        return broadcast_arrays(arrays, root, name, set_id, names)

    results = call_host(run, tensors, [tensor.dtype for tensor in tensors], "HorovodBroadcast")
    if not tf.executing_eagerly():
        for tensor, result in zip(tensors, results, strict=True):
            result.set_shape(tensor.shape)
    return results


@speaks_tensorflow
def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """The root's values, on all ranks; gradients flow through it, to the root.  ``root_rank`` is a global rank."""
    what, set_id = label("broadcast", name), clean_set(process_set)
    dense = to_tensor(tensor, what)
    root = check_root(root_rank, members_of(set_id), what)
    clean = clean_name(name, "broadcast", dense, ignore_name_scope)

    @tf.custom_gradient  # type: ignore[untyped-decorator,unused-ignore]
    def forward(value: Any) -> Any:
        def backward(grad: Any) -> Any:
            (averaged,) = _averaged([grad], process_set)
            return averaged if require_client().rank == root else tf.zeros_like(averaged)

        return _broadcast_tensors([value], root, clean, set_id)[0], backward

    return forward(dense)


@speaks_tensorflow
def broadcast_(
    variables: Sequence[Any], root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """Copies the root's values into the variables, in one operation for each dtype; their new values.

    Variables are told apart by their positions: all ranks must give the same list.  In a session's graph the values
    depend on the assignments.
    """
    what, set_id = label("broadcast", name), clean_set(process_set)
    variables = list(variables)
    if not variables:
        return []
    root = check_root(root_rank, members_of(set_id), what)
    values = [to_tensor(variable, what) for variable in variables]
    clean = clean_name(name, "broadcast", values[0], False)
    received = _broadcast_tensors(values, root, clean, set_id)
    assigned = []
    for variable, value in zip(variables, received, strict=True):
        done = variable.assign(value)
        assigned.append(value if done is None else tf.convert_to_tensor(done))
    return assigned


# ---- alltoall


def _exchange(tensor: Any, splits: Any, name: str | None, set_id: int) -> tuple[Any, Any]:
    def run(array: Array, *counts: Array) -> list[Array]:
        return list(alltoall_array(array, counts[0] if counts else None, name, set_id))

    inputs = [tensor] if splits is None else [tensor, splits]
    output, received = call_host(run, inputs, [tensor.dtype, tf.int32], "HorovodAlltoall")
    if not tf.executing_eagerly():
        if tensor.shape.rank:
            output.set_shape([None, *tensor.shape[1:]])
        received.set_shape([len(members_of(set_id))])
    return output, received


@speaks_tensorflow
def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Sends the first splits[0] rows to rank 0, the next splits[1] to rank 1, and so on; gradients flow through it.

    With splits: the rows received and, as int32, how many came from each rank.  Without: rows are cut evenly, and only
    the rows received are returned.  Rows beyond the sum of splits are not sent.
    """
    set_id = clean_set(process_set)
    dense = to_tensor(tensor, label("alltoall", name))
    counts = None if splits is None else tf.convert_to_tensor(splits, dtype=_splits_type(splits))
    clean = clean_name(name, "alltoall", dense, ignore_name_scope)

    @tf.custom_gradient  # type: ignore[untyped-decorator,unused-ignore]
    def forward(value: Any) -> Any:
        output, received = _exchange(value, counts, clean, set_id)

        def backward(grad: Any, _received: Any = None) -> Any:
            back, _ = _exchange(tf.convert_to_tensor(grad), received, f"{clean}.grad" if clean else None, set_id)
            unsent = tf.shape(value)[0] - tf.shape(back)[0]
            return tf.concat([back, tf.zeros(tf.concat([[unsent], tf.shape(back)[1:]], 0), back.dtype)], 0)

        return (output, received), backward

    output, received = forward(dense)
    return output if splits is None else (output, received)


def _splits_type(splits: Any) -> Any:
    """Lists become int32; what has a dtype keeps it, and is refused by the exchange if it is no integer."""
    return None if hasattr(splits, "dtype") or not _is_integral(splits) else tf.int32


def _is_integral(splits: Any) -> bool:
    try:
        return bool(np.issubdtype(np.asarray(splits).dtype, np.integer) or np.asarray(splits).size == 0)
    except ValueError:
        return False
