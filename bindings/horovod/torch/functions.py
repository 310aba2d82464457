"""State that all ranks shall share: parameters, optimizer state, objects.

Optimizer state is described by the root and filled in elsewhere; no step is taken to create it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from horovod.common.exceptions import UsageError
from horovod.common.objects import allgather_pickled, broadcast_pickled
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.torch.dtypes import can_be_sent
from horovod.torch.gather_ops import broadcast_async_
from horovod.torch.layouts import dense_strides, is_same_layout
from horovod.torch.pending import handles, require_client, synchronize

__all__ = ["allgather_object", "broadcast_object", "broadcast_optimizer_state", "broadcast_parameters"]


# ---- objects


def broadcast_object(
    obj: Any, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """The root's object, on all ranks of the set; it must be picklable (by cloudpickle).

    Ranks must agree on the name, if one is given; what they pass as ``obj`` elsewhere than on the root does not matter.
    Raises UsageError on all ranks when the root can't pickle its object.
    """
    handles.advance()
    return broadcast_pickled(require_client(), obj, root_rank, name, process_set)


def allgather_object(obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> list[Any]:
    """Every rank's object, in the order of ranks; they must be picklable (by cloudpickle).

    Raises UsageError on all ranks when one of them can't pickle its object.
    """
    handles.advance()
    return allgather_pickled(require_client(), obj, name, process_set)


# ---- parameters


def _named_tensors(params: Any) -> list[tuple[str, torch.Tensor]]:
    if isinstance(params, Mapping):
        entries: list[Any] = sorted(params.items())
    elif isinstance(params, Iterable) and not isinstance(params, (str, bytes, torch.Tensor)):
        entries = list(params)
    else:
        raise UsageError(f"invalid params of type: {type(params).__name__}. Give a state dict, or named parameters.")
    named = []
    for index, entry in enumerate(entries):
        name, tensor = entry if isinstance(entry, tuple) else (f"parameter.{index}", entry)
        if tensor is not None and not isinstance(tensor, torch.Tensor):
            raise UsageError(f"invalid params of type: entry {name!r} is a {type(tensor).__name__}, not a tensor.")
        if tensor is not None:
            named.append((name, tensor))
    return named


def broadcast_parameters(params: Any, root_rank: int) -> None:
    """Copies the root's values into the tensors, on all ranks.

    ``params``: a state dict, ``model.named_parameters()``, or an iterable of tensors or (name, tensor).  Raises
    ValueError for anything else.
    """
    started = [broadcast_async_(tensor, root_rank, f"parameter.{name}") for name, tensor in _named_tensors(params)]
    for handle in started:
        synchronize(handle)


# ---- optimizer state


class _Hole:
    """Stands for a tensor that is sent by itself; it goes to the host or beside its parameter, as on the root."""

    def __init__(self, tensor: torch.Tensor, parameter: torch.Tensor) -> None:
        self.shape, self.dtype, self.on_host = tuple(tensor.shape), tensor.dtype, tensor.is_cpu
        self.strides = dense_strides(tensor)
        # Then it does so everywhere, even where a rank's parameter has another memory format.
        self.lies_as_parameter = self.shape == parameter.shape and is_same_layout(
            self.shape, self.strides, dense_strides(parameter)
        )
        # Where the root's parameter is on the host too, only a shape tells what belongs beside it.
        self.is_told = not parameter.is_cpu

    def fill(self, local: Any, parameter: torch.Tensor) -> torch.Tensor:
        """The local tensor if it fits, so that references to it stay good, else a new one."""
        device = torch.device("cpu") if self._belongs_on_host(parameter) else parameter.device
        if isinstance(local, torch.Tensor) and local.shape == self.shape and local.dtype == self.dtype:
            return local if local.device == device or not self.is_told else torch.empty_like(local, device=device)
        strides = dense_strides(parameter) if self.lies_as_parameter else self.strides
        return torch.empty_strided(self.shape, strides, dtype=self.dtype, device=device)

    def _belongs_on_host(self, parameter: torch.Tensor) -> bool:
        return self.on_host and (self.is_told or self.shape != parameter.shape)


class _Copied:
    """A tensor that is sent inside an object, by way of the host: ranks have devices of their own."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.values, self.on_host = tensor.detach().cpu(), tensor.is_cpu

    def unpack(self, local: Any, parameter: torch.Tensor | None) -> torch.Tensor:
        """The local tensor with these values if it fits, so that references to it stay good, else another one."""
        if isinstance(local, torch.Tensor) and local.shape == self.values.shape and local.dtype == self.values.dtype:
            with torch.no_grad():
                return local.copy_(self.values)
        return self.values if self.on_host or parameter is None else self.values.to(parameter.device)


