"""Which torch dtypes the engine knows, and under which numbers.

Complex tensors travel as pairs of floats: one more dimension, of 2, behind the others.  Their bytes are the same.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

__all__ = ["can_be_sent", "engine_dtype", "wire_form"]

_NUMBERS: dict[torch.dtype, int] = {
    torch.uint8: 0,
    torch.int8: 1,
    torch.int16: 3,
    torch.int32: 4,
    torch.int64: 5,
    torch.float16: 6,
    torch.float32: 7,
    torch.float64: 8,
    torch.bool: 9,
    torch.bfloat16: 10,
}
if hasattr(torch, "uint16"):  # since torch 2.3
    _NUMBERS[torch.uint16] = 2


_PARTS = {torch.complex64: torch.float32, torch.complex128: torch.float64}


def _advice(dtype: torch.dtype) -> str:
    if dtype.is_complex:
        return "Convert it first, for example with tensor.to(torch.complex64)"
    if dtype.is_floating_point and dtype.itemsize == 1:
        return (
            "8-bit floats can't be added up without losing what they are: reduce tensor.to(torch.bfloat16) and scale and "
            "round the result again; to copy values as they are, send tensor.view(torch.uint8)"
        )
    if dtype.is_floating_point:
        return "Convert it first, for example with tensor.to(torch.bfloat16)"
    return "Convert it first, for example with tensor.to(torch.int64)"


def can_be_sent(dtype: torch.dtype) -> bool:
    """Whether tensors of this dtype can be sent at all."""
    return _PARTS.get(dtype, dtype) in _NUMBERS


def engine_dtype(dtype: torch.dtype, what: str) -> int:
    """The engine's number for a dtype, for a complex one that of its parts; ValueError names those that can be used."""
    number = _NUMBERS.get(_PARTS.get(dtype, dtype))
    if number is None:
        known = ", ".join(str(entry).removeprefix("torch.") for entry in (*_NUMBERS, *_PARTS))
        raise ValueError(f"{what}: tensors of {dtype} can't be sent. {_advice(dtype)}. Known dtypes: {known}.")
    return number


def wire_form(
    dtype: torch.dtype, shapes: Sequence[Sequence[int]], what: str
) -> tuple[int, tuple[tuple[int, ...], ...]]:
    """The engine's dtype number and the shapes as they travel."""
    tail = (2,) if dtype in _PARTS else ()
    return engine_dtype(dtype, what), tuple((*shape, *tail) for shape in shapes)
