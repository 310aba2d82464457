"""The Adasum optimizer where gradients come from several threads, are zero, or are missing on some ranks.

Nobody waits, nothing is lost: the parameters are NumPy's, from plain optimizers of all ranks, and the same on all ranks.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from typing import Any

import horovod.torch as hvd
import pytest
import torch

from tests.torch.adasum import combine
from tests.torch.checks_adasum import of_rank, ranks

Weights = list[torch.nn.Parameter]
Backward = Callable[[Weights, int, int], None]
COUNTS = (6, 4, 5)
STEPS = 4
OPTIMIZERS: dict[str, Callable[[Weights], torch.optim.Optimizer]] = {
    "momentum": lambda ps: torch.optim.SGD(ps, lr=0.1, momentum=0.9, weight_decay=0.01),
    "Adam": lambda ps: torch.optim.Adam(ps, lr=0.1),
}


def _weights() -> Weights:
    return [torch.nn.Parameter(torch.from_numpy(of_rank(9, n, 7))) for n in COUNTS]


def _term(weights: Weights, index: int, rank: int, step: int) -> torch.Tensor:
    return ((weights[index] - torch.from_numpy(of_rank(rank, COUNTS[index], step))) ** 2).sum()


def _train_all(make: Callable[[Weights], torch.optim.Optimizer], backward: Backward, set_to_none: bool) -> Weights:
    """Plain optimizers of all ranks; NumPy combines what their steps change."""
    everybody = [_weights() for _ in ranks()]
    optimizers = [make(weights) for weights in everybody]
    for step in range(STEPS):
        before = [w.detach().clone() for w in everybody[0]]
        for rank, weights in enumerate(everybody):
            optimizers[rank].zero_grad(set_to_none)
            backward(weights, rank, step)
            optimizers[rank].step()
        for index, old in enumerate(before):
            changes = [(weights[index].detach() - old).numpy() for weights in everybody]
            for weights in everybody:
                weights[index].data.copy_(old + torch.from_numpy(combine(changes)))
    return everybody[0]


def _expect_alike(backward: Backward, set_to_none: bool = True) -> None:
    for name, make in OPTIMIZERS.items():
        mine = _weights()
        optimizer = hvd.DistributedOptimizer(make(mine), op=hvd.Adasum)
        for step in range(STEPS):
            optimizer.zero_grad(set_to_none)
            backward(mine, hvd.rank(), step)
            optimizer.step()
        for a, b in zip(mine, _train_all(make, backward, set_to_none), strict=True):
            torch.testing.assert_close(a.detach(), b.detach(), atol=1e-10, rtol=1e-10, msg=name)
            everywhere = hvd.allgather(a.detach().unsqueeze(0))
            assert torch.equal(everywhere, everywhere[:1].expand_as(everywhere)), name


def check_backward_passes_in_threads() -> None:
    """One thread for each weight, and all of them add to the first one's gradient, too."""

    def backward(weights: Weights, rank: int, step: int) -> None:
        losses = [_term(weights, index, rank, step) + (weights[0] * index).sum() for index in range(len(weights))]
        threads = [threading.Thread(target=loss.backward) for loss in losses]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    _expect_alike(backward)


def check_zero_gradients() -> None:
    """Zeros on all ranks, on some, and for one weight: no NaN from 0 / 0."""

    def backward(weights: Weights, rank: int, step: int) -> None:
        factors = [
            0.0 if step == 0 or (step == 2 and rank == 0) or index == 1 else 1.0 for index in range(len(weights))
        ]
        terms = [factor * _term(weights, index, rank, step) for index, factor in enumerate(factors)]
        torch.stack(terms).sum().backward()

    _expect_alike(backward)


def check_unused_parameters() -> None:
    """One weight that no rank uses, and one that only every second rank does."""

    def backward(weights: Weights, rank: int, step: int) -> None:
        used = [0, 2] if (rank + step) % 2 == 0 else [0]
        torch.stack([_term(weights, index, rank, step) for index in used]).sum().backward()

    _expect_alike(backward)


def check_a_rank_without_gradients() -> None:
    """Its optimizer takes steps that change nothing, and what the others change arrives."""

    def backward(weights: Weights, rank: int, step: int) -> None:
        if rank != hvd.size() - 1 or step == 3:
            torch.stack([_term(weights, index, rank, step) for index in range(len(weights))]).sum().backward()

    _expect_alike(backward)


def check_parameters_that_are_frozen() -> None:
    """Torch steps with the zeros that are left, and the momentum of each rank; one rank may freeze what others do not."""
    for members in (ranks(), range(hvd.size() - 1, hvd.size())):

        def backward(weights: Weights, rank: int, step: int, members: range = members) -> None:
            weights[1].requires_grad_(rank not in members or step not in (1, 2))
            terms = [_term(weights, index, rank, step) for index in range(len(weights))]
            torch.stack(terms).sum().backward()

        for set_to_none in (False, True):
            _expect_alike(backward, set_to_none)


def _scaled(make: Callable[..., torch.optim.Optimizer], usage: str) -> tuple[list[float], torch.nn.Parameter]:
    """Rank 0 has no gradients; the last rank's is infinite in step 1.  The first parameter is empty."""
    empty, w = torch.nn.Parameter(torch.zeros(0)), torch.nn.Parameter(torch.zeros(3))
    optimizer: Any = hvd.DistributedOptimizer(make([empty, w]), op=hvd.Adasum)
    scaler, scales = torch.amp.GradScaler("cpu", init_scale=4.0), []
    for step in range(3):
        optimizer.zero_grad()
        is_bad = step == 1 and hvd.rank() == hvd.size() - 1
        scaled = scaler.scale((empty.sum() + w.sum()) * (float("inf") if is_bad else 1.0))
        if hvd.rank() or hvd.size() == 1:
            scaled.backward()
        if usage == "unscale":
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
        assert w.grad is not None or hvd.rank() == 0
    return scales, w


def check_a_rank_without_gradients_has_a_scaler() -> None:
    """A scaler refuses to step where it has seen no gradient; then the others would wait for that rank."""
    for make in (lambda ps: torch.optim.SGD(ps, lr=1.0), lambda ps: torch.optim.SGD(ps, lr=1.0, fused=True)):
        for usage in ("plain", "unscale"):
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                scales, w = _scaled(make, usage)
            assert scales == [4.0, 2.0, 2.0], scales
            assert torch.equal(w.detach(), torch.full((3,), -2.0)), w


def check_a_scaler_where_nobody_has_gradients() -> None:
    """As in one process: every rank is told, and nobody waits."""
    w = torch.nn.Parameter(torch.zeros(3))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([w], lr=1.0), op=hvd.Adasum)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    scaler.scale(torch.ones(1))
    with pytest.raises(AssertionError, match="No inf checks"):
        scaler.step(optimizer)
