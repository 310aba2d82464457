"""Batch normalization over the batches of all ranks together.

Each rank publishes count, mean and sum of squared deviations of its batch, all of them combine these in fp64 in the order
of ranks, so every rank normalizes with the same bits; a rank may have a smaller batch than others, or none.  Statistics
are combined on the host, whatever device the batch is on: they pass there anyway, and some devices have no fp64.  Operations
carry a number of their layer, which it takes when it first meets other ranks: layers that are built and never used shift
nothing.
"""

from __future__ import annotations

import itertools
import weakref
from typing import Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from horovod.common import basics
from horovod.common.exceptions import UsageError
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.common.types import ReduceOp
from horovod.torch.gather_ops import allgather_async
from horovod.torch.pending import require_client, synchronize
from horovod.torch.reduce_ops import allreduce_async_

__all__ = ["SyncBatchNorm"]

_numbers: weakref.WeakKeyDictionary[torch.nn.Module, int] = weakref.WeakKeyDictionary()
_next_number = itertools.count()


def _number_anew() -> None:
    """In a new epoch all ranks count from 0, those that were there before too."""
    global _next_number
    _numbers.clear()
    _next_number = itertools.count()


basics.on_new_epoch(_number_anew)


def _dimensions(tensor: torch.Tensor) -> list[int]:
    """All but the channels'."""
    return [d for d in range(tensor.dim()) if d != 1]


