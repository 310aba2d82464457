"""DistributedOptimizer for Keras 3: any Keras optimizer, with gradients reduced over the ranks before each update.

The optimizer itself becomes distributed: its state, variables and identity stay, only its class is put under another
one.  Keras saves it under the class that it had, so a saved model can be loaded without Horovod.

Where it reduces: after gradients were accumulated and unscaled, before they are clipped.  An optimizer that holds
others (LossScaleOptimizer) decides by what it sees in the gradients: there they are reduced before it sees them.
Whichever of two is wrapped, the outer one reduces; ranks that decided alone would wait for each other.
"""

from __future__ import annotations

import importlib
import sys
import warnings
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import keras

from horovod._keras.accumulation import Accumulation
from horovod._keras.backends import backend_name, divided, eagerly, reducer, unconverted
from horovod.common.array_signatures import require_client
from horovod.common.exceptions import HorovodInternalError, UsageError
from horovod.common.gradients import GradientSettings, Groups, kind_of, reduces
from horovod.common.objects import allgather_pickled

__all__ = [
    "OptimizerSettings",
    "distribute",
    "is_distributed",
    "is_same_variable",
    "let_keras_accumulate",
    "passes_variables",
]


@dataclass(frozen=True, slots=True)
class OptimizerSettings:
    """How one optimizer reduces."""

    gradients: GradientSettings
    groups: Any = None
    passes: int = 1
    average_aggregated: bool = False
    scale_local: bool = True


@dataclass(slots=True)
class _State:
    """What a distributed optimizer remembers."""

    variables: Sequence[Any] = ()
    local: list[Any] = field(default_factory=list)
    is_inner: bool = False
    checked: bool = False
    has_reduced: bool = False
    accumulation: Accumulation | None = None


def is_same_variable(one: Any, other: Any) -> bool:
    """Whether both are one variable: Keras's own, or the framework's inside of it."""
    return one is other or getattr(one, "value", one) is other or getattr(other, "value", other) is one


