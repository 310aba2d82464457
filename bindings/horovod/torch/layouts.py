"""How tensors lie in memory: orders of dimensions, and copies that keep or change them.

Autograd lays a gradient as its parameter lies, if that has no gaps and no overlaps, else in rows.  Optimizers depend on it:
their kernels take other ways, and round differently, where parameter, gradient and state lie differently, and fused ones
read memory in its order whatever the strides say.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from horovod.native import copy_past_caches

__all__ = ["copy_dense", "dense_strides", "is_same_layout", "lay_as", "memory_order", "owns_its_bytes"]

BYTES_AT_ONCE = 1 << 16


def dense_strides(tensor: torch.Tensor) -> tuple[int, ...]:
    """The tensor's strides if its elements fill their memory without gaps or overlap, else those of rows in order."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True), key=lambda pair: (pair[0], pair[1])):
        if size == 1:
            continue
        if stride != expected:
            return torch.empty(tensor.shape, device="meta").stride()
        expected *= size
    return tensor.stride()


def is_same_layout(shape: Sequence[int], strides: Sequence[int], others: Sequence[int]) -> bool:
    """Whether every element has the same place: strides of dimensions of size 1 don't matter."""
    return all(a == b for size, a, b in zip(shape, strides, others, strict=True) if size != 1)


def memory_order(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, ...]:
    """Dimensions from the outermost to the innermost in memory; those of size 1 don't matter and come first."""
    return tuple(sorted(range(len(shape)), key=lambda d: (shape[d] != 1, -strides[d] if shape[d] != 1 else d, d)))


def copy_dense(target: torch.Tensor, source: torch.Tensor, nbytes: int) -> None:
    """Copies values into a tensor of the same dtype that nobody else has seen.

    Those that lie alike are copied as bytes where one thread does it, unless they are small: past the caches, since they are
    read when the bucket is full.
    """
    if nbytes >= BYTES_AT_ONCE and torch.get_num_threads() == 1 and _lie_alike(target, source):
        copy_past_caches(target.data_ptr(), source.data_ptr(), nbytes)
    else:
        target.copy_(source)


def _lie_alike(target: torch.Tensor, source: torch.Tensor) -> bool:
    """Whether the source's bytes are the target's: a subclass may have none, and zeros, negations and conjugates others."""
    return (
        source.is_cpu and source.shape == target.shape and source.stride() == target.stride() and owns_its_bytes(source)
    )


def owns_its_bytes(tensor: torch.Tensor) -> bool:
    """Whether what lies in its memory are its values, and may be written."""
    return type(tensor) is torch.Tensor and not (tensor.is_neg() or tensor.is_conj() or tensor._is_zerotensor())


def lay_as(tensor: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """The tensor, or a copy, as autograd would lay a gradient of the parameter."""
    strides = dense_strides(parameter)
    if is_same_layout(parameter.shape, tensor.stride(), strides):
        return tensor
    return torch.empty_strided(parameter.shape, strides, dtype=tensor.dtype, device=tensor.device).copy_(tensor)
