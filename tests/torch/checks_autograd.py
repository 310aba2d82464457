"""Gradients through every collective: by finite differences of the summed loss, and against one process.

S34: the convention is Horovod's: what backward gives is a multiple of the derivative of the sum of all ranks' losses, the
``factor`` of each comparison.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any
from unittest import mock

import horovod.torch as hvd
import pytest
import torch
from horovod.torch import reducer

from tests.torch.differences import distributed_gradcheck

Function = Callable[[torch.Tensor], torch.Tensor]


def ranks() -> range:
    return range(hvd.size())


def of_rank(rank: int, rows: int, columns: int = 2) -> torch.Tensor:
    return torch.arange(1, rows * columns + 1, dtype=torch.float64).reshape(rows, columns) / (3 + rank)


def compare(function: Function, rows: int, factor: float) -> None:
    distributed_gradcheck(lambda t: function(t * t), of_rank(hvd.rank(), rows), factor)


def check_allreduce() -> None:
    for options in (
        {"op": hvd.Sum}, {"op": hvd.Average}, {"op": hvd.Sum, "prescale_factor": 2.0, "postscale_factor": 0.75},
        {"op": hvd.Average, "prescale_factor": 0.5},
    ):  # fmt: skip
        compare(lambda t, o=options: hvd.allreduce(t, **o), 2, 1.0)
        compare(lambda t, o=options: torch.cat(hvd.grouped_allreduce([t, 3 * t[:1]], **o)), 2, 1.0)


def check_allgather() -> None:
    """Averaged: the derivative of the mean loss.  Ranks have different rows, one of them none."""
    size, rank = hvd.size(), hvd.rank()
    compare(hvd.allgather, 1 + rank % 2, 1 / size)
    compare(hvd.allgather, 0 if rank == size - 1 and size > 1 else 2, 1 / size)
    compare(lambda t: torch.cat(hvd.grouped_allgather([t, t[:1] * 2])), 1 + rank % 2, 1 / size)


def check_broadcast() -> None:
    """Averaged on the root, zero elsewhere."""
    for root in {0, hvd.size() - 1}:
        compare(lambda t, r=root: hvd.broadcast(t, r), 2, 1 / hvd.size())
    x = of_rank(hvd.rank(), 2).requires_grad_()
    hvd.broadcast(x, 0).sum().backward()
    assert torch.equal(x.grad, torch.ones_like(x) * (hvd.rank() == 0))


def check_alltoall() -> None:
    """S04, S05: back the way the rows came; ranks that send or get nothing, and rows that stay."""
    size, rank = hvd.size(), hvd.rank()
    compare(hvd.alltoall, size, 1.0)
    splits = [(rank + to) % 2 for to in ranks()]
    compare(lambda t: hvd.alltoall(t, splits)[0], sum(splits) + 1, 1.0)
    to_first = [1 + rank % 2] + [0] * (size - 1)
    compare(lambda t: hvd.alltoall(t, torch.tensor(to_first))[0], sum(to_first), 1.0)
    received = hvd.alltoall(torch.ones(sum(to_first), 2, requires_grad=True), to_first)[1]
    assert received.tolist() == ([1 + r % 2 for r in ranks()] if rank == 0 else [0] * size)
    assert not received.requires_grad


def check_reducescatter() -> None:
    """Gathered, times the set's size for Sum: for both reductions size times the derivative."""
    size = hvd.size()
    for options in (
        {"op": hvd.Sum}, {"op": hvd.Average}, {"op": hvd.Sum, "prescale_factor": 2.0, "postscale_factor": 0.75},
    ):  # fmt: skip
        compare(lambda t, o=options: hvd.reducescatter(t, **o), size + 1, float(size))
        compare(lambda t, o=options: torch.cat(hvd.grouped_reducescatter([t, t * 2], **o)), size, float(size))


def check_torch_gradcheck() -> None:
    """Torch's own check, where all ranks hold the same input, so that a difference of one loss is all there is."""
    x = of_rank(0, hvd.size()).requires_grad_()
    for call in (hvd.allreduce, lambda t: tuple(hvd.grouped_allreduce([t, t * t]))):
        assert torch.autograd.gradcheck(lambda t, c=call: c(t * t), (x,))
        assert torch.autograd.gradcheck(lambda t, c=call: c(t * t), (x,), fast_mode=True)
    assert torch.autograd.gradgradcheck(lambda t: hvd.allreduce(t * t), (x,))


def check_against_one_process() -> None:
    """A network of all collectives: the gradient of the summed loss, computed with slices in one process."""
    size, rank = hvd.size(), hvd.rank()
    parts = [of_rank(r, size).requires_grad_() for r in ranks()]
    total = sum(p**2 for p in parts)
    exchanged = [torch.stack([parts[source][target] for source in ranks()]) for target in ranks()]
    loss = sum((total * e).sum() for e in exchanged)
    wanted = torch.autograd.grad(loss, parts)
    mine = of_rank(rank, size).requires_grad_()
    (hvd.allreduce(mine**2, op=hvd.Sum) * hvd.alltoall(mine)).sum().backward()
    torch.testing.assert_close(mine.grad, wanted[rank])


