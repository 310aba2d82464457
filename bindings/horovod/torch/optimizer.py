"""DistributedOptimizer: any torch optimizer, with gradients reduced over the ranks before each step.

The result has the class name of what it wraps and inherits from its class; options, parameter groups and state are the
wrapped optimizer's own.  With one rank, or outside the process set, it behaves like the wrapped optimizer.
"""

from __future__ import annotations

import copy
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

import torch

from horovod.common import basics
from horovod.common.exceptions import HorovodInternalError, UsageError
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.common.types import ReduceOp
from horovod.torch.adasum import make_adasum_optimizer
from horovod.torch.compression import Compression, Compressor, check_compression
from horovod.torch.copies import copy_wrapped, refuse_to_copy, refuse_to_pickle
from horovod.torch.loss_scaling import is_scaler_asking
from horovod.torch.originals import note_step, share_state
from horovod.torch.parameters import check_groups, check_passes, name_parameters
from horovod.torch.pending import require_client
from horovod.torch.reducer import Reducer
from horovod.torch.settings import Settings

__all__ = ["DistributedOptimizer"]

_NOT_COPIED = frozenset({"step", "zero_grad", "_opt_called"})
_NOT_COMPILED = frozenset({"_combine", "_step_with", "_with_others", "synchronize"})
_OWN = frozenset(
    {
        "_by_scaler", "_hooks", "_original", "_parameter_names", "_reducer", "_should_synchronize", "_synchronized", "_warned",
    }
)  # fmt: skip