def _along_channels(values: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return values.to(_exact(like)).to(like.device).view([1, -1] + [1] * (like.dim() - 2))


def _exact(tensor: torch.Tensor) -> torch.dtype:
    """What statistics of a tensor are computed in."""
    return torch.promote_types(tensor.dtype, torch.float32)


def _local_statistics(tensor: torch.Tensor) -> torch.Tensor:
    """Mean and sum of squared deviations of each channel, and the count, in one row on the host."""
    channels = tensor.shape[1]
    count = tensor.numel() // channels if channels else 0
    if not count:
        return torch.zeros(2 * channels + 1, dtype=torch.float64, device="cpu")
    variance, mean = (
        torch.stack(torch.var_mean(tensor.to(_exact(tensor)), _dimensions(tensor), correction=0)).cpu().double()
    )
    return torch.cat([mean, variance * count, mean.new_tensor([count])])


def _combine(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Mean, biased variance and count of all ranks' values."""
    means, deviations = rows[:, :-1].chunk(2, dim=1)
    counts = rows[:, -1:]
    total = counts.sum()
    mean = (counts * means).sum(0) / total
    return mean, (deviations + counts * (means - mean) ** 2).sum(0) / total, total


class _Normalize(torch.autograd.Function):
    """Normalizes with statistics of all ranks; the gradient accounts for this rank's part in them everywhere."""

    @staticmethod
    def forward(
        ctx: Any,
        tensor: torch.Tensor,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        eps: float,
        name: str,
        group: ProcessSet,
    ) -> Any:
        rows = synchronize(allgather_async(_local_statistics(tensor).unsqueeze(0), f"{name}.statistics", group))
        mean, variance, total = _combine(rows)
        if total <= 1:
            raise ValueError(
                f"Expected more than 1 value per channel when training, got {int(total)} on all ranks together "
                f"(input size {list(tensor.shape)} on this rank)."
            )
        scale = torch.rsqrt(variance + eps)
        ctx.save_for_backward(tensor, weight, bias, mean, scale, total)
        ctx.name, ctx.group = name, group
        output = (tensor - _along_channels(mean, tensor)) * _along_channels(scale, tensor)
        if weight is not None:
            output = output * _along_channels(weight, tensor)
        if bias is not None:
            output = output + _along_channels(bias, tensor)
        ctx.mark_non_differentiable(mean, variance, total)
        return output.to(tensor.dtype), mean, variance, total

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: torch.Tensor, *_: Any) -> Any:
        tensor, weight, bias, mean, scale, total = ctx.saved_tensors
        grad, centered = grad.to(_exact(tensor)), tensor - _along_channels(mean, tensor)
        sums = torch.stack([grad.sum(_dimensions(tensor)), (grad * centered).sum(_dimensions(tensor))]).cpu().double()
        of_bias, of_weight = sums[0], sums[1] * scale
        # Also where this rank's input needs no gradient: another rank's may.
        everywhere = sums.clone()
        synchronize(
            allreduce_async_(everywhere, None, f"{ctx.name}.gradients", int(ReduceOp.SUM), process_set=ctx.group)
        )
        grad_mean, along = everywhere[0] / total, everywhere[1] * scale**2 / total
        of_input = grad - _along_channels(grad_mean, tensor) - centered * _along_channels(along, tensor)
        of_input = of_input * _along_channels(scale if weight is None else scale * weight.cpu(), tensor)
        return (
            of_input.to(tensor.dtype),
            None if weight is None else of_weight.to(weight.dtype).to(weight.device),
            None if bias is None else of_bias.to(bias.dtype).to(bias.device),
            None,
            None,
            None,
        )


class SyncBatchNorm(_BatchNorm):
    """``torch.nn.BatchNorm`` over the batches of all ranks of the set, for inputs of any number of dimensions from 2 on.

    Weight and bias get the gradient of this rank's loss, as other parameters do: the optimizer reduces them.  In
    evaluation, alone and outside the set it is the plain layer.  Raises ValueError when all ranks together have no more
    than one value for each channel.
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats)
        # A copy of the layer must not hold a copy of the global set.
        self._process_set = None if process_set is global_process_set else process_set

    @property
    def process_set(self) -> ProcessSet:
        """Whose batches are put together."""
        return self._process_set or global_process_set

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"expected at least 2D input (got {input.dim()}D input)")
        if input.shape[1] != self.num_features:
            raise ValueError(f"expected {self.num_features} channels, got input of size {list(input.shape)}")

    def _is_alone(self) -> bool:
        client = require_client()
        ranks = self.process_set.ranks or range(client.size)
        return client.rank not in ranks or len(ranks) == 1

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """The normalized tensor; in training, running statistics are those of the joined batch."""
        self._check_input_dim(input)
        uses_batch = self.training or (self.running_mean is None and self.running_var is None)
        if not uses_batch or self._is_alone():
            return super().forward(input)
        if self not in _numbers:
            _numbers[self] = next(_next_number)
        name = f"sync_batch_norm.{_numbers[self]}"
        output, mean, variance, total = _Normalize.apply(
            input, self.weight, self.bias, self.eps, name, self.process_set
        )
        if self.training and self.track_running_stats:
            self._track(mean, variance * (total / (total - 1)))
        result: torch.Tensor = output
        return result

    @torch.no_grad()
    def _track(self, mean: torch.Tensor, variance: torch.Tensor) -> None:
        factor = 0.0 if self.momentum is None else self.momentum
        if self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            if self.momentum is None:
                factor = 1.0 / float(self.num_batches_tracked)
        for running, seen in ((self.running_mean, mean), (self.running_var, variance)):
            if running is not None:
                running.mul_(1 - factor).add_(seen.to(running.dtype).to(running.device), alpha=factor)

    @classmethod
    def convert_sync_batchnorm(
        cls, module: torch.nn.Module, process_set: ProcessSet = global_process_set
    ) -> torch.nn.Module:
        """The module with every batch normalization in it replaced; parameters and buffers stay the same objects.

        Call it before the optimizer is made or after, but before the model is compiled.  Raises ValueError for lazy
        layers that don't know their size yet.
        """
        return _convert(cls, module, process_set, {})


def _convert(
    cls: type[SyncBatchNorm], module: torch.nn.Module, process_set: ProcessSet, done: dict[int, torch.nn.Module]
) -> torch.nn.Module:
    """A layer that is used in several places is replaced by one."""
    if id(module) in done:
        return done[id(module)]
    result = module
    is_lazy = isinstance(module, torch.nn.modules.lazy.LazyModuleMixin)
    if is_lazy and isinstance(module, _BatchNorm):
        raise UsageError(
            "A lazy batch normalization has no size yet: pass one batch through the model, then convert it."
        )
    if isinstance(module, _BatchNorm):
        result = cls(
            module.num_features, module.eps, module.momentum, module.affine, module.track_running_stats, process_set
        )
        result.weight, result.bias = module.weight, module.bias
        for name in ("running_mean", "running_var", "num_batches_tracked"):
            setattr(result, name, getattr(module, name))
        result.training = module.training
    done[id(module)] = result
    for name, child in module.named_children():
        converted = _convert(cls, child, process_set, done)
        if converted is not child:
            result.add_module(name, converted)
    return result
