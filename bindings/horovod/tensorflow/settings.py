"""How tapes and session optimizers tell variables apart, name them, and keep the gradients of some on their rank."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import tensorflow as tf

from horovod.common.gradients import Groups
from horovod.common.process_sets import ProcessSet

__all__ = ["divided", "divisor", "positions_of", "reduce_shared", "variable_key", "variable_name"]


def variable_key(variable: Any) -> Any:
    """What is equal for a Keras variable and the TensorFlow variable in it."""
    inner = getattr(variable, "value", None)
    variable = inner if inner is not None and not callable(inner) else variable
    return getattr(variable, "_unique_id", None) or id(variable)


def variable_name(variable: Any, default: str) -> str:
    """The variable's path in its model; tensors have none that would be the same on all ranks."""
    path = getattr(variable, "path", None) or (getattr(variable, "name", None) if hasattr(variable, "assign") else None)
    return str(path).removesuffix(":0") if path else default


def positions_of(groups: Any, variables: Sequence[Any]) -> Groups:
    """The groups by positions in this list of variables."""
    if groups is None or isinstance(groups, int):
        return groups
    place = {variable_key(variable): index for index, variable in enumerate(variables)}
    keys = [[variable_key(variable) for variable in group] for group in groups]
    return [[place[key] for key in group if key in place] for group in keys]


def reduce_shared(
    grads: Sequence[Any],
    variables: Sequence[Any],
    local: Collection[Any],
    divide_by: int,
    reduce: Callable[[list[Any], list[Any]], Sequence[Any]],
) -> list[Any]:
    """The gradients: those of variables whose keys are in ``local`` divided, all others as ``reduce`` gives them."""
    shared = [index for index, variable in enumerate(variables) if variable_key(variable) not in local]
    results = [
        divided(grad, divide_by) if variable_key(variable) in local else grad
        for grad, variable in zip(grads, variables, strict=True)
    ]
    reduced = reduce([grads[index] for index in shared], [variables[index] for index in shared])
    for index, grad in zip(shared, reduced, strict=True):
        results[index] = grad
    return results


def divisor(process_set: ProcessSet, scale_local: bool) -> int:
    """What gradients that stay on their rank are divided by; ranks outside of the set keep all of theirs as they are."""
    return (process_set.size() or 1) if scale_local and process_set.included() else 1


def divided(grad: Any, number: int) -> Any:
    """The gradient divided by this number; IndexedSlices stay what they are, None too."""
    if grad is None or number == 1:
        return grad
    if isinstance(grad, tf.IndexedSlices):
        return tf.IndexedSlices(grad.values / number, grad.indices, grad.dense_shape)
    return grad / number