class _DistributedOptimizer(torch.optim.Optimizer):
    """The methods that are put over the wrapped optimizer's class; ``_wrapped`` is that class."""

    _wrapped: type[torch.optim.Optimizer]

    def __init__(self, optimizer: torch.optim.Optimizer, names: dict[torch.Tensor, str], settings: Settings) -> None:
        self._wrap(optimizer, names, settings)
        if self._reduces():
            self._reducer.use_client()
        self._register_hooks()

    def _wrap(self, optimizer: torch.optim.Optimizer, names: dict[torch.Tensor, str], settings: Settings) -> None:
        # An instance attribute such as a scheduler's wrapper of step() belongs to the wrapped object.
        self.__dict__.update({k: v for k, v in optimizer.__dict__.items() if k not in _NOT_COPIED})
        self._original = optimizer
        self._parameter_names = names
        self._reducer = Reducer(settings)
        self._hooks: list[Any] = []
        self._synchronized = False
        self._by_scaler = False
        self._should_synchronize = True
        self._warned = False

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        other: _DistributedOptimizer = self.__class__.__new__(self.__class__)
        memo[id(self)] = other
        plain = copy_wrapped(self, memo, _OWN)
        other._wrap(plain, copy.deepcopy(self._parameter_names, memo), self._reducer.settings.copy(memo))
        with suppress(HorovodInternalError):  # after shutdown; the next step registers them
            other._register_hooks()
        return other

    def __copy__(self) -> NoReturn:
        refuse_to_copy(self)

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        refuse_to_pickle(self)

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """As in torch; a GradScaler finds the gradients reduced, so that all ranks take or skip the same steps."""
        if is_scaler_asking() and not self._synchronized and self._should_synchronize:
            self.synchronize()
            self._by_scaler = True
        groups: list[dict[str, Any]] = self.__dict__["param_groups"]
        return groups

    @param_groups.setter
    def param_groups(self, groups: list[dict[str, Any]]) -> None:
        self.__dict__["param_groups"] = groups

    def _reduces(self) -> bool:
        """Whether there is anybody to reduce with."""
        client = require_client()
        ranks = self._reducer.settings.process_set.ranks
        return client.size > 1 and (ranks is None or client.rank in ranks)

    def _register_hooks(self) -> None:
        """Watches parameters that need gradients and are not watched yet."""
        if not self._reduces():
            return
        for group_index, group in enumerate(self.param_groups):
            for index, parameter in enumerate(group["params"]):
                if parameter.requires_grad and not self._reducer.has(parameter):
                    self._watch(parameter, f"allreduce.noname.{group_index}.{index}")

    def _watch(self, parameter: torch.Tensor, default_name: str) -> None:
        name = self._parameter_names.setdefault(parameter, default_name)
        self._reducer.add(parameter, name)
        self._hooks.append(parameter.register_post_accumulate_grad_hook(_make_hook(self)))

    def set_backward_passes_per_step(self, passes: int) -> None:
        """From now on gradients are reduced in every ``passes``-th backward pass."""
        check_passes(passes)
        self._end_step_early()
        self._reducer.settings.passes = passes

    def synchronize(self) -> None:
        """Waits until all gradients are reduced; those that are missing on this rank count as zeros.

        Raises HorovodInternalError when ranks disagree or one is lost, ValueError when a gradient was changed after it
        was handed over.
        """
        if self._reduces():
            self._register_hooks()
            self._reducer.finish()
        self._synchronized = True

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Inside, ``step`` does not synchronize: for use after ``synchronize``."""
        self._should_synchronize = False
        try:
            yield
        finally:
            self._should_synchronize = True

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Synchronizes, then steps.  Gradients that a closure computes are synchronized after each call of it."""
        if closure is not None:
            return self._step_with(closure)
        if self._should_synchronize:
            self._synchronize_once()
        self._synchronized = self._by_scaler = False
        note_step(self._original)
        return self._wrapped.step(self)

    def _step_with(self, closure: Callable[[], Any]) -> Any:
        is_reduced = self._reducer.is_pending()
        if is_reduced:
            self.synchronize()
        note_step(self._original)

        def evaluate() -> Any:
            nonlocal is_reduced
            self._synchronized, is_reduced = is_reduced, False
            with torch.enable_grad():
                loss = closure()
            # Not where the closure has done so (it clips), or computes nothing after a backward pass before the step.
            if self._should_synchronize and not self._synchronized:
                self.synchronize()
            return loss

        result = self._wrapped.step(self, evaluate)
        self._synchronized = self._by_scaler = False
        return result

    def _synchronize_once(self) -> None:
        if not self._synchronized:
            self.synchronize()
        elif not self._warned and not self._by_scaler:
            self._warned = True
            warnings.warn(
                "optimizer.step() called without optimizer.skip_synchronize() context after optimizer.synchronize(). "
                "The gradients are reduced already and are not reduced again; write "
                "`with optimizer.skip_synchronize(): optimizer.step()` to say that this is meant.",
                stacklevel=3,
            )

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As in torch; AssertionError between backward() and step() or synchronize()."""
        if self._reducer.is_pending():
            raise AssertionError(
                "optimizer.zero_grad() was called after loss.backward() but before optimizer.step() or "
                "optimizer.synchronize(). This is prohibited as it can cause a race condition: the gradients are being "
                "reduced. Call step() or synchronize() first; zero_grad() belongs before backward()."
            )
        self._wrapped.zero_grad(self, set_to_none)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As in torch; between backward() and step(), which all ranks must do then, the gradients are reduced first."""
        self._end_step_early()
        self._wrapped.load_state_dict(self, state_dict)
        share_state(self, self._original)

    def _end_step_early(self) -> None:
        """Finishes what was handed over: rounds that were left open would meet gradients of a later step elsewhere."""
        self._synchronized = self._by_scaler = False
        if self._reducer.is_pending():
            with suppress(HorovodInternalError, UsageError):  # the epoch has ended, or the gradients are not wanted
                self._reducer.finish()
                self._synchronized = self._by_scaler = True
        self._reducer.forget_step()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As in torch; the new parameters are reduced from the next backward pass on."""
        self._wrapped.add_param_group(self, param_group)
        self._register_hooks()


def _make_hook(optimizer: _DistributedOptimizer) -> Callable[[torch.Tensor], None]:
    """A hook that does not keep the optimizer alive: a model may outlive it and get another one."""
    reference = weakref.ref(optimizer)

    def hook(parameter: torch.Tensor) -> None:
        alive = reference()
        if alive is not None:
            alive._synchronized = alive._by_scaler = False
            alive._reducer.arrive(parameter)

    return hook


def _subclass(wrapped: type[torch.optim.Optimizer], methods: type) -> type[Any]:
    """A class named like ``wrapped`` and derived from it, with these methods over its own.

    Those that reduce stay as they are where torch compiles a function that steps.
    """
    body = {key: value for key, value in methods.__dict__.items() if key not in ("__dict__", "__weakref__", "__doc__")}
    for key in _NOT_COMPILED & body.keys():
        body[key] = torch.compiler.disable(body[key])
    return type(wrapped.__name__, (wrapped,), {**body, "_wrapped": wrapped, "__doc__": wrapped.__doc__})


def _check_arguments(optimizer: object, op: int, predivide: Any, passes: Any, compression: Any) -> None:
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise UsageError(f"DistributedOptimizer wraps a torch.optim.Optimizer, not {type(optimizer).__name__}.")
    check_compression(compression, "DistributedOptimizer")
    if isinstance(predivide, str) or not hasattr(predivide, "__float__"):
        raise UsageError(f"gradient_predivide_factor must be a number above 0, not {predivide!r}.")
    if hasattr(optimizer, "_wrapped"):
        raise UsageError("This optimizer is a DistributedOptimizer already; wrapping it twice would reduce twice.")
    if predivide != 1.0 and op != ReduceOp.AVERAGE:
        raise UsageError("gradient_predivide_factor not supported with op != Average")
    if predivide <= 0:
        raise UsageError(f"gradient_predivide_factor must be above 0, not {predivide}.")
    check_passes(passes)


def _choose_groups(num_groups: int, groups: Any) -> Any:
    if num_groups:
        warnings.warn("Parameter `num_groups` is deprecated, use `groups` instead.", DeprecationWarning, stacklevel=3)
        if groups is None:
            if num_groups < 0:
                raise UsageError("num_groups must be a non-negative integer")
            return num_groups
    return groups


def DistributedOptimizer(
    optimizer: torch.optim.Optimizer,
    named_parameters: Any = None,
    compression: type[Compressor] = Compression.none,
    backward_passes_per_step: int = 1,
    op: int = int(ReduceOp.AVERAGE),
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[torch.Tensor]] | None = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """The optimizer, with gradients reduced over all ranks before each step.

    ``named_parameters`` gives names for messages.  Gradients of ``backward_passes_per_step`` passes are summed here and
    then reduced with ``op``.  ``groups``: lists of parameters, or how many lists, that are reduced together.  Raises
    ValueError for arguments that contradict each other.
    """
    _check_arguments(optimizer, op, gradient_predivide_factor, backward_passes_per_step, compression)
    names = name_parameters(optimizer, named_parameters)
    groups = check_groups(_choose_groups(num_groups, groups))
    size = basics.client().size
    if op == ReduceOp.ADASUM and size > 1:
        if process_set.process_set_id != 0:
            raise NotImplementedError("Adasum does not support non-global process sets yet.")
        return make_adasum_optimizer(optimizer, names, compression, backward_passes_per_step, _subclass)
    settings = Settings(
        compression, op, gradient_predivide_factor, backward_passes_per_step, groups, sparse_as_dense, process_set
    )
    return _subclass(type(optimizer), _DistributedOptimizer)(optimizer, names, settings)
