"""HOROVOD_JOIN_MODE=extended on real ranks: who has joined takes part in everything, with nothing.

The rank that stops first is the first one, then the last one: with two hosts that is a rank beside others once, and once all
that its host has.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import horovod.torch as hvd
import pytest
import torch

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.uint16, torch.int32, torch.int64]
SIZES = [0, 1, 7, 1025, 70_000]


@contextmanager
def extended() -> Iterator[None]:
    """A job in this mode; the check after it finds the default again."""
    hvd.shutdown()
    os.environ["HOROVOD_JOIN_MODE"] = "extended"
    try:
        hvd.init()
        yield
    finally:
        hvd.shutdown()
        del os.environ["HOROVOD_JOIN_MODE"]
        hvd.init()


def without_one(work: Callable[[list[int], str], None]) -> None:
    """One rank joins at once, the others do ``work(their ranks, a word for names)`` first: with each of two ranks."""
    if hvd.size() == 1:
        return
    with extended():
        for quitter in (0, hvd.size() - 1):
            if hvd.rank() != quitter:
                work([r for r in range(hvd.size()) if r != quitter], f"without.{quitter}")
            hvd.join()
            assert hvd.allreduce(torch.ones(2), op=hvd.Sum, name=f"after.{quitter}").tolist() == [hvd.size()] * 2


def value(rank: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    """Between 1 and 3, so that a zero or another neutral value would show in every result."""
    return (torch.arange(count) % 3 + 1 + (rank % 2)).clamp(max=3).to(dtype)


def check_reductions_see_no_zeros() -> None:
    """S31: Min, Max and Product leave joined ranks out; Sum and Average are what zeros give, over the full size."""

    def work(others: list[int], word: str) -> None:
        for dtype in FLOATS + INTEGERS:
            for count in SIZES if dtype in (torch.float32, torch.int64, torch.float16) else (7,):
                x = value(hvd.rank(), count, dtype)
                stacked = torch.stack([value(r, count, torch.float64) for r in others])
                sign = 1 if dtype in (torch.uint8, torch.uint16) else -1  # a zero would win among negative numbers
                wanted = {
                    hvd.Sum: stacked.sum(0), hvd.Min: stacked.amin(0), hvd.Product: stacked.prod(0),
                    hvd.Max: (stacked * sign).amax(0),
                }  # fmt: skip
                for op, result in wanted.items():
                    sent = (x.double() * sign).to(dtype) if op == hvd.Max else x
                    got = hvd.allreduce(sent, op=op, name=f"{word}.{dtype}.{count}.{op}")
                    assert torch.equal(got.double(), result), (dtype, count, op)

    without_one(work)


def check_averages_divide_by_the_full_size() -> None:
    """S31: as upstream, in both modes and for dense and sparse tensors alike."""

    def work(others: list[int], word: str) -> None:
        x = torch.full((5,), 4.0)
        wanted = 4.0 * len(others) / hvd.size()
        assert hvd.allreduce(x, name=f"{word}.average").tolist() == pytest.approx([wanted] * 5)
        sparse = torch.sparse_coo_tensor([[1]], [4.0], (3,), check_invariants=False)
        got = hvd.sparse_allreduce_async(sparse, f"{word}.sparse", hvd.Average)().to_dense()
        assert got.tolist() == pytest.approx([0.0, wanted, 0.0])

    without_one(work)


def check_booleans_and_not_a_number() -> None:
    def work(others: list[int], word: str) -> None:
        flags = torch.tensor([True, False, hvd.rank() == others[0]])
        alone = len(others) == 1
        assert hvd.allreduce(flags, op=hvd.Min, name=f"{word}.all").tolist() == [True, False, alone]
        assert hvd.allreduce(flags, op=hvd.Product, name=f"{word}.and").tolist() == [True, False, alone]
        assert hvd.allreduce(flags, op=hvd.Max, name=f"{word}.any").tolist() == [True, False, True]
        for dtype in FLOATS:
            x = torch.tensor([float("nan"), float("inf"), -float("inf")], dtype=dtype)
            low = hvd.allreduce(x, op=hvd.Min, name=f"{word}.low.{dtype}")
            high = hvd.allreduce(x, op=hvd.Max, name=f"{word}.high.{dtype}")
            for got in (low, high):
                assert got.isnan().tolist() == [True, False, False]
                assert got[1:].tolist() == [float("inf"), -float("inf")]

    without_one(work)


def check_groups_and_steady_loops() -> None:
    """S31: grouped calls with several dtypes, and names that had a plan before the rank joined."""
    if hvd.size() == 1:
        return
    with extended():
        tensors = [value(hvd.rank(), 9, torch.float32), value(hvd.rank(), 5, torch.int32), torch.zeros(0)]
        last = hvd.size() - 1
        for step in range(4):
            if step == 2 and hvd.rank() == last:
                break
            others = range(hvd.size()) if step < 2 else range(last)
            low = hvd.grouped_allreduce(tensors, op=hvd.Min, name="low")
            assert low[0].tolist() == torch.stack([value(r, 9, torch.float32) for r in others]).amin(0).tolist()
            assert low[1].tolist() == torch.stack([value(r, 5, torch.int32) for r in others]).amin(0).tolist()
            assert low[2].shape == (0,)
            rows = hvd.allgather(torch.tensor([hvd.rank()]), name="rows")
            assert rows.tolist() == list(others)
            assert hvd.broadcast(torch.tensor([hvd.rank()]), 0, name="zero").item() == 0
        assert hvd.join() == last - 1 if hvd.size() == 2 else hvd.join() >= 0


def check_gathers_take_only_what_is_there() -> None:
    """S29: allgather, alltoall, reducescatter, barriers, objects and a sparse gradient go on without the joined rank."""

    def work(others: list[int], word: str) -> None:
        me = hvd.rank()
        rows = hvd.allgather(torch.full((me + 1, 2), float(me)), name=f"{word}.rows")
        assert rows.tolist() == [[float(r)] * 2 for r in others for _ in range(r + 1)]
        both = hvd.grouped_allgather([torch.tensor([me]), torch.tensor([me + 0.5])], name=f"{word}.both")
        assert both[0].tolist() == others
        assert both[1].tolist() == [r + 0.5 for r in others]
        got, counts = hvd.alltoall(torch.arange(hvd.size()) + 10 * me, [1] * hvd.size(), name=f"{word}.to")
        assert got.tolist() == [10 * r + me for r in others]
        assert counts.tolist() == [int(r in others) for r in range(hvd.size())]
        part = hvd.reducescatter(torch.arange(float(hvd.size())) + me, op=hvd.Sum, name=f"{word}.part")
        assert part.tolist() == [float(sum(me + r for r in others))]
        sparse = torch.sparse_coo_tensor([[me, 0]], [1.0, 2.0], (hvd.size(),), check_invariants=False)
        dense = hvd.sparse_allreduce_async(sparse, f"{word}.sparse", hvd.Sum)().to_dense()
        assert dense.tolist() == [(r in others) + 2.0 * len(others) * (r == 0) for r in range(hvd.size())]
        assert hvd.allgather_object({"rank": me}, name=f"{word}.objects") == [{"rank": r} for r in others]
        assert hvd.broadcast_object(me, others[-1], name=f"{word}.object") == others[-1]
        hvd.barrier()

    without_one(work)


def check_gradients_leave_out_who_has_joined() -> None:
    """Rows that went to a rank that has joined have no gradient; all others keep theirs, in their places."""

    def work(others: list[int], word: str) -> None:
        size, me = hvd.size(), hvd.rank()
        x = torch.ones(size + 1, 2, requires_grad=True)
        (hvd.alltoall(x, [1] * size, name=f"{word}.to")[0] * (me + 1)).sum().backward()
        assert x.grad[:, 0].tolist() == [float(r + 1) * (r in others) for r in range(size)] + [0.0]
        y = torch.ones(size, 2, requires_grad=True)
        (hvd.reducescatter(y, op=hvd.Sum, name=f"{word}.part") * (me + 1)).sum().backward()
        assert y.grad[:, 0].tolist() == [float(size * (r + 1)) * (r in others) for r in range(size)]
        z = torch.ones(me + 1, requires_grad=True)
        (hvd.allgather(z, name=f"{word}.rows") * (me + 1)).sum().backward()
        assert z.grad.tolist() == pytest.approx([sum(r + 1 for r in others) / size] * (me + 1))

    without_one(work)


def check_roots_that_have_joined() -> None:
    """S29: a broadcast whose root has joined is a clear error; from any other root it works."""

    def work(others: list[int], word: str) -> None:
        quitter = int(word.rpartition(".")[2])
        assert hvd.broadcast(torch.tensor([hvd.rank()]), others[0], name=f"{word}.works").item() == others[0]
        for attempt in range(2):
            with pytest.raises(hvd.HorovodInternalError, match=f"root, rank {quitter}, has run out of data"):
                hvd.broadcast(torch.zeros(3), quitter, name=f"{word}.refused.{attempt}")
            with pytest.raises(hvd.HorovodInternalError, match=f"root, rank {quitter}"):
                hvd.broadcast_object(1, quitter, name=f"{word}.refused.object.{attempt}")
        hvd.broadcast_(torch.zeros(3), others[-1], name=f"{word}.next")

    without_one(work)


def check_a_root_that_joins_between_rounds() -> None:
    """S29: what the root has sent arrives; what it would have to send later is refused, on all who ask for it."""
    if hvd.size() == 1:
        return
    with extended():
        last = hvd.size() - 1
        for step in range(5):
            if step < 3:
                assert hvd.broadcast(torch.tensor([step * hvd.rank()]), last, name="steady").item() == step * last
            elif hvd.rank() != last:
                with pytest.raises(hvd.HorovodInternalError, match=f"rank {last}"):
                    hvd.broadcast(torch.tensor([0]), last, name="steady")
        hvd.join()


def check_training_on_uneven_data() -> None:
    """P38, S29: a wrapped optimizer with an embedding; whoever has data goes on, sparse gradients too."""
    if hvd.size() == 1:
        return
    with extended():
        table = torch.nn.Embedding(4, 1, sparse=True)
        torch.nn.init.zeros_(table.weight)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(table.parameters(), lr=1.0), table.named_parameters(), op=hvd.Sum
        )
        for step in range(2 + hvd.rank()):
            optimizer.zero_grad()
            table(torch.tensor([hvd.rank() % 4, 0])).sum().backward()
            optimizer.step()
            taking_part = [r for r in range(hvd.size()) if step < 2 + r]
            grad = table.weight.grad.to_dense().flatten()
            assert grad[0].item() == len(taking_part) + sum(r % 4 == 0 for r in taking_part)
        hvd.join()
        hvd.broadcast_parameters(table.state_dict(), root_rank=hvd.size() - 1)
        assert hvd.allreduce(table.weight.detach(), op=hvd.Max).equal(hvd.allreduce(table.weight.detach(), op=hvd.Min))


def check_several_join_one_after_the_other() -> None:
    if hvd.size() == 1:
        return
    with extended():
        for _ in range(3):
            for step in range(hvd.rank() + 1):
                here = [r for r in range(hvd.size()) if r >= step]
                assert hvd.allreduce(torch.tensor([hvd.rank()]), op=hvd.Min, name="least").item() == here[0]
                assert hvd.allgather(torch.tensor([hvd.rank()]), name="here").tolist() == here
                hvd.barrier()
            hvd.join()


def check_automatic_names_meet_again() -> None:
    """Ranks that went on made more calls; operations without a name find each other after join all the same."""
    for _ in range(2):
        for _ in range(3 * hvd.rank()):
            hvd.allreduce(torch.ones(2), name="while.others.have.joined")
        hvd.join()
        assert hvd.allreduce(torch.ones(3), op=hvd.Sum).tolist() == [hvd.size()] * 3
        assert hvd.allgather(torch.tensor([hvd.rank()])).tolist() == list(range(hvd.size()))


def check_by_default_others_are_refused() -> None:
    """S29: without the mode the error is upstream's, and says what to do."""
    if hvd.size() == 1:
        return
    if hvd.rank() != 0:
        with pytest.raises(hvd.HorovodInternalError, match=r"not supported while ranks have joined.*HOROVOD_JOIN_MODE"):
            hvd.allgather(torch.ones(1), name="refused")
    hvd.join()


