"""Training in ``tf.compat.v1`` sessions: an optimizer wrapper, and the hook that makes weights equal at the start."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from horovod.common.array_signatures import require_client
from horovod.common.exceptions import UsageError
from horovod.common.gradients import GradientSettings, check_groups, check_passes, make_settings, reduces
from horovod.common.process_sets import ProcessSet
from horovod.common.types import ReduceOp
from horovod.tensorflow.adasum import DeltaOptimizer
from horovod.tensorflow.buckets import reduce_gradients
from horovod.tensorflow.functions import broadcast_global_variables
from horovod.tensorflow.gradient_aggregation import LocalGradientAggregationHelper
from horovod.tensorflow.settings import positions_of, variable_name

__all__ = ["BroadcastGlobalVariablesHook", "wrap_session_optimizer"]


class BroadcastGlobalVariablesHook(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
    """Copies all global variables of ``root_rank`` to all ranks when a session has been made."""

    def __init__(self, root_rank: int, device: str = "") -> None:
        super().__init__()
        self.root_rank = root_rank
        self.device = device
        self.bcast_op: Any = None

    def begin(self) -> None:
        """Makes the operation, once for a graph."""
        if self.bcast_op is None or self.bcast_op.graph is not tf.compat.v1.get_default_graph():
            self.bcast_op = broadcast_global_variables(self.root_rank)

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Runs it."""
        session.run(self.bcast_op)


class _SessionOptimizer(tf.compat.v1.train.Optimizer):  # type: ignore[misc]
    """Reduces in compute_gradients; everything else is the wrapped optimizer's."""

    def __init__(
        self,
        optimizer: Any,
        name: str,
        use_locking: bool,
        settings: GradientSettings,
        groups: Any,
        passes: int,
        average_aggregated: bool,
        scale_local: bool,
    ) -> None:
        super().__init__(name=name, use_locking=use_locking)
        self._optimizer = optimizer
        self._hvd_settings = settings
        self._hvd_groups = groups
        kind = LocalGradientAggregationHelper.OPTIMIZER_TYPE_LEGACY
        self._agg_helper = LocalGradientAggregationHelper(
            passes, self._reduce, settings.sparse_as_dense, average_aggregated, require_client().rank, kind,
            settings.process_set, scale_local, name,
        )  # fmt: skip

    def register_local_var(self, var: Any) -> None:
        """The gradient of this variable stays on this rank, divided by the set's size where that is asked for."""
        self._agg_helper.register_local_var(var)

    def compute_gradients(self, *args: Any, **kwargs: Any) -> Any:
        """As in TensorFlow, reduced."""
        pairs = self._optimizer.compute_gradients(*args, **kwargs)
        variables = [variable for _, variable in pairs]
        grads = self._agg_helper.compute_gradients([grad for grad, _ in pairs], variables)
        return list(zip(grads, variables, strict=True))

    def _reduce(self, grads: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        settings = self._hvd_settings
        if not reduces(settings):
            return list(grads)
        names = [variable_name(variable, f"variable.{index}") for index, variable in enumerate(variables)]
        return reduce_gradients(grads, names, settings, positions_of(self._hvd_groups, variables))

    def apply_gradients(self, grads_and_vars: Any, global_step: Any = None, name: str | None = None) -> Any:
        """As in TensorFlow; in passes before the last one nothing changes, the step neither."""
        pairs = list(grads_and_vars)

        def update() -> Any:
            return self._optimizer.apply_gradients(pairs, global_step=global_step, name=name)

        return self._agg_helper.apply_gradients(update, self._optimizer, pairs)

    def get_slot(self, *args: Any, **kwargs: Any) -> Any:
        """The wrapped optimizer's."""
        return self._optimizer.get_slot(*args, **kwargs)

    def get_slot_names(self, *args: Any, **kwargs: Any) -> Any:
        """The wrapped optimizer's."""
        return self._optimizer.get_slot_names(*args, **kwargs)

    def variables(self, *args: Any, **kwargs: Any) -> Any:
        """The wrapped optimizer's."""
        return self._optimizer.variables(*args, **kwargs)


def wrap_session_optimizer(
    optimizer: Any,
    name: str | None,
    use_locking: bool,
    compression: Any,
    sparse_as_dense: bool,
    passes: int,
    op: int,
    predivide: float,
    average_aggregated: bool,
    groups: Any,
    process_set: ProcessSet,
    scale_local: bool,
) -> Any:
    """The wrapper of a ``tf.compat.v1.train.Optimizer``; ValueError for arguments that contradict each other."""
    if isinstance(optimizer, (_SessionOptimizer, DeltaOptimizer)):
        raise UsageError("This optimizer is a DistributedOptimizer already; wrapping it twice would reduce twice.")
    settings = make_settings(compression, op, predivide, sparse_as_dense, process_set, "DistributedOptimizer")
    passes = check_passes(passes)
    if settings.op == ReduceOp.ADASUM:
        if average_aggregated:
            raise UsageError("Adasum does not support average_aggregated_gradients == True")
        return DeltaOptimizer(optimizer, name, use_locking, settings, passes)
    title = name or f"Distributed{type(optimizer).__name__}"
    return _SessionOptimizer(
        optimizer, title, use_locking, settings, check_groups(groups), passes, average_aggregated, scale_local
    )
