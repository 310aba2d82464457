"""Process sets and join on real ranks."""

from __future__ import annotations

import horovod.torch as hvd
import pytest
import torch


def check_dynamic_sets() -> None:
    """S48: averages divide by the size of the set; one name in two sets at a time."""
    if hvd.size() < 3:
        return
    hvd.shutdown()
    hvd.init(process_sets="dynamic")
    pair, alone = hvd.add_process_set([2, 0]), hvd.add_process_set([1])
    mine = pair if hvd.rank() != 1 else alone
    value = torch.tensor([2.0, 4.0, 6.0][hvd.rank()])
    wanted = 4.0
    assert hvd.allreduce(value, process_set=mine, name="same").item() == wanted
    assert hvd.allgather(value.reshape(1), process_set=mine).tolist() == [[2.0, 6.0], [4.0]][hvd.rank() == 1]
    assert hvd.broadcast(value, 2 if hvd.rank() != 1 else 1, process_set=mine).item() == [6.0, 4.0][hvd.rank() == 1]
    assert hvd.broadcast_object(hvd.rank(), mine.ranks[-1], process_set=mine) == mine.ranks[-1]
    assert hvd.allgather_object(hvd.rank(), process_set=mine) == mine.ranks
    rows = hvd.reducescatter(torch.arange(3.0), op=hvd.Sum, process_set=mine)
    assert rows.tolist() == [[0.0, 2.0], [0.0, 1.0, 2.0], [4.0]][hvd.rank()]
    _, received = hvd.alltoall(torch.ones(2) * hvd.rank(), [2] + [0] * (len(mine.ranks) - 1), process_set=mine)
    assert received.tolist() == [[2, 2], [2], [0, 0]][hvd.rank()]
    hvd.barrier(mine)
    with pytest.raises(ValueError, match="member"):
        hvd.allreduce(value, process_set=alone if mine is pair else pair)
    x = torch.ones(2, requires_grad=True)
    (hvd.allgather(x, process_set=mine) * (hvd.rank() + 1)).sum().backward()
    assert x.grad.tolist() == [[2.0, 2.0], [2.0, 2.0], [2.0, 2.0]][hvd.rank()]
    _train_in(pair)
    hvd.remove_process_set(alone)
    hvd.remove_process_set(pair)


def _train_in(pair: hvd.ProcessSet) -> None:
    """A wrapped optimizer whose set excludes rank 1, which steps on its own."""
    w = torch.nn.Parameter(torch.zeros(1))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([w], lr=1.0), process_set=pair)
    for _ in range(2):
        optimizer.zero_grad()
        (w.sum() * (hvd.rank() + 1)).backward()
        optimizer.step()
    assert w.item() == -4.0


def check_join() -> None:
    if hvd.size() == 1:
        return
    w = torch.nn.Parameter(torch.zeros(1))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([w], lr=1.0))
    for step in range(2 + hvd.rank()):
        optimizer.zero_grad()
        w.sum().backward()
        optimizer.step()
        taking_part = sum(step < 2 + r for r in range(hvd.size()))
        assert w.grad.item() == pytest.approx(taking_part / hvd.size())
    assert hvd.join() == hvd.size() - 1
    assert hvd.allreduce(torch.ones(2), op=hvd.Sum, name="after_join").tolist() == [hvd.size()] * 2


def check_join_before_the_first_step() -> None:
    if hvd.size() == 1:
        return
    w = torch.nn.Parameter(torch.zeros(1))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([w], lr=1.0), op=hvd.Sum)
    if hvd.rank() > 0:
        w.sum().backward()
        optimizer.step()
        assert w.item() == -(hvd.size() - 1)
    hvd.join()
