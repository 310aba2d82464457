"""Troubles that users of Horovod and its like have reported, as training programs on real ranks."""

from __future__ import annotations

import time

import horovod.torch as hvd
import torch

from tests.runner.launcher import until


def check_no_device_is_touched() -> None:
    """P63: init and collectives leave CUDA alone, so that ranks that pin a device later find it untouched."""
    hvd.allreduce(torch.ones(2), name="quiet")
    hvd.broadcast_object(1, 0)
    assert not torch.cuda.is_initialized()


def check_late_ranks_change_no_bit() -> None:
    """P32: integer gradients, a rank that is late at some steps: the weights are what they are without the delay."""
    finals = []
    for late in (False, True):
        w = torch.nn.Parameter(torch.zeros(10_000))
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([w], lr=1.0), op=hvd.Sum)
        for step in range(20):
            if late and step % 7 == 3 and hvd.rank() == hvd.size() - 1:
                time.sleep(0.05)  # what is tested, not what is waited for
            optimizer.zero_grad()
            (w * float((step + hvd.rank()) % 5)).sum().backward()
            optimizer.step()
        finals.append(w.detach().clone())
        assert w[0].item() == -sum((step + rank) % 5 for step in range(20) for rank in range(hvd.size()))
    assert torch.equal(*finals)


def check_uneven_epochs() -> None:
    """P38: one rank has a batch more in each of three epochs; after join and a broadcast all have equal weights."""
    w = torch.nn.Parameter(torch.zeros(3))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([w], lr=0.1, momentum=0.9), op=hvd.Average)
    for _ in range(3):
        for _ in range(2 + (hvd.rank() == hvd.size() - 1)):
            optimizer.zero_grad()
            (w * (hvd.rank() + 1.0)).sum().backward()
            optimizer.step()
        last = hvd.join()
        assert last == hvd.size() - 1
        hvd.broadcast_parameters([w], last)
        hvd.broadcast_optimizer_state(optimizer, last)
        everywhere = hvd.allgather(w.detach().reshape(1, -1))
        assert torch.equal(everywhere, everywhere[:1].expand_as(everywhere))


def check_many_names() -> None:
    """P45: thousands of names are negotiated once: the steps that follow announce nothing."""
    tensors = [torch.full((4,), float(i % 3)) for i in range(1500)]
    for step in range(3):
        handles = [hvd.allreduce_async(x, name=f"many.names.{i}", op=hvd.Sum) for i, x in enumerate(tensors)]
        assert all(torch.equal(hvd.synchronize(h), x * hvd.size()) for h, x in zip(handles, tensors, strict=True)), step


def check_a_giant_does_not_wait_for_small_ones() -> None:
    """P44: what was submitted first is done before the last of those behind it is even submitted."""
    giant = torch.full((4 << 20,), hvd.rank() + 1.0)
    total = float(sum(range(1, hvd.size() + 1)))
    small = [torch.full((1024,), float(i + hvd.rank())) for i in range(100)]
    first = hvd.allreduce_async(giant, name="giant", op=hvd.Sum)
    handles = [hvd.allreduce_async(x, name=f"behind.{i}", op=hvd.Sum) for i, x in enumerate(small[:-1])]
    assert until(lambda: hvd.poll(first))
    handles.append(hvd.allreduce_async(small[-1], name="behind.last", op=hvd.Sum))
    for i, handle in enumerate(handles):
        assert torch.all(hvd.synchronize(handle) == sum(i + rank for rank in range(hvd.size())))
    assert torch.all(hvd.synchronize(first) == total)


def check_an_infinite_pass_spoils_its_window_only() -> None:
    """S27: gradients of three passes are summed; inf in the second pass is gone with that window."""
    w = torch.nn.Parameter(torch.zeros(2))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([w], lr=1.0), op=hvd.Sum, backward_passes_per_step=3)
    for window in range(2):
        optimizer.zero_grad()
        for turn in range(3):
            is_bad = window == 0 and turn == 1 and hvd.rank() == hvd.size() - 1
            (w * (float("inf") if is_bad else turn + 1.0)).sum().backward()
        optimizer.synchronize()
        assert w.grad is not None
        assert torch.isfinite(w.grad).all() == (window == 1)
        if window:
            assert torch.all(w.grad == 6.0 * hvd.size())
            with optimizer.skip_synchronize():
                optimizer.step()
    assert torch.all(w == -6.0 * hvd.size())


def check_a_missing_gradient_in_a_group() -> None:
    """S33: one of a group's gradients is None on one rank: it counts as zeros, the others stay with their parameters."""
    for groups in (1, 2, "lists"):
        weights = [torch.nn.Parameter(torch.zeros(3)) for _ in range(6)]
        chosen = [weights[:3], weights[3:5]] if groups == "lists" else groups
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(weights, lr=1.0), groups=chosen, op=hvd.Sum)
        for _ in range(2):
            optimizer.zero_grad()
            used = [i for i in range(6) if not (i == 2 and hvd.rank() == 0)]
            torch.stack([(weights[i] * i).sum() for i in used]).sum().backward()
            optimizer.step()
        for i, w in enumerate(weights):
            assert torch.all(w == -2.0 * i * (hvd.size() - (i == 2))), (groups, i)