class _Distributed:
    """The methods that are put over the optimizer's class."""

    _hvd_settings: OptimizerSettings
    _hvd_wrapped: type

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        # Keras saves an object under this class, and finds the original without Horovod; type() tells the truth.
        return self._hvd_wrapped

    def _hvd(self) -> _State:
        # Past the optimizer's own tracking of attributes: this is no part of what is saved.
        state: _State = self.__dict__.setdefault("_hvd_state", _State())
        return state

    @property
    def _agg_helper(self) -> Accumulation | None:
        """What sums up the gradients of several passes; its ``counter`` has the passes since the last step."""
        state, settings = self._hvd(), self._hvd_settings
        if state.accumulation is None and settings.passes > 1 and backend_name() != "jax":
            state.accumulation = Accumulation(settings.passes, settings.average_aggregated)
        return state.accumulation

    def register_local_var(self, var: Any) -> None:
        """The gradient of this variable stays on this rank, divided by the set's size where that is asked for."""
        self._hvd().local.append(var)

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "loss_scale_factor" and value is None:
            # A LossScaleOptimizer takes this one in (model.compile does so by itself for mixed_float16).
            caller = sys._getframe(1).f_locals.get("self")
            if isinstance(caller, keras.optimizers.LossScaleOptimizer) and caller is not self:
                self._hvd().is_inner = True
                distribute(caller, self._hvd_settings)
                caller._hvd().local = self._hvd().local

    @unconverted
    def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
        """As in Keras, with gradients reduced first."""
        state, settings = self._hvd(), self._hvd_settings
        if state.is_inner:
            return super().apply(grads, trainable_variables)  # type: ignore[misc]
        grads = list(grads)
        variables = list(self._trainable_variables if trainable_variables is None else trainable_variables)  # type: ignore[attr-defined]
        if not state.checked and variables:
            state.checked = True
            _compare_starts(variables, settings.gradients, self._iterations)  # type: ignore[attr-defined]
        helper = self._agg_helper
        if helper is None or not grads:
            return self._hvd_apply(grads, variables)
        if not self.built:  # type: ignore[attr-defined]
            with eagerly():
                self.build(variables)  # type: ignore[attr-defined]
        # One pass of several: sums up, and applies with the last one.
        helper.add(grads, variables, self._hvd_apply)
        return None

    def stateless_apply(self, optimizer_variables: Any, grads: Any, trainable_variables: Any) -> Any:
        """As in Keras; a LossScaleOptimizer decides here, without ``apply``, by gradients that are reduced already."""
        if hasattr(self, "inner_optimizer") and not self._hvd().is_inner:
            grads = self._hvd_reduce(list(grads), self._trainable_variables)  # type: ignore[attr-defined]
        return super().stateless_apply(optimizer_variables, grads, trainable_variables)  # type: ignore[misc]

    def _hvd_apply(self, grads: list[Any], variables: list[Any]) -> None:
        state = self._hvd()
        if not variables:
            return super().apply(grads)  # type: ignore[misc,no-any-return]
        if _holds_others(self) or not hasattr(super(), "_clip_gradients"):
            grads = self._hvd_reduce(grads, variables)
            return super().apply(grads, variables)  # type: ignore[misc,no-any-return]
        state.has_reduced = False
        super().apply(grads, variables)  # type: ignore[misc]
        if not state.has_reduced and not self.gradient_accumulation_steps and reduces(self._hvd_settings.gradients):  # type: ignore[attr-defined]
            raise HorovodInternalError(
                f"{self._hvd_wrapped.__name__}.apply() updated variables by gradients that were not averaged: its class "
                "does not clip gradients where Keras does. Average them with hvd.DistributedGradientTape instead."
            )
        return None

    def _backend_apply_gradients(self, grads: Any, trainable_variables: Any) -> Any:
        self._hvd().variables = list(trainable_variables)
        return super()._backend_apply_gradients(grads, trainable_variables)  # type: ignore[misc]

    def _clip_gradients(self, grads: Any) -> Any:
        state = self._hvd()
        if not state.is_inner and not _holds_others(self):
            state.has_reduced = True
            grads = self._hvd_reduce_if_due(list(grads), state.variables)
        settings = self._hvd_settings
        if settings.passes > 1 and not settings.average_aggregated and backend_name() == "jax":
            grads = [grad * settings.passes for grad in grads]  # Keras has averaged them
        return super()._clip_gradients(grads)  # type: ignore[misc]

    def _hvd_reduce_if_due(self, grads: list[Any], variables: Sequence[Any]) -> list[Any]:
        # On jax, Keras takes the same way in all passes, and leaves the variables alone in those before the last.
        passes = self.gradient_accumulation_steps  # type: ignore[attr-defined]
        if not passes or backend_name() != "jax" or not reduces(self._hvd_settings.gradients):
            return self._hvd_reduce(grads, variables)
        due = (keras.ops.convert_to_tensor(self._iterations) + 1) % passes == 0  # type: ignore[attr-defined]
        only_if = importlib.import_module("horovod._keras.jax_gradients").only_if
        return list(only_if(due, lambda given: self._hvd_reduce(given, variables), grads))

    def _hvd_reduce(self, grads: list[Any], variables: Sequence[Any]) -> list[Any]:
        settings = self._hvd_settings
        if not reduces(settings.gradients):
            return grads
        is_local = [any(is_same_variable(v, local) for local in self._hvd().local) for v in variables]
        shared = [position for position, local in enumerate(is_local) if not local]
        names = [str(getattr(variables[p], "path", variables[p].name)) for p in shared]
        groups = _by_position(settings.groups, [variables[p] for p in shared])
        reduced = reducer()([grads[p] for p in shared], names, settings.gradients, groups)
        results = list(grads)
        for position, grad in zip(shared, reduced, strict=True):
            results[position] = grad
        members = (settings.gradients.process_set.size() or 1) if settings.scale_local else 1
        for position, grad in enumerate(grads):
            if is_local[position]:
                results[position] = divided(grad, members)
        return results


