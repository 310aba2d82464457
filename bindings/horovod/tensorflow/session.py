"""Training in ``tf.compat.v1`` sessions: an optimizer wrapper, and the hook that makes weights equal at the start."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from horovod.common.exceptions import UsageError
from horovod.common.gradients import GradientSettings, check_groups, make_settings, reduces
from horovod.common.process_sets import ProcessSet
from horovod.tensorflow.buckets import reduce_gradients
from horovod.tensorflow.functions import broadcast_global_variables
from horovod.tensorflow.settings import positions_of, variable_key, variable_name

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
        self._passes = passes
        self._average_aggregated = average_aggregated
        self._scale_local = scale_local
        self._local: set[Any] = set()
        self._due: Any = None

    def register_local_var(self, var: Any) -> None:
        """The gradient of this variable stays on this rank, divided by the set's size where that is asked for."""
        self._local.add(variable_key(var))

    def compute_gradients(self, *args: Any, **kwargs: Any) -> Any:
        """As in TensorFlow, reduced."""
        pairs = self._optimizer.compute_gradients(*args, **kwargs)
        grads, variables = [grad for grad, _ in pairs], [variable for _, variable in pairs]
        if self._passes > 1:
            grads = self._aggregate(grads, variables)
        else:
            grads = self._reduce(grads, variables)
        return list(zip(grads, variables, strict=True))

    def _reduce(self, grads: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        settings, results = self._hvd_settings, list(grads)
        if not reduces(settings):
            return results
        shared = [i for i, variable in enumerate(variables) if variable_key(variable) not in self._local]
        names = [variable_name(variables[i], f"variable.{i}") for i in shared]
        groups = positions_of(self._hvd_groups, [variables[i] for i in shared])
        reduced = reduce_gradients([grads[i] for i in shared], names, settings, groups)
        for position, grad in zip(shared, reduced, strict=True):
            results[position] = grad
        members = settings.process_set.size() or 1
        for position, grad in enumerate(grads):
            if position not in shared and grad is not None and self._scale_local:
                results[position] = grad / members
        return results

    def _aggregate(self, grads: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Sums of the passes so far; reduced sums in the last pass of a step, after which they start at zero."""
        if tf.executing_eagerly():
            raise UsageError("backward_passes_per_step > 1 needs a graph here: use a Keras optimizer in eager mode.")
        if any(isinstance(grad, tf.IndexedSlices) for grad in grads) and not self._hvd_settings.sparse_as_dense:
            raise UsageError("IndexedSlices can't be summed over passes: give sparse_as_dense=True.")
        present = [i for i, grad in enumerate(grads) if grad is not None]
        with tf.compat.v1.variable_scope(f"aggregation_variables_{self.get_name()}", reuse=tf.compat.v1.AUTO_REUSE):
            local = [tf.compat.v1.GraphKeys.LOCAL_VARIABLES]
            counter = tf.compat.v1.get_variable(
                "aggregation_counter", shape=(), dtype=tf.int32, trainable=False, collections=local,
                initializer=tf.compat.v1.zeros_initializer(), use_resource=True,
            )  # fmt: skip
            sums = [
                tf.compat.v1.get_variable(
                    f"aggregated_{i}", shape=grads[i].shape, dtype=grads[i].dtype, trainable=False, collections=local,
                    initializer=tf.compat.v1.zeros_initializer(), use_resource=True,
                )
                for i in present
            ]  # fmt: skip
        added = [total.assign_add(tf.convert_to_tensor(grads[i])) for total, i in zip(sums, present, strict=True)]
        with tf.control_dependencies(added):
            count = counter.assign_add(1)
        self._due = tf.equal(count % self._passes, 0)
        kept = [variables[i] for i in present]

        def finish() -> list[Any]:
            with tf.control_dependencies([count]):
                scale = self._passes if self._average_aggregated else 1
                reduced = [tf.identity(g) for g in self._reduce([total.read_value() / scale for total in sums], kept)]
            with tf.control_dependencies(reduced):
                zeroed = [total.assign(tf.zeros_like(total)) for total in sums]
            with tf.control_dependencies(zeroed):
                return [tf.identity(grad) for grad in reduced]

        results = list(grads)
        chosen = tf.cond(self._due, finish, lambda: [tf.zeros_like(total) for total in sums])
        for position, grad in zip(present, chosen if isinstance(chosen, (list, tuple)) else [chosen], strict=True):
            results[position] = grad
        return results

    def apply_gradients(self, grads_and_vars: Any, global_step: Any = None, name: str | None = None) -> Any:
        """As in TensorFlow; in passes before the last one nothing changes, the step neither."""
        pairs = list(grads_and_vars)
        if self._due is None:
            return self._optimizer.apply_gradients(pairs, global_step=global_step, name=name)

        def update() -> Any:
            with tf.control_dependencies([self._optimizer.apply_gradients(pairs, global_step=global_step, name=name)]):
                return tf.constant(True)

        ready = [grad for grad, _ in pairs if grad is not None]
        with tf.control_dependencies(ready):
            return tf.cond(self._due, update, lambda: tf.constant(False)).op

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
    if isinstance(optimizer, _SessionOptimizer):
        raise UsageError("This optimizer is a DistributedOptimizer already; wrapping it twice would reduce twice.")
    if isinstance(passes, bool) or not isinstance(passes, int) or passes < 1:
        raise UsageError(f"backward_passes_per_step must be an integer > 0, not {passes!r}.")
    settings = make_settings(compression, op, predivide, sparse_as_dense, process_set, "DistributedOptimizer")
    title = name or f"Distributed{type(optimizer).__name__}"
    return _SessionOptimizer(
        optimizer, title, use_locking, settings, check_groups(groups), passes, average_aggregated, scale_local
    )
