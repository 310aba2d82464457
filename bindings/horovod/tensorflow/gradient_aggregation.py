"""Sums the gradients of several passes in a session's graph, and reduces them in the last one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from horovod.common.exceptions import UsageError
from horovod.common.gradients import check_passes
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.tensorflow.settings import divisor, reduce_shared, variable_key

__all__ = ["LocalGradientAggregationHelper"]

v1 = tf.compat.v1


class LocalGradientAggregationHelper:
    """Sums and a counter in local variables: they are not saved, and start at zero with the local initializer.

    ``allreduce_func`` takes gradients and their variables, and returns reduced gradients.  Rank and the type of the
    optimizer are part of the variables' names at most.
    """

    OPTIMIZER_TYPE_KERAS = "optimizer_type_keras"
    OPTIMIZER_TYPE_LEGACY = "optimizer_type_legacy"

    def __init__(
        self,
        backward_passes_per_step: int,
        allreduce_func: Callable[[list[Any], list[Any]], Sequence[Any]],
        sparse_as_dense: bool,
        average_aggregated_gradients: bool,
        rank: int,
        optimizer_type: str,
        process_set: ProcessSet = global_process_set,
        scale_local_gradients: bool = True,
        name: str = "",
    ) -> None:
        self.backward_passes_per_step = check_passes(backward_passes_per_step)
        self.counter: Any = None
        self._reduce = allreduce_func
        self._sparse_as_dense = sparse_as_dense
        self._average = average_aggregated_gradients
        self._scope = f"aggregation_variables_{name}{rank}"
        self._process_set, self._scale_local = process_set, scale_local_gradients
        self._local: set[Any] = set()
        self._due: Any = None

    def register_local_var(self, var: Any) -> None:
        """The gradient of this variable is summed, but stays on this rank."""
        self._local.add(variable_key(var))

    def _variable(self, name: str, shape: Any, dtype: Any) -> Any:
        return v1.get_variable(
            name, shape=shape, dtype=dtype, trainable=False, collections=[v1.GraphKeys.LOCAL_VARIABLES],
            initializer=v1.zeros_initializer(), use_resource=True,
        )  # fmt: skip

    def _check(self, grads: Sequence[Any]) -> None:
        if tf.executing_eagerly():
            raise UsageError("backward_passes_per_step > 1 needs a graph here: use a Keras optimizer in eager mode.")
        if any(isinstance(grad, tf.IndexedSlices) for grad in grads) and not self._sparse_as_dense:
            raise UsageError("IndexedSlices can't be summed over passes: give sparse_as_dense=True.")

    def compute_gradients(self, grads: Sequence[Any], vars: Sequence[Any]) -> list[Any]:
        """Reduced sums in the last pass of a step, after which sums start at zero; in the others what is not used.

        Raises ValueError in eager mode, and for IndexedSlices without ``sparse_as_dense``.
        """
        if self.backward_passes_per_step == 1:
            return self._shared(list(grads), list(vars))
        self._check(grads)
        present = [index for index, grad in enumerate(grads) if grad is not None]
        if not present:
            return list(grads)
        dense = [tf.convert_to_tensor(grads[index]) for index in present]
        # A scope of its own for each: optimizers of one class in one graph must not add to each other's sums.
        with v1.variable_scope(None, default_name=self._scope):
            self.counter = self._variable("aggregation_counter", (), tf.int32)
            sums = [
                self._variable(f"aggregated_{index}", vars[index].shape, grad.dtype)
                for index, grad in zip(present, dense, strict=True)
            ]
        chosen = self._collect(sums, dense, [vars[index] for index in present])
        results = list(grads)
        for index, grad in zip(present, chosen, strict=True):
            results[index] = grad
        return results

    def _collect(self, sums: Sequence[Any], grads: Sequence[Any], variables: list[Any]) -> list[Any]:
        added = [total.assign_add(grad) for total, grad in zip(sums, grads, strict=True)]
        with tf.control_dependencies(added):
            count = self.counter.assign_add(1)
        self._due = tf.equal(count % self.backward_passes_per_step, 0)

        def finish() -> list[Any]:
            with tf.control_dependencies([count]):
                scale = self.backward_passes_per_step if self._average else 1
                totals = [total.read_value() / scale for total in sums]
                reduced = [tf.identity(grad) for grad in self._shared(totals, variables)]
            with tf.control_dependencies(reduced):
                zeroed = [total.assign(tf.zeros_like(total)) for total in sums]
            with tf.control_dependencies(zeroed):
                return [tf.identity(grad) for grad in reduced]

        chosen = tf.cond(self._due, finish, lambda: [tf.zeros_like(total) for total in sums])
        return list(chosen) if isinstance(chosen, (list, tuple)) else [chosen]

    def _shared(self, grads: list[Any], variables: list[Any]) -> list[Any]:
        divide_by = divisor(self._process_set, self._scale_local)
        return reduce_shared(grads, variables, self._local, divide_by, self._reduce)

    def apply_gradients(self, apply_grads_closure: Callable[[], Any], optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        """Calls the closure in the last pass of a step; in passes before nothing changes, the global step neither."""
        if self._due is None:
            return apply_grads_closure()

        def update() -> Any:
            with tf.control_dependencies([apply_grads_closure()]):
                return tf.constant(True)

        grads = [grad for grad, _ in args[0] if grad is not None] if args else []
        with tf.control_dependencies(grads):
            return tf.cond(self._due, update, lambda: tf.constant(False)).op
