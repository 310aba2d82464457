"""Sparse tensors are reduced by gathering: every rank's indices and values, one behind the other.

Theory.  What is gathered grows with the number of ranks, a dense sum does not.  So a name whose ranks together had more rows
than the density limit allows is reduced as a dense tensor from the next call on, with a flag for each row that some rank
had, and comes back as a sparse one all the same.  The way back is open: when so few rows are left that even all ranks
having all of them would stay below the limit, the name is gathered again.  Every rank decides by the same numbers, those of
the result, so nothing is asked.  Whatever lets ranks miss results (a new epoch, a join) makes all of them start anew.

Indices are on the host until the end, whatever device the values are on: rows are counted and compared there.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from horovod.common import basics, config
from horovod.common.exceptions import MismatchError
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.common.types import ReduceOp
from horovod.torch.gather_ops import Gathered, start_gather
from horovod.torch.pending import require_client, synchronize
from horovod.torch.reduce_ops import allreduce_async_
from horovod.torch.signatures import set_id_of

__all__ = ["forget_densities", "sparse_allreduce_async"]

_16_BIT = (torch.float16, torch.bfloat16)

# Process set and name of what is reduced as a dense tensor.
_dense: set[tuple[int, str]] = set()


def forget_densities() -> None:
    """Everything is gathered at its next call."""
    _dense.clear()


basics.on_new_epoch(forget_densities)


def sparse_allreduce_async(
    tensor: torch.Tensor, name: str | None, op: int, process_set: ProcessSet = global_process_set
) -> Callable[[], torch.Tensor]:
    """Starts a Sum or Average of sparse tensors; calling the result waits and gives a sparse tensor, not always coalesced.

    ``tensor``: COO, hybrid ones too, of the same shape and number of sparse dimensions on all ranks, which may have
    different numbers of values, or none.  Values that this rank has several times are added up before they are sent.
    """
    _check(tensor, op)
    tensor = _coalesced(tensor.detach())
    if name and (set_id_of(process_set), str(name)) in _dense:
        return _reduce_densely(tensor, str(name), op, process_set)
    return _gather(tensor, name, op, process_set)


def _check(tensor: torch.Tensor, op: int) -> None:
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"sparse_allreduce_async takes a sparse torch.Tensor, got {type(tensor).__name__}.")
    if tensor.layout is not torch.sparse_coo:
        raise ValueError(f"sparse_allreduce_async takes a sparse COO tensor, not one with layout {tensor.layout}.")
    if op not in (ReduceOp.AVERAGE, ReduceOp.SUM):
        raise ValueError(f"sparse_allreduce_async: only Average and Sum can be used, not op={op!r}.")
    if tensor.dtype is torch.bool:
        raise ValueError("sparse_allreduce_async: booleans have no sum; reduce their dense form with op=Max or op=Min.")


def _coalesced(tensor: torch.Tensor) -> torch.Tensor:
    """With 16-bit values added up in fp32 and rounded once, as in any other reduction."""
    if tensor.dtype in _16_BIT and not tensor.is_coalesced():
        return tensor.float().coalesce().to(tensor.dtype)
    return tensor.coalesce()


# ---- gathered


def _gather(tensor: torch.Tensor, name: str | None, op: int, process_set: ProcessSet) -> Callable[[], torch.Tensor]:
    """Each rank's indices come behind its shape: ranks with different shapes would add up what does not belong together."""
    shape = tensor.shape[: tensor.sparse_dim()]
    rows = torch.cat([torch.tensor([shape], dtype=torch.int64, device="cpu"), tensor._indices().cpu().transpose(0, 1)])
    indices, _ = start_gather(rows, f"{name}.indices" if name else None, process_set)
    values, _ = start_gather(tensor._values(), f"{name}.values" if name else None, process_set)

    def finish() -> torch.Tensor:
        gathered: torch.Tensor = values.finish().tensors[0]
        where = _without_shapes(indices.finish(), shape, name, process_set)
        if name and len(where) > config.sparse_density_limit() * math.prod(shape):
            _dense.add((set_id_of(process_set), str(name)))
        if op == ReduceOp.AVERAGE:
            gathered = _divided(gathered, process_set.size() or 1)
        return torch.sparse_coo_tensor(
            where.transpose(0, 1), gathered, tensor.shape, device=gathered.device, check_invariants=False
        )

    return finish


def _divided(values: torch.Tensor, size: int) -> torch.Tensor:
    """Integers as in any other average: truncated."""
    if values.dtype.is_floating_point or values.dtype.is_complex:
        return values / size
    return torch.div(values, size, rounding_mode="trunc")


def _without_shapes(gathered: Gathered, shape: torch.Size, name: str | None, process_set: ProcessSet) -> torch.Tensor:
    """The indices alone; MismatchError on all ranks when their tensors have different shapes."""
    rows = gathered.tensors[0]
    counts = torch.tensor([of_rank[0] for of_rank in gathered.rows], device="cpu")
    starts = (counts.cumsum(0) - counts)[counts > 0]  # a rank that has joined has sent nothing
    if len(starts) and not bool((rows[starts] == rows[starts[0]]).all()):
        ranks = require_client().process_sets()[set_id_of(process_set)]
        present = [rank for rank, count in zip(ranks, counts.tolist(), strict=True) if count]
        sides = ", ".join(f"rank {r} {shape}" for r, shape in zip(present, rows[starts].tolist(), strict=True))
        raise MismatchError(
            f"Mismatched ALLREDUCE of sparse tensors {name or 'without a name'}: their sparse dimensions are {sides}. All "
            "ranks must give tensors of the same shape."
        )
    kept = torch.ones(len(rows), dtype=torch.bool, device="cpu")
    kept[starts] = False
    return rows[kept]


# ---- as a dense tensor


def _reduce_densely(tensor: torch.Tensor, name: str, op: int, process_set: ProcessSet) -> Callable[[], torch.Tensor]:
    shape, indices, values = tensor.shape[: tensor.sparse_dim()], tensor._indices().cpu(), tensor._values()
    rows, steps = math.prod(shape), _steps(shape)
    mine = (indices * steps).sum(0)
    dense = values.new_zeros((rows, *values.shape[1:])).index_copy_(0, mine.to(values.device), values)
    flags = torch.zeros(rows, dtype=torch.uint8, device="cpu").index_fill_(0, mine, 1)
    sums = allreduce_async_(dense, name=f"{name}.dense", op=op, process_set=process_set)
    found = allreduce_async_(flags, name=f"{name}.rows", op=int(ReduceOp.MAX), process_set=process_set)

    def finish() -> torch.Tensor:
        reduced = synchronize(sums)
        where = synchronize(found).nonzero().flatten()
        if len(where) * (process_set.size() or 1) <= config.sparse_density_limit() * rows:
            _dense.discard((set_id_of(process_set), name))
        places = where // steps % torch.tensor(shape, dtype=torch.int64, device="cpu").unsqueeze(1)
        device = reduced.device
        return torch.sparse_coo_tensor(
            places, reduced[where.to(device)], tensor.shape, device=device, check_invariants=False, is_coalesced=True
        )

    return finish


def _steps(shape: torch.Size) -> torch.Tensor:
    """By how much an index of each sparse dimension moves on in the row of all places; a column."""
    steps = [math.prod(shape[dim + 1 :]) for dim in range(len(shape))]
    return torch.tensor(steps, dtype=torch.int64, device="cpu").unsqueeze(1)
