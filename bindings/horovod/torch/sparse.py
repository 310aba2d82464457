"""Sparse tensors are reduced by gathering: every rank's indices and values, one behind the other."""

from __future__ import annotations

from collections.abc import Callable

import torch

from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.common.types import ReduceOp
from horovod.torch.gather_ops import allgather_async
from horovod.torch.pending import synchronize

__all__ = ["sparse_allreduce_async"]


def sparse_allreduce_async(
    tensor: torch.Tensor, name: str | None, op: int, process_set: ProcessSet = global_process_set
) -> Callable[[], torch.Tensor]:
    """Starts a Sum or Average of sparse tensors; calling the result waits and gives a sparse tensor, not coalesced.

    Entries that this rank has several times are added up before they are sent.
    """
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"sparse_allreduce_async takes a sparse torch.Tensor, got {type(tensor).__name__}.")
    if tensor.layout is not torch.sparse_coo:
        raise ValueError(f"sparse_allreduce_async takes a sparse COO tensor, not one with layout {tensor.layout}.")
    if op not in (ReduceOp.AVERAGE, ReduceOp.SUM):
        raise ValueError(f"sparse_allreduce_async: only Average and Sum can be used, not op={op!r}.")
    tensor = tensor.detach().coalesce()
    rows = tensor._indices().transpose(0, 1).contiguous()
    indices = allgather_async(rows, f"{name}.indices" if name else None, process_set)
    values = allgather_async(tensor._values(), f"{name}.values" if name else None, process_set)

    def finish() -> torch.Tensor:
        gathered = synchronize(values)
        if op == ReduceOp.AVERAGE:
            gathered = gathered / process_set.size()
        where = synchronize(indices).transpose(0, 1)
        return torch.sparse_coo_tensor(where, gathered, tensor.shape, check_invariants=False)

    return finish
