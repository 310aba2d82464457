"""allreduce in all its forms.

The blocking in-place form on a small dense tensor is the hot path of the whole binding: one look-up of a signature, one
call of the client.  Everything else goes through ``_submit``, which also handles groups: tensors of one dtype make one
operation, so that a group of mixed dtypes is a few operations under one handle.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from horovod.common.basics import HorovodBasics
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.common.types import CollectiveKind, Op, ReduceOp, Signature
from horovod.common.util import get_average_backwards_compatibility_fun
from horovod.torch.adasum_ops import combine_over_hosts, spans_hosts
from horovod.torch.compression import Compression, Compressor
from horovod.torch.dtypes import engine_dtype
from horovod.torch.pending import Entry, ReducedEntry, handles, increment_version, require_client, start, synchronize
from horovod.torch.signatures import (
    automatic_name,
    by_dtype,
    check_tensors,
    compress_all,
    make_signature,
    part_name,
    set_id_of,
)
from horovod.torch.staging import (
    Target,
    buffer_of,
    check_apart,
    in_place_target,
    is_direct,
    is_direct_real,
    new_like,
    pending_copies,
    wire_copy,
)

__all__ = [
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "handle_average_backwards_compatibility",
]

handle_average_backwards_compatibility = get_average_backwards_compatibility_fun(HorovodBasics)

_AVERAGE = int(ReduceOp.AVERAGE)
_strided = torch.strided

# What the hot path finds: a signature and the bytes of its tensor.  None of complex ones: is_direct_real.
_HOT_CAPACITY = 4096
_hot: dict[object, tuple[Any, int]] = {}


def _check_op(op: int, dtype: torch.dtype, process_set: ProcessSet, what: str) -> None:
    if dtype is torch.bool and op == _AVERAGE:
        raise ValueError(f"{what}: booleans have no average; use op=Sum or op=Max (any) or op=Product or op=Min (all).")
    if op == ReduceOp.ADASUM:
        _check_adasum(dtype, process_set, what)


def _check_adasum(dtype: torch.dtype, process_set: ProcessSet, what: str) -> None:
    if process_set.process_set_id != 0:
        raise NotImplementedError(f"{what}: Adasum works on the global process set only.")
    if not dtype.is_floating_point:
        raise ValueError(f"{what}: Adasum works on floating point tensors only.")


def _signature_of(
    tensors: Sequence[torch.Tensor],
    name: str | None,
    part: int,
    op: int,
    factors: tuple[float, float],
    process_set: ProcessSet,
    group: bool,
) -> Signature:
    """The signature of tensors of one dtype; raises for a call that is wrong."""
    dtype = tensors[0].dtype
    each = op == ReduceOp.ADASUM and part > 0 and name is not None
    named = f"{name}.{part}" if each else part_name(name, part, dtype)
    signature = make_signature(
        CollectiveKind.ALLREDUCE, named, dtype, [t.shape for t in tensors], set_id_of(process_set),
        op=op, prescale=factors[0], postscale=factors[1], group=group,
    )  # fmt: skip
    _check_op(signature.op, dtype, process_set, signature.name)
    return signature


def _submit(
    tensors: Sequence[torch.Tensor],
    targets: Sequence[Target],
    name: str | None,
    op: int,
    factors: tuple[float, float],
    process_set: ProcessSet,
    handle: int,
    group: bool,
) -> Entry:
    """Submits the tensors, one operation for each dtype, for Adasum one for each tensor; targets receive the results."""
    client, ops = require_client(), []
    result = tuple(target for target, _ in targets) if group else targets[0][0]
    groups = by_dtype(tensors) if op != ReduceOp.ADASUM else [[position] for position in range(len(tensors))]
    signatures = [
        _signature_of([tensors[p] for p in positions], name, part, op, factors, process_set, group)
        for part, positions in enumerate(groups)
    ]  # all of them before the first is submitted
    if op == ReduceOp.ADASUM and spans_hosts():
        return combine_over_hosts(tensors, targets, name, factors, process_set, handle, group)
    for part, (signature, positions) in enumerate(zip(signatures, groups, strict=True)):
        sources = [wire_copy(tensors[p]) for p in positions]
        buffers = [buffer_of(source, targets[p][1]) for source, p in zip(sources, positions, strict=True)]
        keep = (sources, [targets[p][1] for p in positions])
        unnamed = automatic_name("allreduce", name, handle, part)
        ops.append(client.reduce(signature, buffers, blocking=False, keep=keep, name=unnamed))
    return ReducedEntry(ops, result, pending_copies(targets))


def _start(
    tensors: Sequence[torch.Tensor],
    in_place: bool,
    average: bool | None,
    name: str | None,
    op: int | None,
    factors: tuple[float, float],
    process_set: ProcessSet,
    group: bool,
) -> tuple[Entry, int]:
    handle = handles.advance()
    op = handle_average_backwards_compatibility(op, average)
    what = f"allreduce.{name or 'noname'}"
    tensors = check_tensors(tensors, what)
    for tensor in tensors:
        engine_dtype(tensor.dtype, what)
    if in_place and len(tensors) > 1:
        check_apart(tensors, what)
    targets = [in_place_target(tensor, what) if in_place else new_like(tensor) for tensor in tensors]
    entry = _submit(tensors, targets, name, op, factors, process_set, handle, group)
    if in_place:
        for tensor in tensors:
            increment_version(tensor)
    return entry, handle


# ---- one tensor


class _HotEntry:
    """An asynchronous operation on the hot path: the engine writes straight to the result."""

    __slots__ = ("_op", "_result")

    def __init__(self, op: Op, result: torch.Tensor) -> None:
        self._op = op
        self._result = result

    def poll(self) -> bool:
        return self._op.poll()

    def finish(self) -> torch.Tensor:
        self._op.wait()
        return self._result


def _start_one(
    tensor: torch.Tensor,
    in_place: bool,
    average: bool | None,
    name: str | None,
    op: int | None,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
) -> int:
    """An asynchronous allreduce: hot when a call of this kind was made before, else everything is checked."""
    if average is None:
        chosen = _AVERAGE if op is None else op
    else:
        chosen = handle_average_backwards_compatibility(op, average)
    try:
        key: object = (name, tensor.shape, tensor.dtype, chosen, prescale, postscale, process_set.process_set_id)
        hot = _hot.get(key)
    except (AttributeError, TypeError):  # an argument is wrong: the slow way says which
        key = hot = None
    if hot is None or not (tensor.layout is _strided and is_direct_real(tensor)):
        handle = start(*_start([tensor], in_place, None, name, chosen, (prescale, postscale), process_set, False))
        _remember_hot(tensor, chosen, name, prescale, postscale, process_set, key)
        return handle
    signature, nbytes = hot
    handle = handles.advance()
    result = tensor if in_place else torch.empty_like(tensor, requires_grad=False)
    submitted = require_client().reduce(
        signature,
        ((tensor.data_ptr(), result.data_ptr(), nbytes),),
        blocking=False,
        keep=tensor if in_place else (tensor, result),
        name=None if name else f"allreduce.noname.{handle}",
    )
    if in_place:
        increment_version(tensor)
    handles.put(handle, _HotEntry(submitted, result))
    return handle


def _remember_hot(
    tensor: torch.Tensor,
    op: int,
    name: str | None,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
    key: object,
) -> None:
    """The next call of this kind will be hot, if the engine can work on such tensors directly, whatever their values."""
    if key is None or not is_direct(tensor) or tensor.is_complex() or op == ReduceOp.ADASUM:
        return
    signature = make_signature(
        CollectiveKind.ALLREDUCE, name, tensor.dtype, [tensor.shape], set_id_of(process_set),
        op=op, prescale=prescale, postscale=postscale,
    )  # fmt: skip
    if len(_hot) >= _HOT_CAPACITY:
        _hot.clear()
    _hot[key] = (signature, tensor.nbytes)


def allreduce_async(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Starts a reduction into a new tensor; the handle for ``poll`` and ``synchronize``."""
    return _start_one(tensor, False, average, name, op, prescale_factor, postscale_factor, process_set)


