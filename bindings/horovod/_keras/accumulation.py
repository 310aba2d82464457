"""Gradients of several passes, summed on this rank before they are reduced (``backward_passes_per_step``)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras

from horovod._keras.backends import eagerly

__all__ = ["Accumulation"]


class Accumulation:
    """Sums and a counter, in variables that no model tracks or saves."""

    def __init__(self, variables: Sequence[Any], passes: int, average: bool) -> None:
        self._passes = passes
        self._average = average
        with eagerly():
            self.counter = keras.Variable(0, dtype="int32", trainable=False, name="aggregation_counter")
            self._sums = [
                keras.Variable(keras.ops.zeros(v.shape, dtype=v.dtype), trainable=False, name="aggregated_gradient")
                for v in variables
            ]

    @property
    def variables(self) -> list[Any]:
        """The counter and the sums."""
        return [self.counter, *self._sums]

    def add(
        self, grads: Sequence[Any], variables: Sequence[Any], apply: Callable[[list[Any], list[Any]], None]
    ) -> None:
        """Adds the gradients of one pass; the last pass applies the sums (or their mean) and starts anew."""
        present = [position for position, grad in enumerate(grads) if grad is not None]
        for position in present:
            self._sums[position].assign(self._sums[position] + grads[position])
        self.counter.assign_add(1)

        def finish() -> None:
            scale = self._passes if self._average else 1
            sums = [keras.ops.convert_to_tensor(self._sums[position]) / scale for position in present]
            apply(sums, [variables[position] for position in present])
            for position in present:
                self._sums[position].assign(keras.ops.zeros_like(self._sums[position]))
            self.counter.assign(0)

        keras.ops.cond(keras.ops.equal(self.counter, self._passes), finish, lambda: None)
