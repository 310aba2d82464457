"""Gradients of functions that span ranks, checked by finite differences of the sum of all ranks' losses."""

from __future__ import annotations

from collections.abc import Callable

import horovod.torch as hvd
import torch

__all__ = ["distributed_gradcheck"]

_STEP = 1e-6


def _weights(like: torch.Tensor, rank: int) -> torch.Tensor:
    """Of the elements of an output in its rank's loss: no two alike."""
    return torch.sin(torch.arange(1, like.numel() + 1, dtype=torch.float64) * (rank + 1)).reshape(like.shape)


def _loss(function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    y = function(x)
    return (y * _weights(y, hvd.rank())).sum()


def _total_loss(function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> float:
    with torch.no_grad():
        return float(hvd.allreduce(_loss(function, x).detach(), op=hvd.Sum, name="gradcheck.loss"))


def distributed_gradcheck(
    function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor, factor: float = 1.0, tolerance: float = 1e-5
) -> None:
    """Asserts that backward gives ``factor`` times the derivative of the summed loss, for all ranks' inputs in fp64.

    Ranks may have inputs of different sizes; all of them evaluate the function for each element of each rank.
    """
    assert x.dtype is torch.float64
    leaf = x.detach().clone().requires_grad_()
    _loss(function, leaf).backward()
    gradient = torch.zeros_like(x) if leaf.grad is None else leaf.grad
    numeric = torch.zeros_like(x)
    for rank, count in enumerate(hvd.allgather_object(x.numel(), name="gradcheck.sizes")):
        for element in range(count):
            sides = []
            for step in (_STEP, -_STEP):
                moved = x.detach().clone()
                if rank == hvd.rank():
                    moved.view(-1)[element] += step
                sides.append(_total_loss(function, moved))
            if rank == hvd.rank():
                numeric.view(-1)[element] = (sides[0] - sides[1]) / (2 * _STEP)
    torch.testing.assert_close(gradient, factor * numeric, atol=tolerance, rtol=tolerance)
