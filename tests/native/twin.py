"""The dumb twin of the reduction kernels: NumPy, with the rounding that hvd.h promises."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from horovod import native
from horovod.native import DType, ReduceOp

__all__ = ["FLOATS", "NUMPY", "OPS", "Array", "combined", "doubled", "narrow", "random_array", "scale", "twin", "widen"]

Array = npt.NDArray[Any]

NUMPY = {
    DType.UINT8: np.uint8,
    DType.INT8: np.int8,
    DType.UINT16: np.uint16,
    DType.INT16: np.int16,
    DType.INT32: np.int32,
    DType.INT64: np.int64,
    DType.FLOAT16: np.float16,
    DType.FLOAT32: np.float32,
    DType.FLOAT64: np.float64,
    DType.BOOL: np.bool_,
    DType.BFLOAT16: np.uint16,  # as bits
}
OPS = [ReduceOp.SUM, ReduceOp.MIN, ReduceOp.MAX, ReduceOp.PRODUCT]
FLOATS = {DType.FLOAT16, DType.FLOAT32, DType.FLOAT64, DType.BFLOAT16}


def widen(dtype: DType, array: Array) -> Array:
    if dtype == DType.BFLOAT16:
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float32) if dtype == DType.FLOAT16 else array


def narrow(dtype: DType, array: Array) -> Array:
    """Rounded once to nearest even; NaN is the quiet one without payload."""
    if dtype in FLOATS:
        array = np.where(np.isnan(array), np.array(np.nan, array.dtype), array)
    if dtype == DType.FLOAT16:
        return array.astype(np.float16)
    if dtype == DType.BFLOAT16:
        bits = array.view(np.uint32).astype(np.uint64)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return array


def scale(array: Array, factor: float) -> Array:
    if factor == 1.0 or array.dtype == np.bool_:
        return array
    if np.issubdtype(array.dtype, np.floating):
        scaled: Array = array * array.dtype.type(factor)
        return scaled
    limits = np.iinfo(array.dtype)
    exact = [int(x) for x in np.trunc(array.astype(np.float64) * factor)]
    return np.array([min(max(x, limits.min), limits.max) for x in exact], array.dtype)


def smaller(a: Array, b: Array) -> Array:
    return np.asarray(np.where((a < b) | (a != a), a, b))


def larger(a: Array, b: Array) -> Array:
    return np.asarray(np.where((a > b) | (a != a), a, b))


def combined(op: ReduceOp, a: Array, b: Array) -> Array:
    if op == ReduceOp.MIN:
        return smaller(a, b)
    if op == ReduceOp.MAX:
        return larger(a, b)
    if a.dtype == np.bool_:
        return a | b if op == ReduceOp.SUM else a & b
    return np.asarray(a + b if op == ReduceOp.SUM else a * b)


def twin(dtype: DType, op: ReduceOp, arrays: list[Array], pre: float = 1.0, post: float = 1.0) -> Array:
    with np.errstate(all="ignore"):
        total = scale(widen(dtype, arrays[0]), pre)
        for array in arrays[1:]:
            total = combined(op, total, scale(widen(dtype, array), pre))
        return narrow(dtype, scale(total, post))


def doubled(dtype: DType, op: ReduceOp, parts: list[Array], post: float = 1.0) -> Array:
    """What hosts have after recursive doubling: two and two are added, rounded each time, until one part is left.

    The first ones are added alone until as many as a power of two are left.
    """
    left, power = list(parts), 1 << (len(parts).bit_length() - 1)
    for at in range(len(parts) - power):
        left[at : at + 2] = [twin(dtype, op, left[at : at + 2])]
    while len(left) > 1:
        factor = post if len(left) == 2 else 1.0
        left = [twin(dtype, op, left[at : at + 2], 1.0, factor) for at in range(0, len(left), 2)]
    return left[0]


def random_array(dtype: DType, count: int, generator: np.random.Generator) -> Array:
    """Every bit pattern may occur."""
    raw = generator.integers(0, 256, count * native.dtype_bytes(dtype), dtype=np.uint8)
    return np.asarray(raw % 2 == 1) if dtype == DType.BOOL else raw.view(NUMPY[dtype]).copy()