def check_double_use() -> None:
    """One result used twice, one input reduced twice, and a graph that is walked twice."""
    x = of_rank(hvd.rank(), 2)
    distributed_gradcheck(lambda t: (lambda y: y * y + 3 * y)(hvd.allreduce(t, op=hvd.Sum)), x)
    distributed_gradcheck(lambda t: hvd.allreduce(t, op=hvd.Sum) * hvd.allreduce(t**2, op=hvd.Average), x)
    leaf = x.clone().requires_grad_()
    loss = (hvd.allreduce(leaf, op=hvd.Sum) ** 2).sum()
    loss.backward(retain_graph=True)
    once = leaf.grad.clone()
    loss.backward()
    assert torch.equal(leaf.grad, 2 * once)


def check_only_some_outputs_have_gradients() -> None:
    x = of_rank(hvd.rank(), 3).requires_grad_()
    first, _ = hvd.grouped_allreduce([x, x * 2], op=hvd.Sum)
    first.sum().backward()
    assert torch.equal(x.grad, torch.full_like(x, hvd.size()))
    x.grad = None
    gathered = hvd.grouped_allgather([x, x * 2])
    gathered[1].sum().backward()
    assert torch.equal(x.grad, torch.full_like(x, 2.0))
    frozen = torch.ones(3, 2, dtype=torch.float64)
    x.grad = None
    hvd.grouped_allreduce([frozen, x], op=hvd.Sum)[1].sum().backward()
    assert torch.equal(x.grad, torch.full_like(x, hvd.size()))


def check_no_grad() -> None:
    x = of_rank(hvd.rank(), hvd.size()).requires_grad_()
    calls: list[Callable[..., Any]] = [
        hvd.allreduce, hvd.allgather, lambda t: hvd.broadcast(t, 0), hvd.alltoall, hvd.reducescatter,
        lambda t: hvd.grouped_allreduce([t])[0], lambda t: hvd.grouped_allgather([t])[0],
        lambda t: hvd.grouped_reducescatter([t])[0], lambda t: hvd.synchronize(hvd.allreduce_async(t)),
    ]  # fmt: skip
    for call in calls[:-1]:
        assert call(x).requires_grad
        assert not call(x.detach()).requires_grad
    for call in calls:
        with torch.no_grad():
            assert not call(x).requires_grad
    assert not calls[-1](x).requires_grad


def check_in_place_changes_are_seen_by_autograd() -> None:
    x = of_rank(0, 2).requires_grad_()
    y = x * 2
    z = (y * y).sum()
    hvd.allreduce_(y.detach())
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.backward()


def check_complex_gradients() -> None:
    x = torch.complex(of_rank(hvd.rank(), 2), of_rank(hvd.rank() + 1, 2)).requires_grad_()
    weight = 1.0 + hvd.rank()
    y = hvd.allreduce(x * x, op=hvd.Sum)
    (weight * (y.real * 2 + y.imag)).sum().backward()
    parts = [torch.complex(of_rank(r, 2), of_rank(r + 1, 2)).requires_grad_() for r in ranks()]
    total = sum(p * p for p in parts)
    (sum(1.0 + r for r in ranks()) * (total.real * 2 + total.imag)).sum().backward()
    torch.testing.assert_close(x.grad, parts[hvd.rank()].grad)
    x.grad = None
    gathered = hvd.allgather(x * x)
    (gathered.real + 2 * gathered.imag).sum().backward()
    assert x.grad is not None
    assert x.grad.dtype is torch.complex128


def check_gradients_keep_their_layout() -> None:
    x = torch.ones(2, 3, 4, 5).to(memory_format=torch.channels_last).requires_grad_()
    hvd.allreduce(x, op=hvd.Sum).sum().backward()
    assert torch.equal(x.grad, torch.full_like(x, hvd.size()))
    expanded = torch.ones(1, requires_grad=True)
    hvd.allreduce(expanded.expand(4), op=hvd.Sum).sum().backward()
    assert expanded.grad.item() == 4 * hvd.size()
    scalar = torch.tensor(3.0, requires_grad=True)
    hvd.allreduce(scalar, op=hvd.Sum).backward()
    assert scalar.grad.item() == hvd.size()
    empty = torch.ones(0, 3, requires_grad=True)
    hvd.allgather(empty).sum().backward()
    assert empty.grad.shape == (0, 3)


def check_backward_passes_in_several_threads() -> None:
    """Threads that have parameters of their own share buckets: none may take one for empty that another is filling."""
    parameters = [torch.nn.Parameter(torch.zeros(400, 100)) for _ in range(2)]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(parameters, lr=0.0), op=hvd.Sum)

    def work(index: int, step: int) -> None:
        (parameters[index] * float(index + step + hvd.rank())).sum().backward()

    def run(step: int) -> None:
        optimizer.zero_grad()
        workers = [threading.Thread(target=work, args=(index, step)) for index in range(2)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        optimizer.step()
        for index, parameter in enumerate(parameters):
            wanted = sum(index + step + rank for rank in range(hvd.size()))
            assert parameter.grad is not None
            assert torch.all(parameter.grad == wanted), (index, step)

    run(0)  # agrees on the bucket
    filling, met, copy = threading.Lock(), threading.Event(), reducer.copy_dense

    def copy_alone(target: torch.Tensor, source: torch.Tensor, nbytes: int) -> None:
        """Gives another thread the time to come in."""
        if not filling.acquire(blocking=False):
            met.set()
            return copy(target, source, nbytes)
        try:
            met.wait(0.2)
            return copy(target, source, nbytes)
        finally:
            filling.release()

    with mock.patch.object(reducer, "copy_dense", copy_alone):
        run(1)
    assert not met.is_set()
