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
    rest = [rank for rank in range(hvd.size()) if rank not in (0, 2)]
    pair, others = hvd.add_process_set([2, 0]), hvd.add_process_set(rest)
    mine = pair if hvd.rank() in (0, 2) else others
    values = [float(rank * rank + 1) for rank in mine.ranks]
    value = torch.tensor(float(hvd.rank() ** 2 + 1))
    assert hvd.allreduce(value, process_set=mine, name="same").item() == sum(values) / len(values)
    assert hvd.allgather(value.reshape(1), process_set=mine).tolist() == values
    assert hvd.broadcast(value, mine.ranks[-1], process_set=mine).item() == values[-1]
    assert hvd.broadcast_object(hvd.rank(), mine.ranks[-1], process_set=mine) == mine.ranks[-1]
    assert hvd.allgather_object(hvd.rank(), process_set=mine) == mine.ranks
    _scatter_in(mine)
    hvd.barrier(mine)
    with pytest.raises(ValueError, match="member"):
        hvd.allreduce(value, process_set=others if mine is pair else pair)
    x = torch.ones(2, requires_grad=True)
    (hvd.allgather(x, process_set=mine) * (hvd.rank() + 1)).sum().backward()
    assert x.grad.tolist() == [sum(rank + 1 for rank in mine.ranks) / len(values)] * 2
    _train_in(pair)
    hvd.remove_process_set(others)
    hvd.remove_process_set(pair)


def _scatter_in(mine: hvd.ProcessSet) -> None:
    members = len(mine.ranks)
    rows = hvd.reducescatter(torch.arange(5.0), op=hvd.Sum, process_set=mine)
    parts = torch.tensor_split(torch.arange(5.0) * members, members)
    assert rows.tolist() == parts[mine.rank()].tolist()
    got, received = hvd.alltoall(torch.ones(2) * hvd.rank(), [2] + [0] * (members - 1), process_set=mine)
    is_first = mine.rank() == 0
    assert received.tolist() == [2 * is_first] * members
    assert got.tolist() == [float(rank) for rank in mine.ranks for _ in range(2)] * is_first


def check_sets_come_and_go() -> None:
    """S48: sets that are added and removed over and over, with the same name in each, leave nothing behind."""
    if hvd.size() < 2:
        return
    hvd.shutdown()
    hvd.init(process_sets="dynamic")
    for turn in range(25):
        some = hvd.add_process_set([turn % hvd.size()])
        if some.included():
            assert hvd.allreduce(torch.tensor(float(turn)), process_set=some, name="again").item() == turn
        assert hvd.remove_process_set(some)
        assert some.process_set_id is None


def _train_in(pair: hvd.ProcessSet) -> None:
    """A wrapped optimizer whose set excludes ranks, which step on their own."""
    w = torch.nn.Parameter(torch.zeros(1))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([w], lr=1.0), process_set=pair)
    for _ in range(2):
        optimizer.zero_grad()
        (w.sum() * (hvd.rank() + 1)).backward()
        optimizer.step()
    assert w.item() == (-4.0 if pair.included() else -2.0 * (hvd.rank() + 1))


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