def allreduce_async_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Starts a reduction in place; the tensor must not be touched before ``synchronize``."""
    return _start_one(tensor, True, average, name, op, prescale_factor, postscale_factor, process_set)


def allreduce_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Reduces the tensor in place over all ranks of the set, and returns it.

    ``op`` is Average unless given.  Raises HorovodInternalError when ranks disagree or one is lost, ValueError when this
    call is wrong.
    """
    if average is None:
        chosen = _AVERAGE if op is None else op
    else:
        chosen = handle_average_backwards_compatibility(op, average)
    try:
        set_id = process_set.process_set_id
        key: object = (name, tensor.shape, tensor.dtype, chosen, prescale_factor, postscale_factor, set_id)
        hot = _hot.get(key)
    except (AttributeError, TypeError):  # an argument is wrong: the slow way says which
        key = hot = None
    if hot is None or not (tensor.layout is _strided and is_direct_real(tensor)):
        return _reduce_slowly(tensor, chosen, name, prescale_factor, postscale_factor, process_set, key)
    signature, nbytes = hot
    handle = handles.advance()
    pointer = tensor.data_ptr()
    require_client().reduce(
        signature,
        ((pointer, pointer, nbytes),),
        blocking=True,
        keep=tensor,
        name=None if name else f"allreduce.noname.{handle}",
    ).wait()
    increment_version(tensor)
    return tensor


