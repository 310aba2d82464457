"""allgather, broadcast and alltoall: every member publishes, every member copies what it needs into its own memory.

Sizes of dimension 0 and splits travel with the round, so outputs are made when they are known: at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from horovod.common.calls import automatic_name, clean_splits, set_id_of
from horovod.common.checks import check_root
from horovod.common.exceptions import MismatchError, UsageError
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.common.types import CollectiveKind, PullOp
from horovod.torch.compression import Compression
from horovod.torch.dtypes import engine_dtype
from horovod.torch.pending import PulledEntry, handles, increment_version, require_client, start, synchronize
from horovod.torch.reduce_ops import allreduce, grouped_allreduce
from horovod.torch.signatures import by_dtype, check_tensor, check_tensors, make_signature, part_name
from horovod.torch.staging import copy_out, in_place_target, new_like, wire_copy

__all__ = [
    "Gathered",
    "allgather",
    "allgather_async",
    "alltoall",
    "alltoall_async",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "grouped_allgather",
    "grouped_allgather_async",
    "members_of",
    "refuse_scalars",
    "start_gather",
    "with_gaps",
]


def members_of(set_id: int) -> tuple[int, ...]:
    """The ranks of a set; empty when it is not known, which the client will say better."""
    return tuple(require_client().process_sets().get(set_id, ()))


def refuse_scalars(tensors: Sequence[torch.Tensor], what: str) -> None:
    """Every rank must have dimension 0; told after the round, so that all members of it are told."""
    if any(tensor.dim() == 0 for tensor in tensors):
        raise MismatchError(
            f"{what}: a tensor without dimensions can't be cut or joined along dimension 0; reshape it."
        )


def _open_shape(tensor: torch.Tensor) -> tuple[int, ...]:
    return (-1, *tensor.shape[1:]) if tensor.dim() else ()


def _row_bytes(tensor: torch.Tensor) -> int:
    """Bytes of one index of dimension 0, also where there is none."""
    return int(torch.Size(tensor.shape[1:]).numel()) * tensor.element_size()


def _like_device(result: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    return result if tensor.is_cpu else result.to(tensor.device)


# ---- allgather


class Gathered:
    """What one allgather of some tensors of one dtype gives, and where each member's rows are."""

    __slots__ = ("rows", "tensors")

    def __init__(self, tensors: list[torch.Tensor], rows: list[list[int]]) -> None:
        self.tensors = tensors
        self.rows = rows


def _read_gathered(op: PullOp, inputs: Sequence[torch.Tensor], members: int) -> Gathered:
    """Joins the members' rows, tensor by tensor."""
    rows = [list(op.meta(member)) for member in range(members)]
    outputs, copies, offsets = [], [], [0] * members
    for index, tensor in enumerate(inputs):
        total = sum(counts[index] for counts in rows)
        output = torch.empty((total, *tensor.shape[1:]), dtype=tensor.dtype, device="cpu")
        address, row_bytes = output.data_ptr(), _row_bytes(tensor)
        for member in range(members):
            nbytes = rows[member][index] * row_bytes
            copies.append((member, offsets[member], address, nbytes))
            offsets[member] += nbytes
            address += nbytes
        outputs.append(output)
    op.copy([copy for copy in copies if copy[3]])
    return Gathered([_like_device(o, t) for o, t in zip(outputs, inputs, strict=True)], rows)


def _submit_gather(
    tensors: Sequence[torch.Tensor], name: str | None, process_set: ProcessSet, handle: int, group: bool, part: int = 0
) -> tuple[PullOp, list[torch.Tensor]]:
    client, set_id = require_client(), set_id_of(process_set)
    shapes = [_open_shape(tensor) for tensor in tensors]
    kind = CollectiveKind.ALLGATHER
    named = part_name(name, part, tensors[0].dtype)
    signature = make_signature(kind, named, tensors[0].dtype, shapes, set_id, group=group)
    sources = [wire_copy(tensor) for tensor in tensors]
    op = client.gather(
        signature,
        [(source.data_ptr(), source.nbytes) for source in sources],
        [len(tensor) if tensor.dim() else 1 for tensor in tensors],
        keep=sources,
        name=automatic_name("allgather", name, handle, part),
    )
    return op, list(tensors)


