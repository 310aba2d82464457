"""The state of a PyTorch program: models, optimizers and samplers by handlers, everything else as plain objects."""

from __future__ import annotations

from typing import Any

import torch

from horovod.common.elastic import ObjectState
from horovod.torch.elastic.handlers import (
    ModelStateHandler,
    OptimizerStateHandler,
    SamplerStateHandler,
    StateDictHandler,
    StateHandler,
    get_handler_registry,
    handler_for,
    set_handler_registry,
)
from horovod.torch.functions import broadcast_object
from horovod.torch.mpi_ops import rank

__all__ = [
    "ModelStateHandler",
    "OptimizerStateHandler",
    "SamplerStateHandler",
    "StateDictHandler",
    "StateHandler",
    "TorchState",
    "get_handler_registry",
    "set_handler_registry",
]


class TorchState(ObjectState):
    """Model, optimizer and whatever else training needs to go on, as attributes.

    Modules, optimizers, ``ElasticSampler`` and objects with ``state_dict`` and ``load_state_dict`` (schedulers, gradient
    scalers) are saved by their state and stay the same objects; so there may be several models, under any names.
    Everything else is copied, see ``ObjectState``.  An attribute that gets another model is saved at once.
    """

    def __init__(
        self, model: torch.nn.Module | None = None, optimizer: torch.optim.Optimizer | None = None, **kwargs: Any
    ) -> None:
        values = {"model": model, "optimizer": optimizer, **kwargs}
        kinds = {name: handler_for(value) for name, value in values.items()}
        plain = {name: value for name, value in values.items() if kinds[name] is None}
        self._handlers: dict[str, Any] = {}
        super().__init__(bcast_object=broadcast_object, get_rank=rank, **plain)
        handled = {name: kind for name, kind in kinds.items() if kind is not None}
        self._check_names(handled)
        for name, kind in handled.items():
            self._handlers[name] = kind(values[name])
            object.__setattr__(self, name, values[name])

    def __setattr__(self, name: str, value: Any) -> None:
        attributes = vars(self)
        if name in attributes.get("_handlers", ()) or name in attributes.get("_saved_state", ()):
            self._hand_over(name, value)
        super().__setattr__(name, value)

    def _hand_over(self, name: str, value: Any) -> None:
        """A part of the state gets a new value, perhaps one that is saved in another way."""
        handler = self._handlers.get(name)
        kind = handler_for(value)
        fits = handler is not None and type(handler) is kind
        if kind is None:
            if handler is not None:
                self._saved_state.update(self._copied({name: value}))
                del self._handlers[name]
        elif handler is not None and fits:
            handler.set_value(value)
        else:
            self._handlers[name] = kind(value)
            self._saved_state.pop(name, None)

    def save(self) -> None:
        """Copies everything; when one part can't be copied, all keep what was saved last."""
        before = [(handler, dict(vars(handler))) for handler in self._handlers.values()]
        try:
            for handler, _ in before:
                handler.save()
            super().save()
        except BaseException:
            for handler, attributes in before:
                vars(handler).clear()
                vars(handler).update(attributes)
            raise

    def restore(self) -> None:
        """Brings back what was saved last, in the same models, optimizers and samplers."""
        for handler in self._handlers.values():
            handler.restore()
        super().restore()

    def sync(self) -> None:
        """Makes everything rank 0's, as it is now, and saves it."""
        for handler in self._handlers.values():
            handler.sync()
        super().sync()

    def reset(self) -> None:
        """Divides what is left of the samples among the ranks that there are now."""
        for handler in self._handlers.values():
            reset = getattr(handler, "reset", None)
            if reset is not None:
                reset()