def _reduce_slowly(
    tensor: torch.Tensor,
    op: int,
    name: str | None,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
    key: object,
) -> torch.Tensor:
    """What the hot path leaves: everything is checked, and the next call of this kind will be hot."""
    entry, _ = _start([tensor], True, None, name, op, (prescale, postscale), process_set, False)
    entry.finish()
    _remember_hot(tensor, op, name, prescale, postscale, process_set, key)
    return tensor


class _Allreduce(torch.autograd.Function):
    """The gradient of an allreduce is the same allreduce of the gradients."""

    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, name: str | None, op: int, pre: float, post: float, group: ProcessSet
    ) -> Any:
        ctx.settings = op, pre, post, group
        return synchronize(allreduce_async(tensor, None, name, op, pre, post, group))

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        op, pre, post, group = ctx.settings
        return allreduce(grads[0], None, None, Compression.none, op, pre, post, group), None, None, None, None, None


def allreduce(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """The reduction over all ranks of the set, as a new tensor; gradients flow through it.

    ``op`` is Average unless given.  Raises HorovodInternalError when ranks disagree or one is lost, ValueError when this
    call is wrong.
    """
    op = handle_average_backwards_compatibility(op, average)
    ((compressed, ctx),) = compress_all([tensor], compression, f"allreduce.{name or 'noname'}")
    if torch.is_grad_enabled() and compressed.requires_grad:
        reduced = _Allreduce.apply(compressed, name, op, prescale_factor, postscale_factor, process_set)
    else:
        entry, _ = _start([compressed], False, None, name, op, (prescale_factor, postscale_factor), process_set, False)
        reduced = entry.finish()
    return compression.decompress(reduced, ctx)


# ---- groups


def grouped_allreduce_async(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Starts one reduction of all tensors, which become ready together; ``synchronize`` gives a tuple."""
    factors = prescale_factor, postscale_factor
    return start(*_start(tensors, False, average, name, op, factors, process_set, True))


def grouped_allreduce_async_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Starts one reduction of all tensors in place."""
    factors = prescale_factor, postscale_factor
    return start(*_start(tensors, True, average, name, op, factors, process_set, True))


def grouped_allreduce_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> tuple[torch.Tensor, ...]:
    """Reduces all tensors in place in one operation, and returns them."""
    handle = grouped_allreduce_async_(tensors, average, name, op, prescale_factor, postscale_factor, process_set)
    result: tuple[torch.Tensor, ...] = synchronize(handle)
    return result


class _GroupedAllreduce(torch.autograd.Function):
    """As for one tensor, for all of the group together."""

    @staticmethod
    def forward(
        ctx: Any, name: str | None, op: int, pre: float, post: float, group: ProcessSet, *tensors: torch.Tensor
    ) -> Any:
        ctx.settings = op, pre, post, group
        return synchronize(grouped_allreduce_async(tensors, None, name, op, pre, post, group))

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        op, pre, post, group = ctx.settings
        reduced = grouped_allreduce(grads, None, None, Compression.none, op, pre, post, group)
        return (None, None, None, None, None, *reduced)


def grouped_allreduce(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """The reductions of all tensors, run as one operation; gradients flow through it."""
    op = handle_average_backwards_compatibility(op, average)
    pairs = compress_all(tensors, compression, f"allreduce.{name or 'noname'}")
    reduced = _GroupedAllreduce.apply(
        name, op, prescale_factor, postscale_factor, process_set, *[compressed for compressed, _ in pairs]
    )
    return [compression.decompress(tensor, ctx) for tensor, (_, ctx) in zip(reduced, pairs, strict=True)]