def start_gather(tensor: torch.Tensor, name: str | None, process_set: ProcessSet) -> tuple[PulledEntry, int]:
    """Starts joining the ranks' tensors; the entry, whose ``finish`` gives ``Gathered``, and its handle."""
    handle = handles.advance()
    what = f"allgather.{name or 'noname'}"
    check_tensor(tensor, what)
    op, inputs = _submit_gather([tensor], name, process_set, handle, False)
    members = len(members_of(set_id_of(process_set)))

    def read(ops: Sequence[PullOp]) -> Gathered:
        refuse_scalars(inputs, what)
        return _read_gathered(ops[0], inputs, members)

    return PulledEntry([op], read), handle


class _GatherEntry:
    """Gives users the tensors alone."""

    __slots__ = ("_entry", "_group")

    def __init__(self, entry: PulledEntry, group: bool) -> None:
        self._entry = entry
        self._group = group

    def poll(self) -> bool:
        return self._entry.poll()

    def finish(self) -> Any:
        gathered: Gathered = self._entry.finish()
        return tuple(gathered.tensors) if self._group else gathered.tensors[0]


def allgather_async(tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set) -> int:
    """Starts joining the ranks' tensors along dimension 0; the handle for ``poll`` and ``synchronize``."""
    entry, handle = start_gather(tensor, name, process_set)
    return start(_GatherEntry(entry, False), handle)


def _start_grouped_gather(
    tensors: Sequence[torch.Tensor], name: str | None, process_set: ProcessSet
) -> tuple[PulledEntry, int]:
    """One operation for each dtype in the group."""
    handle = handles.advance()
    what = f"allgather.{name or 'noname'}"
    tensors = check_tensors(tensors, what)
    for tensor in tensors:
        engine_dtype(tensor.dtype, what)
    groups, ops = by_dtype(tensors), []
    for part, positions in enumerate(groups):
        ops.append(_submit_gather([tensors[p] for p in positions], name, process_set, handle, True, part)[0])
    members = len(members_of(set_id_of(process_set)))

    def read(done: Sequence[PullOp]) -> Gathered:
        refuse_scalars(tensors, what)
        outputs: list[Any] = [None] * len(tensors)
        rows = [[0] * len(tensors) for _ in range(members)]
        for op, positions in zip(done, groups, strict=True):
            part = _read_gathered(op, [tensors[p] for p in positions], members)
            for index, position in enumerate(positions):
                outputs[position] = part.tensors[index]
                for member in range(members):
                    rows[member][position] = part.rows[member][index]
        return Gathered(outputs, rows)

    return PulledEntry(ops, read), handle


