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

_OWN = frozenset({"_compression", "_original", "_parameter_names", "backward_passes_per_step"})


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
        self.backward_passes_per_step = passes

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        other: Any = self.__class__.__new__(self.__class__)
        memo[id(self)] = other
        plain = copy_wrapped(self, memo, _OWN)
        names = copy.deepcopy(self._parameter_names, memo)
        _DistributedAdasumOptimizer.__init__(other, plain, names, self._compression, self.backward_passes_per_step)
        return other

    def __copy__(self) -> NoReturn:
        refuse_to_copy(self)

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        refuse_to_pickle(self)

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """As in torch; a GradScaler that finds a gradient that is not finite finds one on all ranks."""
        groups: list[dict[str, Any]] = self.__dict__["param_groups"]
        if is_scaler_asking():
            _agree_on_finite([p for group in groups for p in group["params"]])
        return groups

    @param_groups.setter
    def param_groups(self, groups: list[dict[str, Any]]) -> None:
        self.__dict__["param_groups"] = groups

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
        parameters = [p for group in self.param_groups for p in group["params"] if p.requires_grad]
        note_step(self._original)
        with torch.no_grad():
            before = [parameter.clone() for parameter in parameters]
            with torch.enable_grad():
                loss = self._wrapped.step(self, closure) if closure is not None else self._wrapped.step(self)
            self._combine(parameters, before)
        return loss

    def _combine(self, parameters: list[torch.Tensor], before: list[torch.Tensor]) -> None:
        started = []
        for index, (parameter, old) in enumerate(zip(parameters, before, strict=True)):
            change, context = self._compression.compress(parameter - old)
            name = f"adasum.{self._parameter_names.get(parameter, index)}"
            started.append((allreduce_async_(change, name=name, op=int(ReduceOp.ADASUM)), context))
        for parameter, old, (handle, context) in zip(parameters, before, started, strict=True):
            parameter.copy_(old + self._compression.decompress(synchronize(handle), context))


def _agree_on_finite(parameters: list[torch.Tensor]) -> None:
    """Where some rank's gradients are not finite, makes one of this rank's so: then all of them skip the step."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    bad = torch.tensor(not all(bool(torch.isfinite(_values(g)).all()) for g in gradients), device="cpu")
    anywhere = synchronize(allreduce_async_(bad.clone(), name="adasum.not_finite", op=int(ReduceOp.MAX)))
    if anywhere and not bad and gradients:
        with torch.no_grad():
            _values(gradients[0]).fill_(float("inf"))


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
