"""How a state saves, restores and synchronises what is no plain object: models, optimizers, samplers, schedulers.

A handler holds one value.  ``save`` binds a new copy and never changes the last one, so that a save that fails later on can
be taken back.  Users may register handlers for types of their own: ``set_handler_registry``.
"""

from __future__ import annotations

import copy
from typing import Any, Protocol, runtime_checkable

import torch

from horovod.torch.elastic.sampler import ElasticSampler
from horovod.torch.functions import broadcast_object, broadcast_optimizer_state, broadcast_parameters
from horovod.torch.originals import share_state

__all__ = [
    "ModelStateHandler",
    "OptimizerStateHandler",
    "SamplerStateHandler",
    "StateDictHandler",
    "StateHandler",
    "Stateful",
    "get_handler_registry",
    "handler_for",
    "load_exactly",
    "set_handler_registry",
]


class StateHandler:
    """Saves, restores and synchronises one value; saves it when it is made.  Subclasses say how."""

    def __init__(self, value: Any) -> None:
        self.value = value
        self.save()

    def save(self) -> None:
        """Keeps a copy of the value's state."""
        raise NotImplementedError

    def restore(self) -> None:
        """Brings the copy back into the value."""
        raise NotImplementedError

    def sync(self) -> None:
        """Makes the value's state rank 0's.  All ranks must call it."""
        raise NotImplementedError

    def reset(self) -> None:
        """Ranks have met in a new epoch; most values have nothing to adapt."""

    def set_value(self, value: Any) -> None:
        """Another value takes this one's place, and is saved."""
        self.value = value
        self.save()


@runtime_checkable
class Stateful(Protocol):
    """Learning rate schedulers, gradient scalers, metrics and the like."""

    def state_dict(self) -> Any: ...

    def load_state_dict(self, state_dict: Any) -> Any: ...


class StateDictHandler(StateHandler):
    """For what has ``state_dict`` and ``load_state_dict``; the state must be picklable."""

    def save(self) -> None:
        """Copies the state."""
        self._saved = copy.deepcopy(self.value.state_dict())

    def restore(self) -> None:
        """Loads a copy of what was saved."""
        self.value.load_state_dict(copy.deepcopy(self._saved))

    def sync(self) -> None:
        """Loads rank 0's state."""
        self.value.load_state_dict(broadcast_object(self.value.state_dict(), name="elastic.state_dict"))


class SamplerStateHandler(StateDictHandler):
    """For ElasticSampler: epoch and progress; the rest of the epoch is divided anew."""

    def reset(self) -> None:
        """Divides what is left among the ranks that there are now."""
        self.value.reset()


class ModelStateHandler(StateHandler):
    """For modules: parameters, buffers and extra state; tensors stay the same objects."""

    def save(self) -> None:
        """Copies the state dict."""
        self._saved = copy.deepcopy(self.value.state_dict())

    def restore(self) -> None:
        """Copies what was saved into the module's tensors."""
        extra = _without_tensors(self._saved)
        # Loading copies tensors by itself, but keeps other objects.
        state = copy.copy(self._saved)
        state.update(copy.deepcopy(extra))
        self.value.load_state_dict(state)

    def sync(self) -> None:
        """Broadcasts tensors one by one, and what else there is in one object."""
        state = self.value.state_dict()
        extra = _without_tensors(state)
        broadcast_parameters({name: value for name, value in state.items() if name not in extra}, root_rank=0)
        if extra:
            received = broadcast_object(extra, name="elastic.extra_state")
            self.value.load_state_dict(received, strict=False)


def _without_tensors(state: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in state.items() if not isinstance(value, torch.Tensor)}


class OptimizerStateHandler(StateHandler):
    """For optimizers: options and state, restored to the last bit, in the same objects."""

    def save(self) -> None:
        """Copies the state dict."""
        self._saved = copy.deepcopy(self.value.state_dict())

    def restore(self) -> None:
        """Loads a copy of what was saved; a parameter that had no state then has none afterwards."""
        load_exactly(self.value, copy.deepcopy(self._saved))

    def sync(self) -> None:
        """Broadcasts options and state; LBFGS's as one object."""
        if isinstance(self.value, torch.optim.LBFGS):
            load_exactly(self.value, broadcast_object(_on_host(self.value.state_dict()), name="elastic.optimizer"))
        else:
            broadcast_optimizer_state(self.value, root_rank=0)


def load_exactly(optimizer: torch.optim.Optimizer, saved: dict[str, Any]) -> None:
    """Loads a state dict, which the optimizer may keep, with the dtypes that it has and into the same group objects.

    Torch casts state to the dtype of the parameters, and puts new groups in the place of those that schedulers know.
    """
    groups, state = optimizer.param_groups, optimizer.state
    optimizer.load_state_dict(saved)
    loaded_groups, loaded_state = list(optimizer.param_groups), dict(optimizer.state)
    parameters = [parameter for group in loaded_groups for parameter in group["params"]]
    numbers = [number for group in saved["param_groups"] for number in group["params"]]
    for number, parameter in zip(numbers, parameters, strict=True):
        _keep_dtypes(loaded_state.get(parameter, {}), saved["state"].get(number, {}))
    for group, loaded in zip(groups, loaded_groups, strict=True):
        _refill(group, loaded)
    _refill(state, loaded_state)
    optimizer.param_groups, optimizer.state = groups, state
    original = vars(optimizer).get("_original")
    if original is not None:
        share_state(optimizer, original)


def _on_host(value: Any) -> Any:
    """With tensors in host memory: an object with one on a device would come to the root's device on every rank."""
    if isinstance(value, torch.Tensor):
        return value.detach().cpu()
    if isinstance(value, dict):
        return {key: _on_host(entry) for key, entry in value.items()}
    return [_on_host(entry) for entry in value] if isinstance(value, list) else value


def _keep_dtypes(loaded: Any, saved: Any) -> None:
    for key, value in saved.items() if isinstance(saved, dict) else ():
        now = loaded.get(key)
        if isinstance(value, torch.Tensor) and isinstance(now, torch.Tensor) and now.dtype != value.dtype:
            loaded[key] = value.to(now.device)


def _refill(target: Any, source: Any) -> None:
    if target is not source:
        contents = dict(source)
        target.clear()
        target.update(contents)


_registry: list[tuple[type, type]] = [
    (torch.nn.Module, ModelStateHandler),
    (torch.optim.Optimizer, OptimizerStateHandler),
    (ElasticSampler, SamplerStateHandler),
    (Stateful, StateDictHandler),
]


def get_handler_registry() -> list[tuple[type, type]]:
    """Types and their handlers, in the order in which they are tried."""
    return _registry


def set_handler_registry(registry: list[tuple[type, type]]) -> None:
    """Puts another list in place: ``[(MyType, MyHandler), *get_handler_registry()]``.  It counts for states made later."""
    global _registry
    _registry = registry


def handler_for(value: object) -> type | None:
    """The handler's class for this value; None for a plain object, and for classes themselves."""
    if isinstance(value, type):
        return None
    return next((handler for kind, handler in _registry if isinstance(value, kind)), None)