def grouped_allgather_async(
    tensors: Sequence[torch.Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Starts joining several tensors in one operation; ``synchronize`` gives a tuple."""
    entry, handle = _start_grouped_gather(tensors, name, process_set)
    return start(_GatherEntry(entry, True), handle)


def with_gaps(rows: torch.Tensor, had: Sequence[int], wanted: Sequence[int]) -> torch.Tensor:
    """Members' rows, with zeros for those of members that have joined and sent none."""
    if list(had) == list(wanted):
        return rows
    pieces = [
        piece if len(piece) == count else rows.new_zeros((count, *rows.shape[1:]))
        for piece, count in zip(rows.split(list(had)), wanted, strict=True)
    ]
    return torch.cat(pieces)


def _own_rows(grad: torch.Tensor, rows: list[int], index: int) -> torch.Tensor:
    return grad.narrow(0, sum(rows[:index]), rows[index])


class _Allgather(torch.autograd.Function):
    """The gradient is averaged over the ranks; each rank keeps that of its own rows."""

    @staticmethod
    def forward(ctx: Any, name: str | None, group: ProcessSet, grouped: bool, *tensors: torch.Tensor) -> Any:
        if grouped:
            gathered = _start_grouped_gather(list(tensors), name, group)[0].finish()
        else:
            gathered = start_gather(tensors[0], name, group)[0].finish()
        ctx.rows, ctx.group = gathered.rows, group
        return tuple(gathered.tensors)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        me = ctx.group.rank()
        averaged = grouped_allreduce(grads, process_set=ctx.group) if len(grads) > 1 else [
            allreduce(grads[0], process_set=ctx.group)
        ]  # fmt: skip
        own = [_own_rows(grad, [counts[index] for counts in ctx.rows], me) for index, grad in enumerate(averaged)]
        return (None, None, None, *own)


def allgather(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """The ranks' tensors joined along dimension 0, in the order of ranks; gradients flow through it.

    Dimension 0 may differ between ranks, the others may not.
    """
    result: torch.Tensor = _Allgather.apply(name, process_set, False, tensor)[0]
    return result


def grouped_allgather(
    tensors: Sequence[torch.Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> tuple[torch.Tensor, ...]:
    """Several allgathers as one operation; gradients flow through it."""
    checked = check_tensors(tensors, f"allgather.{name or 'noname'}")
    return tuple(_Allgather.apply(name, process_set, True, *checked))


# ---- broadcast


def _start_broadcast(
    tensor: torch.Tensor, in_place: bool, root_rank: int, name: str | None, process_set: ProcessSet
) -> tuple[PulledEntry, int]:
    handle = handles.advance()
    what = f"broadcast.{name or 'noname'}"
    check_tensor(tensor, what)
    client, set_id = require_client(), set_id_of(process_set)
    ranks = members_of(set_id)
    root_rank = check_root(root_rank, ranks, what)
    signature = make_signature(CollectiveKind.BROADCAST, name, tensor.dtype, [tensor.shape], set_id, root=root_rank)
    target, buffer = in_place_target(tensor, what) if in_place else new_like(tensor)
    is_root = client.rank == root_rank
    source = wire_copy(tensor) if is_root else None
    pieces = [] if source is None else [(source.data_ptr(), source.nbytes)]
    op = client.gather(signature, pieces, (), keep=source, name=automatic_name("broadcast", name, handle))
    root = ranks.index(root_rank)

    def read(ops: Sequence[PullOp]) -> torch.Tensor:
        if in_place and is_root:
            return tensor
        if buffer.nbytes:
            ops[0].copy([(root, 0, buffer.data_ptr(), buffer.nbytes)])
        if buffer is not target:
            copy_out(target, buffer)
        return target

    if in_place:
        increment_version(tensor)
    return PulledEntry([op], read), handle


def broadcast_async(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Starts a copy of the root's tensor into a new one; the handle for ``poll`` and ``synchronize``."""
    entry, handle = _start_broadcast(tensor, False, root_rank, name, process_set)
    return start(entry, handle)


def broadcast_async_(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Starts a copy of the root's tensor into this one."""
    entry, handle = _start_broadcast(tensor, True, root_rank, name, process_set)
    return start(entry, handle)


def broadcast_(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """Copies the root's values into this tensor, and returns it.  ``root_rank`` is a global rank."""
    result: torch.Tensor = _start_broadcast(tensor, True, root_rank, name, process_set)[0].finish()
    return result


class _Broadcast(torch.autograd.Function):
    """The gradient is averaged over the ranks and belongs to the root; elsewhere it is zero."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, root_rank: int, name: str | None, group: ProcessSet) -> Any:
        ctx.settings = root_rank, group
        return _start_broadcast(tensor, False, root_rank, name, group)[0].finish()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        root_rank, group = ctx.settings
        averaged = allreduce(grads[0], None, None, Compression.none, process_set=group)
        return averaged if require_client().rank == root_rank else averaged * 0, None, None, None


def broadcast(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """The root's values as a new tensor, also on the root; gradients flow through it.  ``root_rank`` is global."""
    result: torch.Tensor = _Broadcast.apply(tensor, root_rank, name, process_set)
    return result


# ---- alltoall


def _clean_splits(splits: Any, rows: int, members: int, what: str) -> tuple[list[int], torch.device]:
    """Rows for each member, and where received splits go; UsageError for splits that make no sense."""
    device = torch.device("cpu")
    if isinstance(splits, torch.Tensor):
        if splits.dim() != 1 or splits.dtype not in (torch.int32, torch.int64):
            raise UsageError(f"{what}: splits must be a 1-dimensional tensor of int32 or int64.")
        device, splits = splits.device, splits.tolist()
    return clean_splits(splits, rows, members, what), device


def _read_exchanged(op: PullOp, tensor: torch.Tensor, members: int, me: int) -> tuple[torch.Tensor, list[int]]:
    """Takes from each member the rows that it has for this one."""
    splits = [op.meta(member) for member in range(members)]
    received = [counts[me] for counts in splits]
    output = torch.empty((sum(received), *tensor.shape[1:]), dtype=tensor.dtype, device="cpu")
    address, row_bytes, copies = output.data_ptr(), _row_bytes(tensor), []
    for member in range(members):
        nbytes = received[member] * row_bytes
        if nbytes:
            copies.append((member, sum(splits[member][:me]) * row_bytes, address, nbytes))
        address += nbytes
    op.copy(copies)
    return _like_device(output, tensor), received


def _start_alltoall(
    tensor: torch.Tensor, splits: Any, name: str | None, process_set: ProcessSet
) -> tuple[PulledEntry, int]:
    handle = handles.advance()
    what = f"alltoall.{name or 'noname'}"
    check_tensor(tensor, what)
    client, set_id = require_client(), set_id_of(process_set)
    ranks = members_of(set_id)
    counts, device = [1] * len(ranks), torch.device("cpu")
    if tensor.dim():
        counts, device = _clean_splits(splits, len(tensor), len(ranks), what)
    signature = make_signature(CollectiveKind.ALLTOALL, name, tensor.dtype, [_open_shape(tensor)], set_id)
    source = wire_copy(tensor)
    nbytes = sum(counts) * _row_bytes(tensor) if tensor.dim() else source.nbytes
    pieces = [(source.data_ptr(), nbytes)]
    op = client.gather(signature, pieces, counts, keep=source, name=automatic_name("alltoall", name, handle))
    me = ranks.index(client.rank)

    def read(ops: Sequence[PullOp]) -> tuple[torch.Tensor, torch.Tensor]:
        refuse_scalars([tensor], what)
        output, received = _read_exchanged(ops[0], tensor, len(ranks), me)
        return output, torch.tensor(received, dtype=torch.int32, device=device)

    return PulledEntry([op], read), handle


def alltoall_async(
    tensor: torch.Tensor, splits: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Starts an exchange of rows; ``synchronize`` gives the rows received and how many came from each rank."""
    entry, handle = _start_alltoall(tensor, splits, name, process_set)
    return start(entry, handle)


class _Alltoall(torch.autograd.Function):
    """Gradients go back the way the rows came; rows that were not sent get none."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, splits: Any, name: str | None, group: ProcessSet) -> Any:
        output, received = synchronize(alltoall_async(tensor, splits, name, group))
        ctx.group, ctx.received, ctx.rows = group, received.cpu(), len(tensor)
        ctx.sent = _clean_splits(splits, len(tensor), len(received), "alltoall")[0]
        ctx.mark_non_differentiable(received)
        return output, received

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        back, counts = alltoall(grads[0], ctx.received, None, ctx.group)
        back = with_gaps(back, counts.tolist(), ctx.sent)
        unsent = ctx.rows - len(back)
        if unsent:
            back = torch.cat([back, back.new_zeros((unsent, *back.shape[1:]))])
        return back, None, None, None


def alltoall(
    tensor: torch.Tensor, splits: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Sends the first splits[0] rows to rank 0, the next splits[1] to rank 1, and so on; gradients flow through it.

    With splits: the rows received and, as int32, how many came from each rank.  Without: rows are cut evenly, and only
    the rows received are returned.  Rows beyond the sum of splits are not sent.
    """
    output, received = _Alltoall.apply(tensor, splits, name, process_set)
    return output if splits is None else (output, received)
