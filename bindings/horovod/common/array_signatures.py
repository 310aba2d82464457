"""Signatures of arrays' collectives, made once and reused, so that a loop builds nothing."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from horovod.common import basics
from horovod.common.exceptions import UsageError
from horovod.common.types import Client, CollectiveKind, Signature

__all__ = ["by_dtype", "make_signature", "members_of", "require_client"]

# Names that are new every step must not make this grow without bound.
_CAPACITY = 16384

_NUMBERS = {
    name: number
    for number, name in enumerate(
        ["uint8", "int8", "uint16", "int16", "int32", "int64", "float16", "float32", "float64", "bool", "bfloat16"]
    )
}


def require_client() -> Client:
    """The running client; NotInitializedError where there is none."""
    return basics.client()


def members_of(set_id: int) -> tuple[int, ...]:
    """The ranks of a set; empty when it is not known, which the client will say better."""
    return tuple(require_client().process_sets().get(set_id, ()))


def by_dtype(arrays: Sequence[Any]) -> list[list[int]]:
    """Positions of the arrays of each dtype, dtypes in order of appearance: each makes one operation."""
    found: dict[Any, list[int]] = {}
    for position, array in enumerate(arrays):
        found.setdefault(array.dtype, []).append(position)
    return list(found.values())


def _engine_number(dtype: np.dtype[Any], what: str) -> int:
    number = _NUMBERS.get(dtype.name)
    if number is None:
        raise UsageError(f"{what}: arrays of {dtype.name} can't be sent. Known dtypes: {', '.join(_NUMBERS)}.")
    return number


@functools.lru_cache(_CAPACITY)
def make_signature(
    kind: CollectiveKind,
    name: str | None,
    dtype: np.dtype[Any],
    shapes: tuple[tuple[int, ...], ...],
    set_id: int,
    op: int = 1,
    factors: tuple[float, float] = (1.0, 1.0),
    root: int = -1,
    tensor_names: tuple[str, ...] | None = (),
) -> Signature:
    """A signature; the same arguments give the same object.  ``tensor_names`` None numbers the tensors of a group."""
    word = kind.name.lower()
    base = f"{word}.{name}" if name else f"{word}.noname"
    if tensor_names is None:
        tensor_names = tuple(f"{base}_{index + 1}of{len(shapes)}" for index in range(len(shapes)))
    number = _engine_number(dtype, base)
    return Signature(kind, base, not name, number, shapes, tensor_names, op, *factors, root, set_id)
