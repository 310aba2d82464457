"""Troubles that users of Horovod and its like have reported, as training programs on real ranks."""

from __future__ import annotations

import time

import horovod.torch as hvd
import torch


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
