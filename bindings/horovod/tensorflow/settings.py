"""How tapes and session optimizers tell variables apart, and name them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from horovod.common.gradients import Groups

__all__ = ["positions_of", "variable_key", "variable_name"]


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
