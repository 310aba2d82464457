"""Which TensorFlow dtypes the engine knows, and under which numbers."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from horovod.common.exceptions import UsageError

__all__ = ["engine_dtype", "is_floating"]

_NUMBERS: dict[Any, int] = {
    tf.uint8: 0,
    tf.int8: 1,
    tf.uint16: 2,
    tf.int16: 3,
    tf.int32: 4,
    tf.int64: 5,
    tf.float16: 6,
    tf.float32: 7,
    tf.float64: 8,
    tf.bool: 9,
    tf.bfloat16: 10,
}


def engine_dtype(dtype: Any, what: str) -> int:
    """The engine's number for a dtype; UsageError names those that can be used."""
    number = _NUMBERS.get(tf.as_dtype(dtype))
    if number is None:
        known = ", ".join(entry.name for entry in _NUMBERS)
        sent = tf.as_dtype(dtype).name
        raise UsageError(f"{what}: tensors of {sent} can't be sent; cast them first. Known dtypes: {known}.")
    return number


def is_floating(dtype: Any) -> bool:
    """Whether values of this dtype can be scaled without truncation."""
    return bool(tf.as_dtype(dtype).is_floating)
