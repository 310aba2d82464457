"""Which torch dtypes the engine knows, and under which numbers."""

from __future__ import annotations

import torch

__all__ = ["engine_dtype"]

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


def _advice(dtype: torch.dtype) -> str:
    if dtype.is_complex:
        return "Send torch.view_as_real(tensor) instead"
    if dtype.is_floating_point:
        return "Convert it first, for example with tensor.to(torch.bfloat16)"
    return "Convert it first, for example with tensor.to(torch.int64)"


def engine_dtype(dtype: torch.dtype, what: str) -> int:
    """The engine's number for a dtype; ValueError names those that can be used."""
    number = _NUMBERS.get(dtype)
    if number is None:
        known = ", ".join(str(entry).removeprefix("torch.") for entry in _NUMBERS)
        raise ValueError(f"{what}: tensors of {dtype} can't be sent. {_advice(dtype)}. Known dtypes: {known}.")
    return number
