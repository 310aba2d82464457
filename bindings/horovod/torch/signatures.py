"""Signatures of tensors' collectives, made once and reused, so that a loop builds nothing.

Automatic names follow the handle counter: ``allreduce.noname.<handle>``.  A user's name ``n`` becomes ``allreduce.n``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from horovod.common.checks import check_factor, check_op
from horovod.common.exceptions import UsageError
from horovod.common.process_sets import ProcessSet
from horovod.common.types import CollectiveKind, ReduceOp, Signature
from horovod.torch.compression import Compressor, check_compression
from horovod.torch.dtypes import wire_form

__all__ = [
    "automatic_name",
    "by_dtype",
    "check_tensor",
    "check_tensors",
    "compress_all",
    "make_signature",
    "part_name",
    "set_id_of",
]

# Names that are new every step must not make this grow without bound.
_CAPACITY = 16384

_known: dict[object, Signature] = {}


def automatic_name(kind: str, name: str | None, handle: int, part: int = 0) -> str | None:
    """The name of this call of an unnamed operation; None for a named one, whose signature has the name.

    ``part`` tells the operations of one call apart.
    """
    if name:
        return None
    return f"{kind}.noname.{handle}.{part}" if part else f"{kind}.noname.{handle}"


def part_name(name: str | None, part: int, dtype: torch.dtype) -> str | None:
    """The first dtype of a group has the group's name, so that mixed and uniform groups meet and are told apart."""
    return name if part == 0 or name is None else f"{name}.{str(dtype).removeprefix('torch.')}"


def by_dtype(tensors: Sequence[torch.Tensor]) -> list[list[int]]:
    """Positions of the tensors of each dtype, dtypes in order of appearance: each makes one operation."""
    found: dict[torch.dtype, list[int]] = {}
    for position, tensor in enumerate(tensors):
        found.setdefault(tensor.dtype, []).append(position)
    return list(found.values())


def set_id_of(process_set: ProcessSet) -> int:
    """The id of a registered process set; TypeError for one that is not registered, or something else."""
    set_id = getattr(process_set, "process_set_id", None)
    if not isinstance(set_id, int):
        raise TypeError(
            f"process_set is {process_set!r}, which is not registered: give it to init() or to add_process_set() first."
        )
    return set_id


def check_tensor(tensor: object, what: str) -> torch.Tensor:
    """The tensor; TypeError or ValueError for what can't be sent."""
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{what} takes a torch.Tensor, got {type(tensor).__name__}.")
    if tensor.layout is not torch.strided:
        raise ValueError(f"{what}: a tensor with layout {tensor.layout} can't be sent; use sparse_allreduce_async.")
    if tensor.device.type == "meta":
        raise ValueError(f"{what}: a tensor on the meta device has no data.")
    return tensor


def check_tensors(tensors: object, what: str) -> list[torch.Tensor]:
    """The tensors of a group; TypeError or ValueError for what can't be sent."""
    if not isinstance(tensors, Iterable):
        raise TypeError(f"{what} takes a list of torch.Tensor, got {type(tensors).__name__}.")
    return [check_tensor(tensor, what) for tensor in tensors]


def compress_all(tensors: object, compression: type[Compressor], what: str) -> list[tuple[torch.Tensor, object]]:
    """What is sent of each tensor, and what is needed to decompress it."""
    check_compression(compression, what)
    return [compression.compress(tensor) for tensor in check_tensors(tensors, what)]


def _check_numbers(op: object, factors: tuple[Any, Any], dtype: torch.dtype, what: str) -> tuple[int, float, float]:
    """Reduction and factors as they are compared; UsageError for what is none, or fits no integer."""
    checked = check_op(op, what), check_factor(factors[0], what), check_factor(factors[1], what)
    if dtype.is_complex and checked[0] not in (ReduceOp.AVERAGE, ReduceOp.SUM):
        raise UsageError(
            f"{what}: complex tensors can be summed and averaged; they have no {ReduceOp(checked[0]).name.title()}."
        )
    if not (dtype.is_floating_point or dtype.is_complex) and not (
        math.isfinite(checked[1]) and math.isfinite(checked[2])
    ):
        raise UsageError(
            f"{what}: prescale_factor and postscale_factor must be finite for tensors of {dtype}, not {factors}."
        )
    return checked


def make_signature(
    kind: CollectiveKind,
    name: str | None,
    dtype: torch.dtype,
    shapes: Sequence[Sequence[int]],
    set_id: int,
    *,
    op: int = 1,
    prescale: float = 1.0,
    postscale: float = 1.0,
    root: int = -1,
    group: bool = False,
) -> Signature:
    """A signature; the same arguments give the same object."""
    if name is not None and type(name) is not str:
        name = str(name)
    sizes = tuple(tuple(shape) for shape in shapes)
    key = (kind, name, dtype, sizes, set_id, op, prescale, postscale, root, group)
    try:
        known = _known.get(key)
    except TypeError:  # a list, for example, can't be looked up
        _check_numbers(op, (prescale, postscale), dtype, f"{kind.name.lower()}.{name or 'noname'}")
        raise
    if known is not None:
        return known
    word = kind.name.lower()
    base = f"{word}.{name}" if name else f"{word}.noname"
    members = tuple(f"{base}_{i + 1}of{len(sizes)}" for i in range(len(sizes))) if group else ()
    # What is kept under equal arguments is the same, whoever asked first: 1, 1.0 and True are one reduction.
    number, laid_out = wire_form(dtype, sizes, base)
    signature = Signature(
        kind, base, not name, number, laid_out, members,
        *_check_numbers(op, (prescale, postscale), dtype, base), root, set_id,
    )  # fmt: skip
    if len(_known) >= _CAPACITY:
        _known.clear()
    return _known.setdefault(key, signature)
