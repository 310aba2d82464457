"""Batch normalization by the statistics of all ranks' batches joined.

Two sums travel in each forward pass: of the inputs with their count, then of the squared distances from the mean that
all ranks have by then (a difference of large squares would lose digits).  Batches may differ in size, and be empty.
Several layers follow in program order; nothing is named.
"""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from horovod.common.array_signatures import require_client
from horovod.common.exceptions import UsageError
from horovod.common.types import ReduceOp
from horovod.tensorflow.reduce_ops import allreduce

__all__ = ["SyncBatchNormalization"]

_SUM = int(ReduceOp.SUM)


@keras.saving.register_keras_serializable(package="horovod")  # type: ignore[untyped-decorator,unused-ignore]
class SyncBatchNormalization(keras.layers.BatchNormalization):  # type: ignore[misc]
    """keras.layers.BatchNormalization over the global batch; ValueError for ``fused=True`` or None.

    Gradients of gamma and beta stay local, as those of other weights: the optimizer averages them.
    """

    def __init__(self, fused: bool | None = False, **kwargs: Any) -> None:
        if fused in (True, None):
            raise UsageError("SyncBatchNormalization does not support fused=True.")
        super().__init__(**kwargs)

    def _moments(self, inputs: Any, mask: Any) -> tuple[Any, Any]:
        if require_client().size == 1:
            return super()._moments(inputs, mask)  # type: ignore[no-any-return]
        axes = list(self._reduction_axes)
        weights = (
            tf.ones_like(inputs) if mask is None else tf.ones_like(inputs) * tf.cast(mask, inputs.dtype)[..., None]
        )
        channels = inputs.shape[self.axis]
        counts = tf.reduce_sum(weights, axes)
        sums = allreduce(tf.concat([tf.reduce_sum(inputs * weights, axes), tf.stop_gradient(counts)], 0), op=_SUM)
        total, count = sums[:channels], tf.maximum(tf.stop_gradient(sums[channels:]), 1.0)
        mean = total / count
        shape = [1] * len(inputs.shape)
        shape[self.axis] = channels
        distances = (inputs - tf.reshape(mean, shape)) * weights
        return mean, allreduce(tf.reduce_sum(distances * distances, axes), op=_SUM) / count