def _holds_others(optimizer: Any) -> bool:
    return hasattr(optimizer, "inner_optimizer") or hasattr(type(optimizer), "optimizers")


def _by_position(groups: Any, variables: Sequence[Any]) -> Groups:
    if groups is None or isinstance(groups, int):
        return groups
    return [
        [p for p, variable in enumerate(variables) if any(is_same_variable(variable, member) for member in group)]
        for group in groups
    ]


def _compare_starts(variables: Sequence[Any], settings: GradientSettings, iterations: Any) -> None:
    """Once, before the first update: ranks that start with different weights never get equal ones by averaging."""
    if not reduces(settings):
        return

    def compare(arrays: Sequence[Any]) -> None:
        mine = 0
        for array in arrays:
            mine = zlib.crc32(array.tobytes(), mine)
        if len(set(allgather_pickled(require_client(), mine, "gradients.start", settings.process_set))) > 1:
            _warn_of_different_starts()

    if backend_name() == "jax":
        values = [keras.ops.convert_to_tensor(variable) for variable in variables]
        once = importlib.import_module("horovod._keras.jax_gradients").call_host_once
        once(compare, values, keras.ops.convert_to_tensor(iterations))
        return
    with eagerly():
        try:
            compare([keras.ops.convert_to_numpy(variable) for variable in variables])
        except NotImplementedError:
            return  # variables that a traced function gets as arguments have no values yet


def _warn_of_different_starts() -> None:
    warnings.warn(
        "The ranks' weights differ before the first update, and averaging gradients does not make them equal. Give "
        "hvd.callbacks.BroadcastGlobalVariablesCallback(0) to fit(), or call hvd.broadcast_variables(variables, 0) "
        "before the first step (after it is too late for that step only: then this can be ignored).",
        RuntimeWarning,
        stacklevel=4,
    )


def is_distributed(optimizer: Any) -> bool:
    """Whether it reduces its gradients already."""
    return issubclass(type(optimizer), _Distributed)


def passes_variables(optimizer: Any) -> list[Any]:
    """Where a distributed optimizer sums up gradients of several passes, once it has begun to."""
    accumulation = optimizer._hvd().accumulation if is_distributed(optimizer) else None
    return [] if accumulation is None else accumulation.variables


def _check(optimizer: Any) -> None:
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise UsageError(f"DistributedOptimizer wraps a Keras optimizer, not {kind_of(optimizer)}.")
    if is_distributed(optimizer):
        raise UsageError("This optimizer is a DistributedOptimizer already; wrapping it twice would reduce twice.")
    inner = getattr(optimizer, "inner_optimizer", None)
    if inner is not None and is_distributed(inner) and not inner._hvd().is_inner:
        raise UsageError("The inner optimizer is a DistributedOptimizer already; wrapping both would reduce twice.")


def let_keras_accumulate(optimizer: Any, passes: int) -> None:
    """On jax, whose steps keep no sums of ours: the optimizer has the sums of several passes among its variables."""
    _check(optimizer)
    if _holds_others(optimizer):
        raise UsageError(
            "backward_passes_per_step on the jax backend: wrap the inner optimizer, and give the distributed one to "
            f"{kind_of(optimizer)}."
        )
    if optimizer.built or optimizer.gradient_accumulation_steps:
        raise UsageError(
            "backward_passes_per_step on the jax backend: wrap an optimizer that has not been used, and that has no "
            "gradient_accumulation_steps of its own."
        )
    optimizer.gradient_accumulation_steps = passes


def distribute(optimizer: Any, settings: OptimizerSettings) -> Any:
    """Makes this optimizer a distributed one, and returns it."""
    _check(optimizer)
    wrapped = type(optimizer)
    body = {
        "_hvd_settings": settings, "_hvd_wrapped": wrapped, "__module__": wrapped.__module__,
        "__qualname__": wrapped.__qualname__, "__doc__": wrapped.__doc__,
    }  # fmt: skip
    object.__setattr__(optimizer, "__class__", type(wrapped.__name__, (_Distributed, wrapped), body))
    return optimizer
