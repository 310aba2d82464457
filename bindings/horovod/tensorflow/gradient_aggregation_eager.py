"""Sums the gradients of several passes in eager mode or a ``tf.function``, and reduces them in the last one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from horovod.common.exceptions import UsageError
from horovod.common.gradients import check_passes
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.tensorflow.settings import divisor, reduce_shared, variable_key

__all__ = ["LocalGradientAggregationHelperEager"]


class LocalGradientAggregationHelperEager:
    """Sums, and a counter of the passes since the last step, in variables.

    ``allreduce_func`` takes gradients and their variables, and returns reduced gradients.  Optimizers that
    ``hvd.DistributedOptimizer`` made need no helper; this one is for optimizers of your own.
    """

    def __init__(
        self,
        backward_passes_per_step: int,
        allreduce_func: Callable[[list[Any], list[Any]], Sequence[Any]],
        sparse_as_dense: bool,
        average_aggregated_gradients: bool,
        process_set: ProcessSet = global_process_set,
        scale_local_gradients: bool = True,
    ) -> None:
        self.backward_passes_per_step = check_passes(backward_passes_per_step)
        self.counter = tf.Variable(0, dtype=tf.int32, trainable=False, name="aggregation_counter")
        self._reduce = allreduce_func
        self._sparse_as_dense = sparse_as_dense
        self._average = average_aggregated_gradients
        self._process_set, self._scale_local = process_set, scale_local_gradients
        self._local: set[Any] = set()
        self._sums: dict[int, Any] = {}

    def register_local_var(self, var: Any) -> None:
        """The gradient of this variable is summed, but stays on this rank."""
        self._local.add(variable_key(var))

    def compute_gradients(self, grads: Sequence[Any], vars: Sequence[Any]) -> list[Any]:
        """Reduced sums in the last pass of a step, after which sums start at zero; in the others the sums so far.

        Raises ValueError for IndexedSlices without ``sparse_as_dense``.
        """
        if any(isinstance(grad, tf.IndexedSlices) for grad in grads) and not self._sparse_as_dense:
            raise UsageError("IndexedSlices can't be summed over passes: give sparse_as_dense=True.")
        present = [index for index, grad in enumerate(grads) if grad is not None]
        sums = [self._sum_of(index, vars[index], grads[index].dtype) for index in present]
        for index, total in zip(present, sums, strict=True):
            total.assign_add(tf.convert_to_tensor(grads[index]))
        self.counter.assign_add(1)

        def finish() -> list[Any]:
            scale = self.backward_passes_per_step if self._average else 1
            totals = [total / scale for total in sums]
            divide_by = divisor(self._process_set, self._scale_local)
            of = [vars[index] for index in present]
            reduced = [tf.identity(g) for g in reduce_shared(totals, of, self._local, divide_by, self._reduce)]
            for total in sums:
                total.assign(tf.zeros_like(total))
            self.counter.assign(0)
            return reduced

        is_last = tf.equal(self.counter, self.backward_passes_per_step)
        chosen = tf.cond(is_last, finish, lambda: [tf.identity(total) for total in sums]) if present else []
        results = list(grads)
        for index, grad in zip(present, chosen if isinstance(chosen, (list, tuple)) else [chosen], strict=True):
            results[index] = grad
        return results

    def _sum_of(self, index: int, variable: Any, dtype: Any) -> Any:
        if index not in self._sums:
            with tf.init_scope():
                self._sums[index] = tf.Variable(tf.zeros(variable.shape, dtype), trainable=False)
        return self._sums[index]

    def apply_gradients(self, apply_grads_closure: Callable[[], Any], optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        """Calls the closure after the last pass of a step; after the others nothing changes, ``iterations`` neither."""

        def update() -> Any:
            apply_grads_closure()
            return tf.constant(True)

        return tf.cond(tf.equal(self.counter, 0), update, lambda: tf.constant(False))
