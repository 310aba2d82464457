"""reducescatter: every member publishes its tensors and reduces the rows that belong to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from horovod.common.calls import automatic_name, rows_of, set_id_of
from horovod.common.checks import check_factor
from horovod.common.exceptions import HorovodInternalError, UsageError
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.common.types import CollectiveKind, PullOp, ReduceOp
from horovod.torch.compression import Compression, Compressor
from horovod.torch.dtypes import engine_dtype
from horovod.torch.gather_ops import allgather, grouped_allgather, members_of, with_gaps
from horovod.torch.pending import PulledEntry, handles, require_client, start, synchronize
from horovod.torch.signatures import (
    by_dtype,
    check_tensors,
    compress_all,
    make_signature,
    part_name,
)
from horovod.torch.staging import wire_copy

__all__ = ["grouped_reducescatter", "grouped_reducescatter_async", "reducescatter", "reducescatter_async", "rows_of"]

Average, Sum = int(ReduceOp.AVERAGE), int(ReduceOp.SUM)


def _check_arguments(tensors: Sequence[torch.Tensor], op: int, what: str) -> None:
    for tensor in tensors:
        engine_dtype(tensor.dtype, what)
        if tensor.dim() == 0:
            raise UsageError(f"{what}: a tensor without dimensions can't be cut along dimension 0; reshape it.")
        if tensor.dtype is torch.bool and op == Average:
            raise ValueError(f"{what}: booleans have no average; use op=Sum.")
    if op not in (Average, Sum):
        raise HorovodInternalError(f"{what}: only Average and Sum can be used here, not op={op!r}.")


def _read_scattered(op: PullOp, inputs: Sequence[torch.Tensor], members: int, me: int) -> list[torch.Tensor]:
    """Reduces this member's rows of each tensor."""
    outputs, offset = [], 0
    for tensor in inputs:
        first, count = rows_of(len(tensor), members, me)
        row_bytes = int(torch.Size(tensor.shape[1:]).numel()) * tensor.element_size()
        output = torch.empty((count, *tensor.shape[1:]), dtype=tensor.dtype, device="cpu")
        if output.nbytes:
            op.reduce(offset + first * row_bytes, output.data_ptr(), output.nbytes)
        offset += tensor.nbytes
        outputs.append(output if tensor.is_cpu else output.to(tensor.device))
    return outputs


def _start(
    tensors: Sequence[torch.Tensor],
    name: str | None,
    op: int,
    process_set: ProcessSet,
    factors: tuple[float, float],
    group: bool,
) -> tuple[PulledEntry, int]:
    """One operation for each dtype among the tensors."""
    handle = handles.advance()
    what = f"reducescatter.{name or 'noname'}"
    tensors = check_tensors(tensors, what)
    _check_arguments(tensors, op, what)
    client, set_id = require_client(), set_id_of(process_set)
    groups, ops = by_dtype(tensors), []
    signatures = [
        make_signature(
            CollectiveKind.REDUCESCATTER, part_name(name, part, tensors[positions[0]].dtype), tensors[positions[0]].dtype,
            [tensors[p].shape for p in positions], set_id, op=op, prescale=factors[0], postscale=factors[1], group=group,
        )
        for part, positions in enumerate(groups)
    ]  # fmt: skip
    for part, (signature, positions) in enumerate(zip(signatures, groups, strict=True)):
        sources = [wire_copy(tensors[p]) for p in positions]
        pieces = [(source.data_ptr(), source.nbytes) for source in sources]
        unnamed = automatic_name("reducescatter", name, handle, part)
        ops.append(client.gather(signature, pieces, (), keep=sources, name=unnamed))
    ranks = members_of(set_id)
    me = ranks.index(client.rank)

    def read(done: Sequence[PullOp]) -> Any:
        outputs: list[Any] = [None] * len(tensors)
        for finished, positions in zip(done, groups, strict=True):
            parts = _read_scattered(finished, [tensors[p] for p in positions], len(ranks), me)
            for position, output in zip(positions, parts, strict=True):
                outputs[position] = output
        return tuple(outputs) if group else outputs[0]

    return PulledEntry(ops, read), handle


def reducescatter_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Starts a reduction of which each rank gets its part of the rows."""
    return start(*_start([tensor], name, op, process_set, (prescale_factor, postscale_factor), False))


def grouped_reducescatter_async(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Starts several of them as one operation; ``synchronize`` gives a tuple."""
    return start(*_start(tensors, name, op, process_set, (prescale_factor, postscale_factor), True))


class _Reducescatter(torch.autograd.Function):
    """The gradients of the parts are gathered, times the set's size for a Sum, times the factors."""

    @staticmethod
    def forward(
        ctx: Any, name: str | None, op: int, group: ProcessSet, pre: float, post: float, *tensors: torch.Tensor
    ) -> Any:
        what = f"reducescatter.{name or 'noname'}"
        set_id_of(group)
        members = (group.size() or 1) if op == Sum else 1
        ctx.rows = [len(tensor) if tensor.dim() else 0 for tensor in tensors]
        ctx.group, ctx.factor = group, check_factor(pre, what) * check_factor(post, what) * members
        if len(tensors) == 1:
            return (synchronize(reducescatter_async(tensors[0], name, op, group, pre, post)),)
        return synchronize(grouped_reducescatter_async(tensors, name, op, group, pre, post))

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        gathered = grouped_allgather(grads, process_set=ctx.group)
        if any(len(grad) != rows for grad, rows in zip(gathered, ctx.rows, strict=True)):
            present = allgather(torch.tensor([ctx.group.rank()], device="cpu"), process_set=ctx.group).tolist()
            gathered = tuple(
                _without_absent(grad, rows, present, ctx.group.size())
                for grad, rows in zip(gathered, ctx.rows, strict=True)
            )
        return (None, None, None, None, None, *[grad * ctx.factor for grad in gathered])


def _without_absent(grad: torch.Tensor, rows: int, present: Sequence[int], members: int) -> torch.Tensor:
    """Zeros where nobody has reduced the rows, because the rank that they belong to has joined."""
    wanted = [rows_of(rows, members, member)[1] for member in range(members)]
    return with_gaps(grad, [count * (member in present) for member, count in enumerate(wanted)], wanted)


def reducescatter(
    tensor: torch.Tensor,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> torch.Tensor:
    """This rank's rows of the reduction over all ranks; gradients flow through it.

    Dimension 0 is cut into as many parts as there are ranks, the first ones longer by one.  Sum and Average only.
    """
    ((compressed, ctx),) = compress_all([tensor], compression, f"reducescatter.{name or 'noname'}")
    (part,) = _Reducescatter.apply(name, op, process_set, prescale_factor, postscale_factor, compressed)
    return compression.decompress(part, ctx)


def grouped_reducescatter(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[torch.Tensor]:
    """Several reducescatters as one operation; gradients flow through it."""
    pairs = compress_all(tensors, compression, f"reducescatter.{name or 'noname'}")
    parts = _Reducescatter.apply(
        name, op, process_set, prescale_factor, postscale_factor, *[compressed for compressed, _ in pairs]
    )
    return [compression.decompress(part, ctx) for part, (_, ctx) in zip(parts, pairs, strict=True)]
