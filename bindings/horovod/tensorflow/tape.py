"""DistributedGradientTape: a tf.GradientTape whose gradients are reduced over the ranks."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from horovod.common.exceptions import UsageError
from horovod.common.gradients import GradientSettings, check_groups, make_settings, reduces
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.common.types import ReduceOp
from horovod.tensorflow.bridge import speaks_tensorflow, unconverted
from horovod.tensorflow.buckets import reduce_gradients
from horovod.tensorflow.compression import Compression, Compressor
from horovod.tensorflow.settings import divisor, positions_of, reduce_shared, variable_key, variable_name

__all__ = ["DistributedGradientTape", "PartialDistributedGradientTape"]

_AVERAGE = int(ReduceOp.AVERAGE)


class _DistributedTape(tf.GradientTape):  # type: ignore[misc]
    """The methods that are put over the wrapped tape's class."""

    _hvd_settings: GradientSettings
    _hvd_groups: Any
    _hvd_local: set[Any]
    _hvd_scale_local: bool

    @unconverted
    def register_local_source(self, source: Any) -> None:
        """Gradients of this source stay on this rank, divided by the set's size where that is asked for."""
        self._hvd_local.add(variable_key(source))

    @speaks_tensorflow
    def gradient(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        unconnected_gradients: Any = tf.UnconnectedGradients.NONE,
        use_generic_names: bool = False,
    ) -> Any:
        """As tf.GradientTape.gradient, reduced; in the structure of the sources.  None must be None on all ranks."""
        found = super().gradient(target, sources, output_gradients, unconnected_gradients)
        flat_sources = tf.nest.flatten(sources)
        grads = tf.nest.flatten(found, expand_composites=False)
        return tf.nest.pack_sequence_as(found, self._hvd_reduce(grads, flat_sources))

    @unconverted
    def get_local_and_global_gradients(
        self, target: Any, sources: Any, output_gradients: Any = None, use_generic_names: bool = False
    ) -> tuple[list[Any], list[Any]]:
        """(source, gradient) pairs of local sources, and of all others."""
        flat = tf.nest.flatten(sources)
        grads = tf.nest.flatten(self.gradient(target, sources, output_gradients), expand_composites=False)
        pairs = list(zip(flat, grads, strict=True))
        local = [pair for pair in pairs if variable_key(pair[0]) in self._hvd_local]
        return local, [pair for pair in pairs if variable_key(pair[0]) not in self._hvd_local]

    def _hvd_reduce(self, grads: Sequence[Any], sources: Sequence[Any]) -> list[Any]:
        settings = self._hvd_settings
        if not reduces(settings):
            return list(grads)

        def reduce(shared: Sequence[Any], of: Sequence[Any]) -> list[Any]:
            names = [variable_name(source, f"source.{index}") for index, source in enumerate(of)]
            return reduce_gradients(shared, names, settings, positions_of(self._hvd_groups, of))

        divide_by = divisor(settings.process_set, self._hvd_scale_local)
        return reduce_shared(grads, sources, self._hvd_local, divide_by, reduce)


@functools.lru_cache(64)
def _subclass(wrapped: Any) -> Any:
    """A class named like ``wrapped`` and derived from it; one for each, so that a tape per step makes no classes."""
    return type(
        wrapped.__name__, (_DistributedTape, wrapped) if wrapped is not tf.GradientTape else (_DistributedTape,), {}
    )


def _wrap(tape: Any, settings: GradientSettings, groups: Any, scale_local: bool) -> Any:
    if not isinstance(tape, tf.GradientTape):
        raise UsageError(f"DistributedGradientTape wraps a tf.GradientTape, not {type(tape).__name__}.")
    if isinstance(tape, _DistributedTape):
        raise UsageError("This tape is a DistributedGradientTape already; wrapping it twice would reduce twice.")
    kind = _subclass(tape.__class__)
    wrapped = kind.__new__(kind)
    wrapped.__dict__.update(tape.__dict__)
    wrapped._hvd_settings, wrapped._hvd_groups = settings, groups
    wrapped._hvd_local, wrapped._hvd_scale_local = set(), scale_local
    return wrapped


@speaks_tensorflow
def DistributedGradientTape(
    gradtape: Any,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    sparse_as_dense: bool = False,
    op: int = _AVERAGE,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """The tape, with gradients reduced over all ranks of the set.

    ``groups``: lists of variables, or how many lists, that are reduced together.  Raises ValueError for arguments that
    contradict each other.
    """
    if num_groups:
        warnings.warn("Parameter `num_groups` is deprecated, use `groups` instead.", DeprecationWarning, stacklevel=3)
        groups = num_groups if groups is None else groups
    settings = make_settings(
        compression, op, gradient_predivide_factor, sparse_as_dense, process_set, "DistributedGradientTape"
    )
    return _wrap(gradtape, settings, check_groups(groups), scale_local_gradients)


@speaks_tensorflow
def PartialDistributedGradientTape(
    gradtape: Any,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    sparse_as_dense: bool = False,
    op: int = _AVERAGE,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> Any:
    """As DistributedGradientTape; weights of ``local_layers`` (a Keras layer or a list of them) stay on this rank."""
    tape = DistributedGradientTape(
        gradtape, device_dense, device_sparse, compression, sparse_as_dense, op, gradient_predivide_factor, num_groups,
        groups, process_set, scale_local_gradients,
    )  # fmt: skip
    layers = [] if local_layers is None else local_layers if isinstance(local_layers, (list, tuple)) else [local_layers]
    for layer in layers:
        if not hasattr(layer, "trainable_weights"):
            raise UsageError(f"All local layers must be of tf.keras.layers.Layer type, got {type(layer).__name__}.")
        for weight in layer.trainable_weights:
            tape.register_local_source(weight)
    return tape