def check_gathers_that_had_a_plan_are_refused() -> None:
    """By default, also between rounds of one plan; ranks on other hosts leave nothing open that join would wait for."""
    last = hvd.size() - 1
    for step in range(5):
        if step < 3:
            assert hvd.allgather(torch.ones(2), name="steady").shape == (2 * hvd.size(),)
        elif hvd.rank() != last:
            with pytest.raises(hvd.HorovodInternalError, match="not supported while ranks have joined"):
                hvd.allgather(torch.ones(2), name="steady")
    hvd.join()


def check_modes_that_differ() -> None:
    """All ranks are told which of them have which mode, and may try again."""
    if hvd.size() == 1:
        return
    hvd.shutdown()
    os.environ["HOROVOD_JOIN_MODE"] = "extended" if int(os.environ["HOROVOD_RANK"]) else "default"
    try:
        with pytest.raises(ValueError, match=r"HOROVOD_JOIN_MODE differs: rank\(s\) 1.* rank\(s\) 0 have the default"):
            hvd.init()
        os.environ["HOROVOD_JOIN_MODE"] = "sometimes"
        with pytest.raises(ValueError, match="must be 'default' or 'extended'"):
            hvd.init()
    finally:
        del os.environ["HOROVOD_JOIN_MODE"]
        hvd.init()
