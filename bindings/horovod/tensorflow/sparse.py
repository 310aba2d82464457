"""IndexedSlices of several ranks: added up here by index, then gathered, all of a list in one operation.

A row that a batch has a thousand times travels once.  The result has each rank's rows behind each other, so an index
appears at most once for each rank; as a dense tensor it is the sum, or the average.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from horovod.common.process_sets import ProcessSet
from horovod.common.types import ReduceOp
from horovod.tensorflow.gather_ops import gather_tensors

__all__ = ["check_sparse", "reduce_slices"]


def check_sparse(op: int, factors: tuple[float, float], what: str) -> None:
    """NotImplementedError for what can't be done by gathering."""
    if op not in (ReduceOp.AVERAGE, ReduceOp.SUM):
        raise NotImplementedError(f"{what}: IndexedSlices can only be reduced with Sum and Average, not op={op!r}.")
    if factors != (1.0, 1.0):
        raise NotImplementedError(f"{what}: IndexedSlices can't be scaled with prescale_factor and postscale_factor.")


def _added_up(slices: Any) -> tuple[Any, Any]:
    """Values and indices, each index once."""
    indices, place = tf.unique(slices.indices)
    return tf.math.unsorted_segment_sum(slices.values, place, tf.size(indices)), indices


def _over(values: Any, count: Any) -> Any:
    """The values divided by a whole number, in their own dtype; integers are cut as in every average."""
    if values.dtype.is_floating:
        return values / tf.cast(count, values.dtype)
    return tf.cast(tf.cast(values, tf.float64) / tf.cast(count, tf.float64), values.dtype)


def reduce_slices(
    several: Sequence[Any], name: str | None, op: int, process_set: ProcessSet, compression: Any
) -> list[Any]:
    """All ranks' rows of each of these IndexedSlices; for Average their values are divided by the set's size."""
    sent: list[Any] = []
    contexts = []
    for slices in several:
        values, indices = _added_up(slices)
        compressed, context = compression.compress(values)
        contexts.append(context)
        sent.extend((compressed, indices))
    gathered, rows = gather_tensors(sent, name, process_set, True)
    results = []
    for slices, context, values, indices in zip(several, contexts, gathered[::2], gathered[1::2], strict=True):
        whole = compression.decompress(values, context)
        if op == ReduceOp.AVERAGE:
            whole = _over(whole, tf.shape(rows)[0])
        shape = slices.dense_shape
        results.append(tf.IndexedSlices(whole, indices, None if shape is None else tf.convert_to_tensor(shape)))
    return results
