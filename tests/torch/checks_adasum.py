"""Adasum against NumPy: pairs by distance doubling, members beyond a power of two combined first.

For any number of ranks, on one host and between hosts.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import horovod.torch as hvd
import numpy as np
import pytest
import torch

from tests.torch.adasum import Vector, combine


def ranks() -> range:
    return range(hvd.size())


def of_rank(rank: int, count: int, turn: int = 0) -> Vector:
    return np.random.default_rng(100 * turn + rank).standard_normal(count)


def expect(got: torch.Tensor, vectors: list[Vector], tolerance: float) -> None:
    wanted = combine([v.copy() for v in vectors]).reshape(tuple(got.shape))
    np.testing.assert_allclose(got.double().numpy(), wanted, rtol=tolerance, atol=tolerance)
    flat = got.flatten().view(torch.uint8)
    everywhere = hvd.allgather(flat.unsqueeze(0))
    assert torch.equal(everywhere, everywhere[:1].expand_as(everywhere))


def check_vectors() -> None:
    for dtype, tolerance in [
        (torch.float64, 1e-12), (torch.float32, 1e-5), (torch.float16, 5e-3), (torch.bfloat16, 5e-2),
    ]:  # fmt: skip
        for count in (1, 7, 1000):
            mine = [torch.from_numpy(of_rank(r, count)).to(dtype) for r in ranks()]
            vectors = [v.double().numpy() for v in mine]
            expect(hvd.allreduce(mine[hvd.rank()], op=hvd.Adasum), vectors, tolerance)
            in_place = mine[hvd.rank()].clone()
            assert hvd.allreduce_(in_place, op=hvd.Adasum, name=f"adasum.{dtype}.{count}") is in_place
            expect(in_place, vectors, tolerance)


def check_properties() -> None:
    """S53: equal vectors stay, orthogonal ones add up, zeros change nothing and make no NaN."""
    assert torch.equal(hvd.allreduce(torch.tensor([1.0, 2.0, 4.0]), op=hvd.Adasum), torch.tensor([1.0, 2.0, 4.0]))
    mine = torch.zeros(hvd.size())
    mine[hvd.rank()] = hvd.rank() + 1.0
    assert torch.equal(hvd.allreduce(mine, op=hvd.Adasum), torch.arange(1.0, hvd.size() + 1))
    lonely = torch.ones(3) * (hvd.rank() == hvd.size() - 1)
    assert torch.equal(hvd.allreduce(lonely, op=hvd.Adasum), torch.ones(3))
    assert torch.equal(hvd.allreduce(torch.zeros(3), op=hvd.Adasum), torch.zeros(3))
    assert hvd.allreduce(torch.zeros(0), op=hvd.Adasum).shape == (0,)


def check_tensors_of_a_group_are_combined_one_by_one() -> None:
    counts = [3, 50, 1, 7]
    for name in (None, "group"):
        for dtype in (torch.float64, torch.float32):
            mine = [torch.from_numpy(of_rank(hvd.rank(), n, i)).to(dtype) for i, n in enumerate(counts)]
            done = hvd.grouped_allreduce([*mine, mine[0].half()], op=hvd.Adasum, name=name)
            for index, got in enumerate(done[:-1]):
                vectors = [of_rank(r, counts[index], index).astype(str(dtype)[6:]).astype(float) for r in ranks()]
                expect(got, vectors, 1e-5)
            assert done[-1].dtype is torch.float16


def check_refusals() -> None:
    x = torch.ones(4)
    with pytest.raises(ValueError, match="Adasum works on floating point tensors only"):
        hvd.allreduce(x.int(), op=hvd.Adasum)
    with pytest.raises(ValueError, match="Adasum works on floating point"):
        hvd.allreduce(x.bool(), op=hvd.Adasum)
    if hvd.size() > 1:
        with pytest.raises(hvd.HorovodInternalError, match="ismatched"):
            hvd.allreduce(torch.ones(3 + (hvd.rank() == 0)), op=hvd.Adasum, name="shapes")
    assert torch.equal(hvd.allreduce(x, op=hvd.Adasum, name="shapes"), x)


def _steps(make: Callable[..., torch.optim.Optimizer], **options: Any) -> None:
    """The optimizer combines what steps change; NumPy does the same with plain optimizers of all ranks."""
    start = [torch.from_numpy(of_rank(9, n, 7)) for n in (6, 4)]

    def wrap(values: list[torch.Tensor]) -> tuple[list[torch.nn.Parameter], torch.optim.Optimizer]:
        weights = [torch.nn.Parameter(v.clone()) for v in values]
        return weights, make(weights, **options)

    def loss(weights: list[torch.nn.Parameter], rank: int, step: int) -> torch.Tensor:
        terms = [(w - torch.from_numpy(of_rank(rank, len(w), step))) ** 2 for w in weights]
        return sum(t.sum() for t in terms)  # type: ignore[return-value]

    mine, plain = wrap(start)
    optimizer = hvd.DistributedOptimizer(plain, op=hvd.Adasum)
    others = [wrap(start) for _ in ranks()]
    for step in range(3):
        optimizer.zero_grad()
        loss(mine, hvd.rank(), step).backward()
        optimizer.step()
        before = [w.detach().clone() for w in others[0][0]]
        for rank, (weights, stepped) in enumerate(others):
            stepped.zero_grad()
            loss(weights, rank, step).backward()
            stepped.step()
        for index, old in enumerate(before):
            changes = [(weights[index].detach() - old).numpy() for weights, _ in others]
            new = old + torch.from_numpy(combine(changes))
            for weights, _ in others:
                weights[index].data.copy_(new)
    for a, b in zip(mine, others[0][0], strict=True):
        torch.testing.assert_close(a.detach(), b.detach(), atol=1e-10, rtol=1e-10)


def check_optimizer() -> None:
    _steps(torch.optim.SGD, lr=0.1, momentum=0.9)
    _steps(torch.optim.Adam, lr=0.1)


def check_optimizer_with_a_loss_scaler() -> None:
    """S53: all ranks skip the step in which the gradient of one is not finite; nobody waits."""
    w = torch.nn.Parameter(torch.zeros(hvd.size()))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([w], lr=1.0), op=hvd.Adasum)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for step in range(3):
            optimizer.zero_grad()
            bad = step == 1 and hvd.rank() == hvd.size() - 1
            scaler.scale(w[hvd.rank()] * (float("inf") if bad else 1.0)).backward()
            scaler.step(optimizer)
            scaler.update()
    assert torch.equal(w.detach(), torch.full((hvd.size(),), -2.0))
    assert scaler.get_scale() == 2.0
