"""Long runs of one kind of step: memory stays where it is (P60)."""

from __future__ import annotations

import gc

import horovod.torch as hvd
import psutil
import pytest
import torch
from horovod.common import process

STEPS, SETTLED, GROWTH_BYTES = 1000, 200, 20 << 20


def resident() -> int:
    gc.collect()
    return int(psutil.Process().memory_info().rss)


def check_training_keeps_its_memory() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.BatchNorm1d(64), torch.nn.Linear(64, 8))
    model = hvd.SyncBatchNorm.convert_sync_batchnorm(model)
    optimizer = hvd.DistributedOptimizer(torch.optim.Adam(model.parameters(), lr=0.001))
    before = 0
    for step in range(STEPS):
        optimizer.zero_grad()
        (model(torch.randn(4, 64)) ** 2).mean().backward()
        optimizer.step()
        if step == SETTLED:
            before = resident()
    assert resident() - before < GROWTH_BYTES


def check_operations_keep_their_memory() -> None:
    before = 0
    for step in range(STEPS):
        x = torch.ones(100 + step % 97, 10, requires_grad=True)
        hvd.allgather(x[: 1 + (step + hvd.rank()) % 90]).sum().backward()
        hvd.allreduce(x, name=f"loss.{step}")
        hvd.synchronize(hvd.allreduce_async(x.detach()))
        hvd.broadcast_object({"step": step}, 0)
        hvd.barrier()
        if step == SETTLED:
            before = resident()
    assert resident() - before < GROWTH_BYTES


def _in_use() -> int:
    """Bytes of the arena that operations hold."""
    used, _, _ = process._process.arena.stat()  # type: ignore[union-attr]
    return int(used)


def check_refused_operations_give_their_memory_back() -> None:
    """P61: sums of 4 MB that fail on all ranks leave nothing behind in the process, nor in shared memory."""
    if hvd.size() == 1:
        return
    x = torch.ones((1 << 20) + hvd.rank())
    before = used = 0
    for step in range(300):
        with pytest.raises(hvd.HorovodInternalError, match="Mismatched"):
            hvd.synchronize(hvd.allreduce_async(x, name="refused"))
        if step == 50:
            before, used = resident(), _in_use()
    assert resident() - before < GROWTH_BYTES
    assert _in_use() <= used
