"""Collectives over arrays of jax, for Keras on that backend: on the host, outside of jitted functions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from horovod.common.array_signatures import members_of
from horovod.common.arrays import Array, broadcast_arrays, gather_arrays, reduce_arrays, scatter_arrays
from horovod.common.basics import HorovodBasics
from horovod.common.checks import check_factor, check_op, check_root
from horovod.common.exceptions import UsageError
from horovod.common.types import ReduceOp
from horovod.common.util import get_average_backwards_compatibility_fun

__all__ = [
    "BF16Compressor",
    "Compression",
    "FP16Compressor",
    "NoneCompressor",
    "allgather",
    "allreduce",
    "broadcast",
    "reducescatter",
]

_handle_average = get_average_backwards_compatibility_fun(HorovodBasics)


class NoneCompressor:
    """Sends arrays as they are."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """The same array."""
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """The same array."""
        return tensor


class _CastCompressor:
    """Sends wider floats as ``kind``."""

    kind: Any

    @classmethod
    def compress(cls, tensor: Any) -> tuple[Any, Any]:
        """The array in the smaller dtype; integers and floats that are no wider pass as they are."""
        wide = jax.numpy.issubdtype(tensor.dtype, jax.numpy.floating) and tensor.dtype.itemsize > 2
        return (tensor.astype(cls.kind), tensor.dtype) if wide else (tensor, None)

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """The array in the dtype that it had."""
        return tensor if ctx is None else tensor.astype(ctx)


class FP16Compressor(_CastCompressor):
    """Sends fp32 and fp64 as fp16; values beyond 65504 become inf."""

    kind = jax.numpy.float16


class BF16Compressor(_CastCompressor):
    """Sends fp32 and fp64 as bf16: less precise than fp16, never out of range."""

    kind = jax.numpy.bfloat16


class Compression:
    """The compressors to choose from."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor


def _array(tensor: Any, what: str) -> Array:
    if isinstance(tensor, jax.core.Tracer):
        raise UsageError(f"{what}: call it outside of jitted functions; inside of them only the optimizer reduces.")
    return np.asarray(tensor, order="C")


def _taken(array: Array) -> Any:
    """An array of jax with memory of its own."""
    return jax.numpy.array(array)


def allreduce(
    tensor: Any,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    compression: Any = Compression.none,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """The reduction over all ranks; ``op`` is Average unless given."""
    what = f"allreduce.{name or 'noname'}"
    chosen = check_op(_handle_average(op, average), what)
    factors = check_factor(prescale_factor, what), check_factor(postscale_factor, what)
    sent, context = compression.compress(tensor)
    array = _array(sent, what)
    if array.dtype == np.bool_ and chosen == ReduceOp.AVERAGE:
        raise UsageError(f"{what}: booleans have no average; use op=Sum.")
    (result,) = reduce_arrays([array], name, chosen, factors, 0)
    return compression.decompress(_taken(result), context)


def allgather(tensor: Any, name: str | None = None) -> Any:
    """The arrays of all ranks, joined along dimension 0."""
    (result,), _ = gather_arrays([_array(tensor, "allgather")], name, 0)
    return _taken(result)


def broadcast(tensor: Any, root_rank: int, name: str | None = None) -> Any:
    """The root's array, on all ranks."""
    root = check_root(root_rank, members_of(0), "broadcast")
    (result,) = broadcast_arrays([_array(tensor, "broadcast")], root, name, 0)
    return _taken(result)


def reducescatter(tensor: Any, name: str | None = None, op: int = int(ReduceOp.AVERAGE)) -> Any:
    """This rank's rows of the reduction over all ranks; Average and Sum only."""
    if op not in (ReduceOp.AVERAGE, ReduceOp.SUM):
        raise UsageError(f"reducescatter: only Average and Sum can be used here, not op={op!r}.")
    array = _array(tensor, "reducescatter")
    if array.ndim == 0:
        raise UsageError("reducescatter: an array without dimensions can't be cut along dimension 0; reshape it.")
    (result,) = scatter_arrays([array], name, op, (1.0, 1.0), 0)
    return _taken(result)


if not TYPE_CHECKING:  # checkers find what is missing themselves

    def __getattr__(name: str) -> object:
        if name in ("elastic", "broadcast_object", "rank"):  # what elastic states ask a binding for
            raise UsageError(
                "Elastic training is not supported with Keras on the jax backend: set KERAS_BACKEND to tensorflow or torch "
                "before keras is imported."
            )
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)
