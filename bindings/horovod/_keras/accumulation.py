"""Gradients of several passes, summed on this rank before they are reduced (``backward_passes_per_step``)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras

from horovod._keras.backends import dense, eagerly

__all__ = ["Accumulation"]


class Accumulation:
    """Sums and a counter of the passes since the last step, in variables that no model tracks or saves."""

    def __init__(self, passes: int, average: bool) -> None:
        self._passes = passes
        self._average = average
        # Each sum with its variable, which keeps the variable's id from being used again.
        self._sums: dict[int, tuple[Any, Any]] = {}
        self._due: dict[int, Any] = {}
        with eagerly():
            self.counter = keras.Variable(0, dtype="int32", trainable=False, name="aggregation_counter")

    def _sum_of(self, variable: Any) -> Any:
        if id(variable) not in self._sums:
            with eagerly():
                zeros = keras.ops.zeros(variable.shape, dtype=variable.dtype)
                total = keras.Variable(zeros, trainable=False, name="aggregated_gradient")
            self._sums[id(variable)] = variable, total
        return self._sums[id(variable)][1]

    @property
    def variables(self) -> list[Any]:
        """The counter and the sums."""
        return [self.counter, *(total for _, total in self._sums.values())]

    def add(
        self, grads: Sequence[Any], variables: Sequence[Any], apply: Callable[[list[Any], list[Any]], None]
    ) -> None:
        """Adds the gradients of one pass; the last pass applies the sums (or their mean) and starts anew.

        A variable that had a gradient in any of the passes is applied.
        """
        for grad, variable in zip(grads, variables, strict=True):
            if grad is not None:
                total = self._sum_of(variable)
                total.assign(total + dense(grad))
                self._due[id(variable)] = variable
        self.counter.assign_add(1)

        def finish() -> None:
            due = [variable for variable in variables if id(variable) in self._due]
            due += [variable for key, variable in self._due.items() if key not in set(map(id, due))]
            self._due.clear()
            scale = self._passes if self._average else 1
            apply([keras.ops.convert_to_tensor(self._sum_of(variable)) / scale for variable in due], due)
            for variable in due:
                total = self._sum_of(variable)
                total.assign(keras.ops.zeros_like(total))
            self.counter.assign(0)

        keras.ops.cond(keras.ops.equal(self.counter, self._passes), finish, lambda: None)
