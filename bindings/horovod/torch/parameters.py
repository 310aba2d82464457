"""Names and groups of an optimizer's parameters, as users give them: checks whose messages show what is wrong."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from horovod.common.exceptions import UsageError

__all__ = ["check_groups", "check_passes", "name_parameters"]


def _default_names(optimizer: torch.optim.Optimizer) -> dict[torch.Tensor, str]:
    return {
        parameter: f"allreduce.noname.{group_index}.{index}"
        for group_index, group in enumerate(optimizer.param_groups)
        for index, parameter in enumerate(group["params"])
    }


def _check_entries(entries: Sequence[Any]) -> None:
    for position, entry in enumerate(entries):
        if not isinstance(entry, tuple) or len(entry) != 2:
            raise UsageError(
                "named_parameters should be a sequence of tuples (name, parameter), usually produced by "
                f"model.named_parameters(); entry {position} is a {type(entry).__name__}."
            )
    names = [name for name, _ in entries]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise UsageError(
            f"Parameter names in named_parameters must be unique. Found duplicates: {', '.join(map(str, repeated))}"
        )


def _check_complete(optimizer: torch.optim.Optimizer, names: dict[torch.Tensor, str]) -> None:
    unnamed = [
        f"group {group_index}, position {index}, shape {list(parameter.shape)}"
        for group_index, group in enumerate(optimizer.param_groups)
        for index, parameter in enumerate(group["params"])
        if parameter not in names
    ]
    if unnamed:
        raise UsageError(
            "named_parameters was specified, but one or more model parameters were not named. "
            f"Parameters without a name: {'; '.join(unnamed[:10])}. "
            "A generator that was used up before gives no names: call model.named_parameters() again."
        )


def name_parameters(
    optimizer: torch.optim.Optimizer, named_parameters: Iterable[Any] | None
) -> dict[torch.Tensor, str]:
    """A name for each parameter: the user's, or its position; ValueError for names that can't be right.

    A parameter that has two names (tied weights) keeps the first.
    """
    if named_parameters is None:
        return _default_names(optimizer)
    entries = list(named_parameters)
    _check_entries(entries)
    names: dict[torch.Tensor, str] = {}
    for name, parameter in entries:
        names.setdefault(parameter, str(name))
    _check_complete(optimizer, names)
    return names


def check_passes(passes: Any) -> None:
    """ValueError for what is no number of backward passes."""
    try:
        number = operator.index(passes)
    except TypeError:
        raise UsageError(f"backward_passes_per_step must be an integer > 0, not {passes!r}.") from None
    if number <= 0:
        raise UsageError("backward_passes_per_step must be > 0")


def check_groups(groups: Any) -> Any:
    """The groups, as lists; ValueError for what is neither a positive number nor lists of distinct tensors."""
    if groups is None or (isinstance(groups, int) and not isinstance(groups, bool) and groups > 0):
        return groups
    if not isinstance(groups, (list, tuple)):
        raise UsageError("groups should be a positive integer or a list of lists of torch.Tensor.")
    seen: set[int] = set()
    for group in groups:
        for parameter in group:
            if not isinstance(parameter, torch.Tensor):
                raise UsageError("groups must consist of torch.Tensor.")
            if id(parameter) in seen:
                raise UsageError("A parameter can only appear once in groups.")
            seen.add(id(parameter))
    return [list(group) for group in groups]
