"""Sparse tensors on real ranks, gathered and as dense ones above the density limit (P65)."""

from __future__ import annotations

import os

import horovod.torch as hvd
import pytest
import torch
from horovod.torch import sparse

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int32, torch.int64, torch.complex64]


def coo(where: list[list[int]], values: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.sparse_coo_tensor(torch.tensor(where, dtype=torch.int64), values, shape, check_invariants=False)


def is_dense(name: str) -> bool:
    return (0, name) in sparse._dense


def check_dtypes_and_shapes() -> None:
    """Duplicates, other numbers of values on each rank, none at all, one and several sparse dimensions, rows of values."""
    for dtype in DTYPES:
        for turn in range(3):  # the third is dense where the second was above the limit
            total = [torch.zeros(shape, dtype=dtype) for shape in [(6,), (6, 2), (2, 3), (2, 3, 2)]]
            for rank in range(hvd.size()):
                tensors = _of_rank(rank, dtype)
                for there, tensor in zip(total, tensors, strict=True):
                    there += tensor.to_dense()
                if rank == hvd.rank():
                    mine = tensors
            for index, (tensor, wanted) in enumerate(zip(mine, total, strict=True)):
                name = f"{dtype}.{index}"
                got = hvd.sparse_allreduce_async(tensor, name, hvd.Sum)()
                assert got.layout is torch.sparse_coo
                assert (got.dtype, got.shape, got.sparse_dim()) == (dtype, tensor.shape, tensor.sparse_dim())
                assert torch.equal(got.to_dense(), wanted), (name, turn, is_dense(name))


def _of_rank(rank: int, dtype: torch.dtype) -> list[torch.Tensor]:
    count = rank % 3 * 2  # none, two with the same index, four
    ones = torch.arange(1, count + 1).to(dtype)
    rows = torch.stack([ones, ones * 2], 1)
    line, place = [[1, 1, 5, 0][:count]], [[1, 1, 0, 0][:count], [2, 2, 1, 0][:count]]
    return [
        coo(line, ones, (6,)), coo(line, rows, (6, 2)), coo(place, ones, (2, 3)), coo(place, rows, (2, 3, 2)),
    ]  # fmt: skip


def check_16_bit_duplicates_are_added_in_fp32() -> None:
    x = coo([[0] * 4097], torch.cat([torch.tensor([2048.0]), torch.full((4096,), 0.5)]).half(), (2,))
    assert hvd.sparse_allreduce_async(x, "half", hvd.Average)().to_dense()[0].item() == 4096.0


def check_averages() -> None:
    for dtype in (torch.float32, torch.int64):
        x = coo([[hvd.rank()]], torch.tensor([7 * hvd.size()], dtype=dtype), (hvd.size(),))
        for _ in range(2):
            got = hvd.sparse_allreduce_async(x, f"average.{dtype}", hvd.Average)()
            assert got.dtype is dtype
            assert got.to_dense().tolist() == [7] * hvd.size()
    with pytest.raises(ValueError, match="booleans"):
        hvd.sparse_allreduce_async(coo([[0]], torch.tensor([True]), (2,)), "bool", hvd.Sum)


def check_dense_above_the_limit_and_back() -> None:
    """P65: with more rows from all ranks than the tensor has, the next call is dense; rows keep their places, zeros too."""
    if hvd.size() == 1:
        return
    rows = 8

    def reduce(per_rank: int, name: str = "table") -> torch.Tensor:
        values = torch.full((per_rank, 2), float(hvd.rank() + 1))
        values[0] = 0.0  # a row that is there, with zeros
        return hvd.sparse_allreduce_async(coo([list(range(per_rank))], values, (rows, 2)), name, hvd.Sum)()

    enough = rows // hvd.size() + 1
    for turn in range(3):
        got = reduce(enough)
        assert is_dense("table")
        assert got.is_coalesced() == (turn > 0)
        assert got.coalesce()._indices().tolist() == [list(range(enough))]
        wanted = float(sum(range(1, hvd.size() + 1)))
        assert got.coalesce()._values().tolist() == [[0.0, 0.0], *[[wanted, wanted]] * (enough - 1)]
    reduce(1)
    assert is_dense("table") == (hvd.size() > rows)
    assert not reduce(1).is_coalesced()
    assert hvd.size() > rows or not is_dense("table")


def check_the_limit_can_be_set() -> None:
    x = coo([[0, 1]], torch.ones(2), (4,))
    for limit, wanted in [("inf", False), ("0", True)]:
        os.environ["HVD_SPARSE_DENSITY_LIMIT"] = limit
        hvd.sparse_allreduce_async(x, f"limit.{limit}", hvd.Sum)()
        assert is_dense(f"limit.{limit}") is wanted
    del os.environ["HVD_SPARSE_DENSITY_LIMIT"]


def check_join_and_init_begin_with_gathering() -> None:
    """Ranks that have missed results would decide otherwise."""
    x = coo([[0, 1]], torch.ones(2), (2,))
    if hvd.size() > 1:
        hvd.sparse_allreduce_async(x, "again", hvd.Sum)()
        assert is_dense("again")
        hvd.join()
        assert not is_dense("again")
        assert hvd.sparse_allreduce_async(x, "again", hvd.Sum)().to_dense().tolist() == [hvd.size()] * 2


def check_shapes_that_differ() -> None:
    """P16: the same error on all ranks, with both shapes and the ranks that have them, and the next call works."""
    if hvd.size() == 1:
        return
    x = coo([[0]], torch.ones(1), (4 + (hvd.rank() == 1),))
    for name in ("differ", None):
        with pytest.raises(hvd.HorovodInternalError, match=r"sparse dimensions are rank 0 \[4\], rank 1 \[5\]"):
            hvd.sparse_allreduce_async(x, name, hvd.Sum)()
        y = coo([[0]], torch.ones(1), (4,))
        assert hvd.sparse_allreduce_async(y, name, hvd.Sum)().to_dense().tolist() == [hvd.size(), 0, 0, 0]


def check_embeddings_train_alike() -> None:
    """P65, S28: sparse gradients above the limit give what dense ones give, to the last bit, with integer values."""
    tables = [torch.nn.Embedding(5, 2, sparse=sparse) for sparse in (True, False)]
    for table in tables:
        torch.nn.init.zeros_(table.weight)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(table.parameters(), lr=1.0), op=hvd.Sum)
        for step in range(4):
            optimizer.zero_grad()
            if step != hvd.rank():  # one rank has no gradient
                table(torch.tensor([step % 5, 1, 1, (hvd.rank() + 3) % 5])).sum().backward()
            optimizer.step()
    assert torch.equal(tables[0].weight, tables[1].weight)