def _packed(value: Any) -> Any:
    return _Copied(value) if isinstance(value, torch.Tensor) else value


def _unpacked(value: Any, local: Any, parameter: torch.Tensor | None) -> Any:
    return value.unpack(local, parameter) if isinstance(value, _Copied) else value


def _parameters(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _describe(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Everything but the parameters and the dense tensors of the state."""
    options = [{k: _packed(v) for k, v in group.items() if k != "params"} for group in optimizer.param_groups]
    state = {}
    for index, parameter in enumerate(_parameters(optimizer)):
        if parameter in optimizer.state:
            entries = optimizer.state[parameter].items()
            state[index] = {
                key: _Hole(value, parameter) if _is_sent(value) else _packed(value) for key, value in entries
            }
    return {"options": options, "state": state}


def _is_sent(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.layout is torch.strided and can_be_sent(value.dtype)


def _adopt(optimizer: torch.optim.Optimizer, description: dict[str, Any]) -> None:
    """Makes the local state look like the root's; the values of tensors come later."""
    for group, options in zip(optimizer.param_groups, description["options"], strict=True):
        for key in [key for key in group if key != "params" and key not in options]:
            del group[key]
        beside = next(iter(group["params"]), None)
        group.update({key: _unpacked(value, group.get(key), beside) for key, value in options.items()})
    for index, parameter in enumerate(_parameters(optimizer)):
        wanted = description["state"].get(index)
        if wanted is None:
            optimizer.state.pop(parameter, None)
            continue
        local = optimizer.state[parameter]
        filled = {
            key: value.fill(local.get(key), parameter)
            if isinstance(value, _Hole)
            else _unpacked(value, local.get(key), parameter)
            for key, value in wanted.items()
        }
        local.clear()
        local.update(filled)


def _check_same_parameters(optimizer: torch.optim.Optimizer) -> None:
    """The same error on all ranks, before anything is changed."""
    mine = [[tuple(p.shape) for p in group["params"]] for group in optimizer.param_groups]
    everybody = allgather_object(mine, "optimizer_state.parameters")
    for rank, theirs in enumerate(everybody):
        if theirs != everybody[0]:
            raise UsageError(
                f"The optimizers of rank 0 and rank {rank} have different parameters, so state can't be broadcast: "
                f"shapes by group are {_shortened(everybody[0])} and {_shortened(theirs)}."
            )


def _shortened(shapes: object) -> str:
    text = str(shapes)
    return text if len(text) <= 500 else text[:500] + " …"


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer, root_rank: int, model: torch.nn.Module | None = None
) -> None:
    """Copies the root's optimizer state and options (learning rate, …) to all ranks.

    Nothing is stepped: where the root has no state yet, nobody has any afterwards.  ``model`` is accepted and not used.
    Raises ValueError for LBFGS, and when the ranks' optimizers have different parameters.
    """
    if isinstance(optimizer, torch.optim.LBFGS):
        raise UsageError("cannot broadcast torch.optim.LBFGS state: use broadcast_object(optimizer.state_dict()).")
    _check_same_parameters(optimizer)
    is_root = require_client().rank == root_rank
    description = _describe(optimizer) if is_root else None
    description = broadcast_object(description, root_rank, "optimizer_state")
    if not is_root:
        _adopt(optimizer, description)
    started = []
    parameters = _parameters(optimizer)
    for index, entries in sorted(description["state"].items()):
        for key, value in entries.items():
            if isinstance(value, _Hole):
                name = f"optimizer_state.{key}.{index}"
                started.append(broadcast_async_(optimizer.state[parameters[index]][key], root_rank, name))
    for handle in started:
        synchronize(handle)
