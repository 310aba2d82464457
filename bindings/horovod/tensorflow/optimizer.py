"""DistributedOptimizer for whatever optimizer TensorFlow has: Keras's, or one for ``tf.compat.v1`` sessions."""

from __future__ import annotations

import importlib
import warnings
from typing import Any

import tensorflow as tf

from horovod.common.exceptions import UsageError
from horovod.common.gradients import kind_of
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.common.types import ReduceOp
from horovod.tensorflow.bridge import speaks_tensorflow
from horovod.tensorflow.compression import Compression, Compressor
from horovod.tensorflow.session import wrap_session_optimizer

__all__ = ["DistributedOptimizer"]


@speaks_tensorflow
def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    use_locking: bool = False,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1,
    op: int = int(ReduceOp.AVERAGE),
    gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """An optimizer whose gradients are reduced over all ranks of the set before they are clipped and applied.

    A Keras optimizer becomes a distributed one itself and is returned; a ``tf.compat.v1.train.Optimizer`` is wrapped.
    ``groups``: lists of variables, or how many lists, that are reduced together.  Raises ValueError for arguments that
    contradict each other.
    """
    if num_groups:
        warnings.warn("Parameter `num_groups` is deprecated, use `groups` instead.", DeprecationWarning, stacklevel=3)
        groups = num_groups if groups is None else groups
    if isinstance(optimizer, tf.compat.v1.train.Optimizer):
        return wrap_session_optimizer(
            optimizer, name, use_locking, compression, sparse_as_dense, backward_passes_per_step, op,
            gradient_predivide_factor, average_aggregated_gradients, groups, process_set, scale_local_gradients,
        )  # fmt: skip
    if not isinstance(optimizer, tf.keras.optimizers.Optimizer):
        raise UsageError(
            f"DistributedOptimizer wraps a Keras optimizer or a tf.compat.v1.train.Optimizer, not {kind_of(optimizer)}."
        )
    # Loaded late: Keras is not needed by who only reduces tensors.
    return importlib.import_module("horovod._keras.values").wrap(
        optimizer, compression, sparse_as_dense, gradient_predivide_factor, op, backward_passes_per_step,
        average_aggregated_gradients, groups, process_set, scale_local_gradients,
    )  # fmt: skip
