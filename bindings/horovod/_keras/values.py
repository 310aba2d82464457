"""Collectives on single values, broadcast of models' state, wrapped optimizers and loaded models, on any backend."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import keras
import numpy as np

from horovod._keras.backends import array_of, backend_name, binding
from horovod._keras.optimizer import OptimizerSettings, distribute, is_distributed, let_keras_accumulate
from horovod.common.array_signatures import members_of
from horovod.common.arrays import broadcast_arrays
from horovod.common.calls import set_id_of
from horovod.common.checks import check_root
from horovod.common.exceptions import UsageError
from horovod.common.gradients import check_groups, check_passes, make_settings, plain_name
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.common.types import ReduceOp

__all__ = [
    "allgather",
    "allreduce",
    "broadcast",
    "broadcast_global_variables",
    "broadcast_state",
    "choose_groups",
    "load_model",
    "reducescatter",
    "register_local_layers",
    "wrap",
]

_AVERAGE, _SUM = int(ReduceOp.AVERAGE), int(ReduceOp.SUM)


def _tensor(value: Any) -> Any:
    """What was given as a tensor of the backend, where the arithmetic is done."""
    return keras.ops.convert_to_tensor(value if keras.ops.is_tensor(value) else np.asarray(value))


def allreduce(
    value: Any,
    name: str | None = None,
    average: bool | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: int | None = None,
    compression: Any = None,
) -> Any:
    """The reduction of a number, array or tensor over all ranks; ``op`` is Average unless given."""
    hvd = binding()
    return hvd.allreduce(
        _tensor(value),
        average=average,
        name=name,
        op=op,
        compression=compression or hvd.Compression.none,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
    )


def allgather(value: Any, name: str | None = None) -> Any:
    """The values of all ranks, joined along dimension 0."""
    return binding().allgather(_tensor(value), name=name)


def broadcast(value: Any, root_rank: int, name: str | None = None) -> Any:
    """The root's value, on all ranks."""
    return binding().broadcast(_tensor(value), root_rank, name=name)


def reducescatter(value: Any, name: str | None = None, op: int = _AVERAGE) -> Any:
    """This rank's rows of the reduction over all ranks."""
    return binding().reducescatter(_tensor(value), name=name, op=op)


def broadcast_global_variables(root_rank: int) -> Any:
    """For graphs of tf.compat.v1 sessions only; RuntimeError elsewhere, with what to use instead."""
    if backend_name() == "tensorflow":
        return binding().broadcast_global_variables(root_rank)
    raise RuntimeError(
        "There are no global variables on this backend: use hvd.callbacks.BroadcastGlobalVariablesCallback(root_rank)."
    )


def broadcast_state(
    variables: Iterable[Any], root: int, name: str, process_set: ProcessSet = global_process_set
) -> None:
    """Copies the root's values into Keras variables, on all ranks; the lists must be alike."""
    listed = list(variables)
    set_id = set_id_of(process_set)
    root = check_root(root, members_of(set_id), name)
    if not listed:
        return
    arrays = [np.ascontiguousarray(array_of(v)).reshape(tuple(v.shape)) for v in listed]
    names = tuple(plain_name(str(getattr(variable, "path", variable.name))) for variable in listed)
    received = broadcast_arrays(arrays, root, name, set_id, names)
    for variable, value in zip(listed, received, strict=True):
        variable.assign(value)


# ---- optimizers and models


def wrap(
    optimizer: Any,
    compression: Any,
    sparse_as_dense: bool,
    predivide: float,
    op: int,
    passes: int,
    average_aggregated: bool,
    groups: Any,
    process_set: ProcessSet,
    scale_local: bool,
) -> Any:
    """The optimizer, made a distributed one; ValueError for arguments that contradict each other."""
    backend_name()
    if op not in (_AVERAGE, _SUM):
        raise UsageError(
            f"DistributedOptimizer: only op=Average and op=Sum can be used with Keras, not op={op!r}. "
            "hvd.DistributedGradientTape(tape, op=...) reduces gradients in other ways."
        )
    chosen = compression or binding().Compression.none
    gradients = make_settings(chosen, op, predivide, sparse_as_dense, process_set, "DistributedOptimizer")
    settings = OptimizerSettings(gradients, check_groups(groups), check_passes(passes), average_aggregated, scale_local)
    if settings.passes > 1 and backend_name() == "jax":
        let_keras_accumulate(optimizer, settings.passes)
    return distribute(optimizer, settings)


def choose_groups(num_groups: int, groups: Any) -> Any:
    """The groups, as ``num_groups`` gives them where that old argument is used."""
    if not num_groups:
        return groups
    warnings.warn("Parameter `num_groups` is deprecated, use `groups` instead.", DeprecationWarning, stacklevel=3)
    return num_groups if groups is None else groups


def register_local_layers(optimizer: Any, layers: Any) -> Any:
    """Weights of these layers stay on this rank; ValueError for what is no Keras layer."""
    listed: Sequence[Any] = [] if layers is None else layers if isinstance(layers, (list, tuple)) else [layers]
    for layer in listed:
        if not isinstance(layer, keras.layers.Layer):
            raise UsageError(f"All local layers must be of keras.layers.Layer type, got {type(layer).__name__}.")
        for weight in layer.trainable_weights:
            optimizer.register_local_var(weight)
    return optimizer


def load_model(
    filepath: Any,
    custom_optimizers: Iterable[type] | None = None,
    custom_objects: dict[str, Any] | None = None,
    compression: Any = None,
) -> Any:
    """The model of this file, its optimizer a distributed one with the state that was saved."""
    known = {kind.__name__: kind for kind in custom_optimizers or ()}
    model = keras.models.load_model(filepath, custom_objects={**known, **(custom_objects or {})})
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None and not is_distributed(optimizer):
        wrap(optimizer, compression, False, 1.0, _AVERAGE, 1, False, None, global_process_set, True)
    return model
