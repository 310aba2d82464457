"""allreduce of tensors, variables and IndexedSlices, alone and in groups; gradients flow through all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from horovod.common.arrays import Array, Factors, reduce_arrays
from horovod.common.basics import HorovodBasics
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.common.util import get_average_backwards_compatibility_fun
from horovod.tensorflow.bridge import call_host, speaks_tensorflow
from horovod.tensorflow.calls import (
    check_reduction,
    clean_name,
    clean_set,
    is_sparse,
    label,
    to_tensor,
    to_tensors,
)
from horovod.tensorflow.compression import Compression, Compressor, check_compression
from horovod.tensorflow.sparse import check_sparse, reduce_slices

__all__ = ["allreduce", "grouped_allreduce", "handle_average_backwards_compatibility", "reduce_tensors"]

handle_average_backwards_compatibility = get_average_backwards_compatibility_fun(HorovodBasics)


def reduce_tensors(
    tensors: Sequence[Any], name: str | None, op: int, factors: Factors, process_set: ProcessSet, group: bool
) -> list[Any]:
    """The reductions, without gradients and checks."""
    set_id = clean_set(process_set)

    def run(*arrays: Array) -> list[Array]:
        return reduce_arrays(arrays, name, op, factors, set_id, group)

    results = call_host(run, tensors, [tensor.dtype for tensor in tensors], "HorovodAllreduce")
    for tensor, result in zip(tensors, results, strict=True):
        if not tf.executing_eagerly():
            result.set_shape(tensor.shape)
    return results


def _differentiable(
    tensors: Sequence[Any], name: str | None, op: int, factors: Factors, process_set: ProcessSet, group: bool
) -> list[Any]:
    """The gradient of an allreduce is the same allreduce of the gradients."""

    @tf.custom_gradient  # type: ignore[untyped-decorator,unused-ignore]
    def forward(*inputs: Any) -> Any:
        def backward(*grads: Any) -> list[Any]:
            dense = [tf.convert_to_tensor(grad) for grad in grads]
            named = clean_name(f"{name}.grad" if name else None, "allreduce", dense[0], False)
            return reduce_tensors(dense, named, op, factors, process_set, group)

        return reduce_tensors(inputs, name, op, factors, process_set, group), backward

    return list(forward(*tensors))


@speaks_tensorflow
def allreduce(
    tensor: Any,
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
) -> Any:
    """The reduction of a tensor, variable or IndexedSlices over all ranks of the set; gradients flow through it.

    ``op`` is Average unless given.  IndexedSlices are gathered: the result has all ranks' rows (Sum and Average only).
    Devices are accepted and not used.  Raises FailedPreconditionError when ranks disagree, InvalidArgumentError when
    this call is wrong, UnknownError when a rank is lost.
    """
    chosen = handle_average_backwards_compatibility(op, average)
    what = label("allreduce", name)
    check_compression(compression, what)
    if is_sparse(tensor):
        given = (prescale_factor, postscale_factor)
        return _reduce_sparse([tensor], name, chosen, given, process_set, compression, ignore_name_scope)[0]
    compressed, context = compression.compress(to_tensor(tensor, what))
    factors = prescale_factor, postscale_factor
    chosen, factors = check_reduction(chosen, factors, [compressed.dtype], process_set, what)
    clean = clean_name(name, "allreduce", compressed, ignore_name_scope)
    (reduced,) = _differentiable([compressed], clean, chosen, factors, process_set, False)
    return compression.decompress(reduced, context)


def _reduce_sparse(
    several: Sequence[Any],
    name: str | None,
    op: int,
    factors: tuple[float, float],
    process_set: ProcessSet,
    compression: Any,
    ignore_name_scope: bool,
) -> list[Any]:
    """All ranks' rows, one behind the other; for Average their values are divided by the set's size."""
    what = label("allreduce", name)
    check_sparse(op, factors, what)
    for slices in several:
        to_tensors([slices.values, slices.indices], what)
    clean = clean_name(name and f"{name}.sparse", "allgather", several[0].values, ignore_name_scope)
    return reduce_slices(several, clean, op, process_set, compression)


@speaks_tensorflow
def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    name: str | None = None,
) -> list[Any]:
    """The reductions of all tensors as one operation; gradients flow through it.  IndexedSlices go their own way."""
    chosen = handle_average_backwards_compatibility(op, average)
    what, factors = label("allreduce", name), (prescale_factor, postscale_factor)
    check_compression(compression, what)
    if not isinstance(tensors, (list, tuple)):
        to_tensors(tensors, what)
    results: list[Any] = list(tensors)
    sparse = [index for index, tensor in enumerate(results) if is_sparse(tensor)]
    if sparse:
        slices = [results[index] for index in sparse]
        reduced = _reduce_sparse(slices, name, chosen, factors, process_set, compression, ignore_name_scope)
        for index, tensor in zip(sparse, reduced, strict=True):
            results[index] = tensor
    dense = [index for index, tensor in enumerate(tensors) if not is_sparse(tensor)]
    if dense:
        pairs = [compression.compress(tensor) for tensor in to_tensors([tensors[i] for i in dense], what)]
        sent = [compressed for compressed, _ in pairs]
        chosen, factors = check_reduction(chosen, factors, [tensor.dtype for tensor in sent], process_set, what)
        clean = clean_name(name, "allreduce", sent[0], ignore_name_scope)
        reduced = _differentiable(sent, clean, chosen, factors, process_set, True)
        for index, tensor, (_, context) in zip(dense, reduced, pairs, strict=True):
            results[index] = compression.decompress(tensor, context)
    return results
