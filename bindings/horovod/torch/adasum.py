"""The optimizer for op=Adasum: ranks step on their own, and what their steps changed is combined.

Adasum combines updates, not gradients, so that the wrapped optimizer's rule (momentum, second moments) is applied before
the combination.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NoReturn

import torch

from horovod.common.types import ReduceOp
from horovod.torch.compression import Compressor
from horovod.torch.copies import copy_wrapped, refuse_to_copy, refuse_to_pickle
from horovod.torch.loss_scaling import is_scaler_asking
from horovod.torch.originals import note_step, share_state
from horovod.torch.parameters import check_passes
from horovod.torch.pending import synchronize
from horovod.torch.reduce_ops import allreduce_async_

__all__ = ["make_adasum_optimizer"]

_OWN = frozenset({"_combined", "_compression", "_original", "_parameter_names", "backward_passes_per_step"})


class _DistributedAdasumOptimizer(torch.optim.Optimizer):
    """The methods that are put over the wrapped optimizer's class; ``_wrapped`` is that class."""

    _wrapped: type[torch.optim.Optimizer]

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        names: dict[torch.Tensor, str],
        compression: type[Compressor],
        passes: int,
    ) -> None:
        self.__dict__.update({k: v for k, v in optimizer.__dict__.items() if k != "step"})
        self._original = optimizer
        self._parameter_names = names
        self._compression = compression
        self._combined: dict[torch.Tensor, None] = {}  # a set of them, in the order in which they came
        self._find_combined()
        self.backward_passes_per_step = passes

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        other: Any = self.__class__.__new__(self.__class__)
        memo[id(self)] = other
        plain = copy_wrapped(self, memo, _OWN)
        names = copy.deepcopy(self._parameter_names, memo)
        _DistributedAdasumOptimizer.__init__(other, plain, names, self._compression, self.backward_passes_per_step)
        other._combined = copy.deepcopy(self._combined, memo)
        return other

    def __copy__(self) -> NoReturn:
        refuse_to_copy(self)

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        refuse_to_pickle(self)

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """As in torch; a GradScaler that finds a gradient, or one that is not finite, finds one on all ranks."""
        groups: list[dict[str, Any]] = self.__dict__["param_groups"]
        if is_scaler_asking():
            return self._with_others(groups)
        return groups

    @param_groups.setter
    def param_groups(self, groups: list[dict[str, Any]]) -> None:
        self.__dict__["param_groups"] = groups

    def _with_others(self, groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The groups with a parameter that stands for the other ranks': its gradient is infinite if one of theirs is not finite.

        Then all ranks skip the step or none does, also a rank that has no gradients, where a scaler refuses to step.
        """
        parameters = [parameter for group in groups for parameter in group["params"]]
        gradients = [p.grad for p in parameters if p.grad is not None]
        is_bad = not all(bool(torch.isfinite(_values(g)).all()) for g in gradients)
        mine = torch.tensor([is_bad, bool(gradients)], device="cpu")
        anywhere = synchronize(allreduce_async_(mine, name="adasum.not_finite", op=int(ReduceOp.MAX)))
        is_bad_somewhere, has_any = anywhere.tolist()
        if not has_any:
            return groups
        others = torch.zeros(1, device=parameters[0].device)
        others.grad = torch.full_like(others, float("inf") if is_bad_somewhere else 0.0)
        return [*groups, {"params": [others]}]

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Kept for compatibility: gradients are summed until ``step``, however many passes there are."""
        check_passes(passes)
        self.backward_passes_per_step = passes

    def synchronize(self) -> None:
        """Nothing to wait for: updates are combined in ``step``."""

    def skip_synchronize(self) -> AbstractContextManager[None]:
        """Raises AssertionError: combination is part of the step."""
        raise AssertionError("Skipping synchronization is not supported when using Adasum optimizer.")

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As in torch."""
        self._wrapped.load_state_dict(self, state_dict)
        share_state(self, self._original)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Steps, then replaces each parameter's change by the combination of all ranks' changes."""
        parameters = self._find_combined()
        note_step(self._original)
        with torch.no_grad():
            before = [parameter.clone() for parameter in parameters]
            with torch.enable_grad():
                loss = self._wrapped.step(self, closure) if closure is not None else self._wrapped.step(self)
            self._combine(parameters, before)
        return loss

    def _find_combined(self) -> list[torch.Tensor]:
        """Parameters that need gradients or once did: torch goes on to step with what a frozen one has left."""
        everything = [parameter for group in self.param_groups for parameter in group["params"]]
        self._combined.update(dict.fromkeys(p for p in everything if p.requires_grad))
        return [parameter for parameter in everything if parameter in self._combined]

    def _combine(self, parameters: list[torch.Tensor], before: list[torch.Tensor]) -> None:
        started = []
        for index, (parameter, old) in enumerate(zip(parameters, before, strict=True)):
            change, context = self._compression.compress(parameter - old)
            name = f"adasum.{self._parameter_names.get(parameter, index)}"
            started.append((allreduce_async_(change, name=name, op=int(ReduceOp.ADASUM)), context))
        for parameter, old, (handle, context) in zip(parameters, before, started, strict=True):
            parameter.copy_(old + self._compression.decompress(synchronize(handle), context))


def _values(gradient: torch.Tensor) -> torch.Tensor:
    return gradient._values() if gradient.layout is torch.sparse_coo else gradient


def make_adasum_optimizer(
    optimizer: torch.optim.Optimizer,
    names: dict[torch.Tensor, str],
    compression: type[Compressor],
    passes: int,
    subclass: Callable[[type[torch.optim.Optimizer], type], type[Any]],
) -> Any:
    """Wraps the optimizer."""
    return subclass(type(optimizer), _DistributedAdasumOptimizer)(optimizer, names, compression, passes)
