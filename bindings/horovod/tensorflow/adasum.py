"""The optimizer for op=Adasum: ranks step on their own, and what their steps changed is combined.

Adasum combines updates, not gradients, so that the wrapped optimizer's rule (momentum, second moments) is applied before
the combination.  For ``tf.compat.v1.train.Optimizer`` in graphs; in eager mode with resource variables.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from horovod.common.gradients import GradientSettings, reduces
from horovod.tensorflow.buckets import reduce_gradients
from horovod.tensorflow.settings import variable_key, variable_name

__all__ = ["DeltaOptimizer"]

v1 = tf.compat.v1
_SLOT = "delta_start"


class DeltaOptimizer(tf.compat.v1.train.Optimizer):  # type: ignore[misc]
    """Steps with the wrapped optimizer; the slot ``delta_start`` keeps the values that all ranks had before.

    With several passes every pass steps on this rank, and the last one combines what all of them changed.
    """

    def __init__(
        self, optimizer: Any, name: str | None, use_locking: bool, settings: GradientSettings, passes: int
    ) -> None:
        super().__init__(name=name or f"DistributedDelta{type(optimizer).__name__}", use_locking=use_locking)
        self._optimizer = optimizer
        self._hvd_settings = settings
        self._passes = passes
        self._local: set[Any] = set()
        self._pass_count: Any = None

    def register_local_var(self, var: Any) -> None:
        """What changes this variable stays on this rank."""
        self._local.add(variable_key(var))

    def compute_gradients(self, *args: Any, **kwargs: Any) -> Any:
        """The wrapped optimizer's."""
        return self._optimizer.compute_gradients(*args, **kwargs)

    def apply_gradients(self, grads_and_vars: Any, global_step: Any = None, name: str | None = None) -> Any:
        """Steps, then replaces what that changed by the combination of what all ranks changed."""
        pairs = list(grads_and_vars)
        shared = [v for grad, v in pairs if grad is not None and variable_key(v) not in self._local]
        if not reduces(self._hvd_settings) or not shared:
            return self._optimizer.apply_gradients(pairs, global_step=global_step, name=name)
        with tf.init_scope():
            starts = [self._zeros_slot(variable, _SLOT, self._name) for variable in shared]
        is_first, is_last = self._place_of_pass()
        with tf.control_dependencies([grad for grad, _ in pairs if grad is not None]):
            kept = _when(is_first, lambda: _assigned(starts, [_read(v) for v in shared]))
        with tf.control_dependencies([kept]):
            step = self._optimizer.apply_gradients(pairs, global_step=global_step, name=name)
        with tf.control_dependencies([kept] if step is None or tf.executing_eagerly() else [kept, step]):
            combined = _when(is_last, lambda: self._combine(shared, starts))
        return None if tf.executing_eagerly() else tf.group(combined)

    def _place_of_pass(self) -> tuple[Any, Any]:
        """Whether this pass is the first one, and the last one, of its step."""
        if self._passes == 1:
            return True, True
        if self._pass_count is None:
            with tf.init_scope():
                self._pass_count = v1.Variable(
                    0, dtype=tf.int32, trainable=False, use_resource=True, name="delta_passes",
                    collections=[v1.GraphKeys.LOCAL_VARIABLES],
                )  # fmt: skip
        number = self._pass_count.assign_add(1) % self._passes
        return tf.equal(number, 1), tf.equal(number, 0)

    def _combine(self, variables: Sequence[Any], starts: Sequence[Any]) -> Any:
        before = [_read(start) for start in starts]
        changes = [_read(variable) - start for variable, start in zip(variables, before, strict=True)]
        names = [variable_name(variable, f"variable.{index}") for index, variable in enumerate(variables)]
        combined = reduce_gradients(changes, names, self._hvd_settings)
        return _assigned(variables, [start + change for start, change in zip(before, combined, strict=True)])

    def get_slot(self, var: Any, name: str) -> Any:
        """``delta_start``, or a slot of the wrapped optimizer."""
        return super().get_slot(var, name) if name == _SLOT else self._optimizer.get_slot(var, name)

    def get_slot_names(self) -> Any:
        """Those of the wrapped optimizer, and ``delta_start``."""
        return [*self._optimizer.get_slot_names(), *super().get_slot_names()]

    def variables(self) -> Any:
        """Those of the wrapped optimizer, and the values before the step."""
        return [*self._optimizer.variables(), *super().variables()]


def _when(condition: Any, do: Callable[[], Any]) -> Any:
    """What comes after this was done, if it has to be."""
    return do() if condition is True else tf.cond(condition, do, lambda: tf.constant(True))


def _read(variable: Any) -> Any:
    """The variable's value at this point of the program."""
    return variable.read_value()


def _assigned(variables: Sequence[Any], values: Sequence[Any]) -> Any:
    done = [variable.assign(value) for variable, value in zip(variables, values, strict=True)]
    if tf.executing_eagerly():
        return tf.constant(True)
    with tf.control_dependencies(done):
        return tf.constant(True)
