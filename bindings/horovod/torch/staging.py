"""Tensors as the engine wants them: dense rows in this process's memory, in logical order.

Raw memory is never sent: ranks may hold the same values with different strides.  A tensor that is not contiguous, or
not in host memory, is copied on the way in and on the way out; an in-place operation writes only the view that it got.

Copies between a device and the host are waited for, on the current stream of whoever asks: so they come after the
kernels that made the values, and before those that use the result.  What is made here says that it is on the host: programs
may have another default device.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch

from horovod.common.exceptions import UsageError
from horovod.common.types import Buffer

__all__ = [
    "Target",
    "buffer_of",
    "check_apart",
    "copy_out",
    "in_place_target",
    "is_direct",
    "is_direct_real",
    "new_like",
    "pending_copies",
    "wire_copy",
]

Target = tuple[torch.Tensor, torch.Tensor]
"""What the user sees, and the dense host memory that stands in for it (may be the same tensor)."""


def is_direct(tensor: torch.Tensor) -> bool:
    """Whether the engine can work on the tensor's own memory."""
    return is_direct_real(tensor) and not tensor.is_conj()


def is_direct_real(tensor: torch.Tensor) -> bool:
    """The same for a dense tensor of a dtype that has no conjugates: on the hot path each question counts."""
    return tensor.is_cpu and tensor.is_contiguous() and not tensor.is_neg()


def wire_copy(tensor: torch.Tensor) -> torch.Tensor:
    """The values, dense in host memory: the tensor itself where it is that already."""
    detached = tensor.detach()
    return detached if is_direct(detached) else detached.cpu().resolve_conj().resolve_neg().contiguous()


def new_like(tensor: torch.Tensor) -> Target:
    """A new tensor like this one, strides kept, and where the engine may write its values."""
    result = torch.empty_like(tensor, requires_grad=False)
    if is_direct(result):
        return result, result
    return result, torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")


def _check_writable(tensor: torch.Tensor, what: str) -> None:
    """ValueError where several elements share one place in memory: nothing can be written there."""
    if _overlaps_itself(tensor):
        raise ValueError(
            f"{what}: a tensor whose elements share memory, such as an expanded or unfolded one, can't be written in place; "
            "use its clone()."
        )


def _overlaps_itself(tensor: torch.Tensor) -> bool:
    """Looks at every element only where the strides alone do not tell."""
    if not tensor.numel():
        return False
    reach, dims = 0, [(s, n) for s, n in zip(tensor.stride(), tensor.shape, strict=True) if n > 1]
    for stride, size in sorted(dims):
        if stride == 0:
            return True
        if stride <= reach:
            break
        reach += stride * (size - 1)
    else:
        return False
    places = torch.zeros((), dtype=torch.int64, device="cpu")
    for stride, size in dims:
        places = (places.unsqueeze(-1) + torch.arange(size, device="cpu") * stride).flatten()
    return len(places.unique()) < len(places)


def check_apart(tensors: Sequence[torch.Tensor], what: str) -> None:
    """ValueError where tensors that are to be written in place share memory: each would be reduced with the other."""
    spans = sorted(
        (str(t.device), t.data_ptr(), t.data_ptr() + t.nbytes) for t in tensors if t.nbytes and t.is_contiguous()
    )
    for (device, _, end), (other, start, _) in itertools.pairwise(spans):
        if device == other and start < end:
            raise UsageError(f"{what}: tensors of a group share memory, so they can't be reduced in place together.")


def in_place_target(tensor: torch.Tensor, what: str) -> Target:
    """Where the engine may write for an in-place operation: the tensor itself if it can."""
    if is_direct(tensor):
        return tensor, tensor
    _check_writable(tensor, what)
    return tensor, torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")


def buffer_of(source: torch.Tensor, target: torch.Tensor) -> Buffer:
    """Addresses for the engine."""
    return source.data_ptr(), target.data_ptr(), source.nbytes


def copy_out(target: torch.Tensor, buffer: torch.Tensor) -> None:
    """Writes what has come into what the user sees."""
    with torch.inference_mode() if target.is_inference() else torch.no_grad():
        target.copy_(buffer)
    if target.is_cuda:  # made when the operation was started, perhaps on another stream than it is used on now
        target.record_stream(torch.cuda.current_stream(target.device))


def pending_copies(targets: Sequence[Target]) -> list[Target]:
    """The pairs in which something must be copied at the end."""
    return [(target, buffer) for target, buffer in targets if target is not buffer]
