"""reducescatter: every rank gets its rows of the reduction; gradients flow through it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from horovod.common.arrays import Array, Factors, scatter_arrays
from horovod.common.exceptions import UsageError
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.common.types import ReduceOp
from horovod.tensorflow.bridge import HorovodAbortedError, call_host, speaks_tensorflow
from horovod.tensorflow.calls import check_reduction, clean_name, clean_set, label, to_tensor, to_tensors
from horovod.tensorflow.compression import Compression, Compressor, check_compression
from horovod.tensorflow.gather_ops import gather_tensors

__all__ = ["grouped_reducescatter", "reducescatter"]

_AVERAGE, _SUM = int(ReduceOp.AVERAGE), int(ReduceOp.SUM)


def _scatter_tensors(
    tensors: Sequence[Any], name: str | None, op: int, factors: Factors, process_set: ProcessSet, group: bool
) -> list[Any]:
    set_id = clean_set(process_set)

    def run(*arrays: Array) -> list[Array]:
        return scatter_arrays(arrays, name, op, factors, set_id, group)

    results = call_host(run, tensors, [tensor.dtype for tensor in tensors], "HorovodReducescatter")
    if not tf.executing_eagerly():
        for tensor, result in zip(tensors, results, strict=True):
            result.set_shape([None, *tensor.shape[1:]] if tensor.shape.rank else None)
    return results


def _differentiable(
    tensors: Sequence[Any], name: str | None, op: int, factors: Factors, process_set: ProcessSet, group: bool
) -> list[Any]:
    """The gradients of the parts are gathered, times the set's size for a Sum, times the factors."""
    members = (process_set.size() or 1) if op == _SUM else 1
    scale = factors[0] * factors[1] * members

    @tf.custom_gradient  # type: ignore[untyped-decorator,unused-ignore]
    def forward(*inputs: Any) -> Any:
        def backward(*grads: Any) -> list[Any]:
            dense = [tf.convert_to_tensor(grad) for grad in grads]
            named = clean_name(f"{name}.grad" if name else None, "allgather", dense[0], False)
            gathered, _ = gather_tensors(dense, named, process_set, group)
            return [grad * tf.cast(scale, grad.dtype) for grad in gathered]

        return _scatter_tensors(inputs, name, op, factors, process_set, group), backward

    return list(forward(*tensors))


def _check(tensors: Sequence[Any], op: int, what: str) -> None:
    if op not in (_AVERAGE, _SUM):
        raise HorovodAbortedError(None, None, f"{what}: only Average and Sum can be used here, not op={op!r}.")
    if any(tensor.shape.rank == 0 for tensor in tensors):
        raise UsageError(f"{what}: a tensor without dimensions can't be cut along dimension 0; reshape it.")


def _start(
    tensors: Sequence[Any],
    name: str | None,
    compression: type[Compressor],
    op: int,
    process_set: ProcessSet,
    factors: tuple[float, float],
    group: bool,
    ignore_name_scope: bool = False,
) -> list[Any]:
    what = label("reducescatter", name)
    check_compression(compression, what)
    _check(tensors, op, what)
    pairs = [compression.compress(tensor) for tensor in tensors]
    sent = [compressed for compressed, _ in pairs]
    chosen, numbers = check_reduction(op, factors, [tensor.dtype for tensor in sent], process_set, what)
    clean = clean_name(name, "reducescatter", sent[0], ignore_name_scope)
    parts = _differentiable(sent, clean, chosen, numbers, process_set, group)
    return [compression.decompress(part, context) for part, (_, context) in zip(parts, pairs, strict=True)]


@speaks_tensorflow
def reducescatter(
    tensor: Any,
    device_dense: str = "",
    compression: type[Compressor] = Compression.none,
    op: int = _AVERAGE,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """This rank's rows of the reduction over all ranks; gradients flow through it.

    Dimension 0 is cut into as many parts as there are ranks, the first ones longer by one.  Sum and Average only.
    """
    dense = to_tensor(tensor, label("reducescatter", name))
    factors = prescale_factor, postscale_factor
    return _start([dense], name, compression, op, process_set, factors, False, ignore_name_scope)[0]


@speaks_tensorflow
def grouped_reducescatter(
    tensors: Sequence[Any],
    device_dense: str = "",
    compression: type[Compressor] = Compression.none,
    op: int = _AVERAGE,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Any]:
    """Several reducescatters as one operation; gradients flow through it."""
    dense = to_tensors(tensors, label("reducescatter", None))
    if not dense:
        return []
    return _start(dense, None, compression, op, process_set, (prescale_factor, postscale_factor), True)
