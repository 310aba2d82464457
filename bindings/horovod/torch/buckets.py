"""Where gradients live: slots in buckets, buckets in the arena.

A bucket is one contiguous span that is reduced by one operation where it is.  Each gradient has a slot in it with the
parameter's strides, and each slot is a storage of its own, so a gradient that is pickled or kept carries its own bytes
only.  Behind the gradients lie presence flags, one element for each slot: 1 where this rank had a gradient, so the
reduced flag is 0 exactly where no rank had one.

Memory is used again as long as nobody else looks at it: a slot whose storage is still alive when its bucket begins a new
round (gradient surgery, penalties) makes the bucket take new memory, and what was kept stays what it was.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch

from horovod.common.exceptions import UsageError
from horovod.common.types import Buffer, Signature
from horovod.native import copy_past_caches

__all__ = ["Bucket", "Memory", "Slot", "copy_dense", "cut_into_buckets", "dense_strides", "memory_order"]

ALIGNMENT = 64
FIRST_BUCKET_BYTES = 1 << 20
BUCKET_BYTES = 16 << 20
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
        type(source) is torch.Tensor
        and source.is_cpu
        and source.shape == target.shape
        and source.stride() == target.stride()
        and not (source.is_neg() or source.is_conj() or source._is_zerotensor())
    )


class Slot:
    """One parameter's place: its bucket and offset, and how far its gradient is in this step."""

    __slots__ = (
        "bucket", "given", "gradient", "index", "name", "nbytes", "offset", "parameter", "passes", "shape", "sparse",
        "strides", "version", "waiter",
    )  # fmt: skip

    def __init__(self, parameter: torch.Tensor, name: str) -> None:
        self.parameter = parameter
        self.name = name
        self.shape = tuple(parameter.shape)
        self.strides = dense_strides(parameter)
        self.bucket: Bucket | None = None
        self.index = self.offset = self.nbytes = 0
        self.sparse = False
        self.waiter: Callable[[], torch.Tensor] | None = None
        self.passes = 0
        self.given = False
        # Address and version of the gradient as it was handed over.
        self.gradient = self.version = 0

    def describe(self) -> str:
        """What all ranks must agree on."""
        shape = list(self.parameter.shape)
        order = memory_order(self.parameter.shape, self.strides)
        return f"{self.name}: {str(self.parameter.dtype).removeprefix('torch.')} {shape}, memory order {list(order)}"

    def check_shape(self, gradient: torch.Tensor) -> None:
        """UsageError where the parameter was given another shape."""
        if gradient.shape != self.shape:
            raise UsageError(
                f"The gradient of {self.name} has the shape {list(gradient.shape)}, but the parameter had {list(self.shape)} when "
                "its optimizer was wrapped. Wrap a new optimizer after changing the shape of a parameter."
            )

    def forget_step(self) -> None:
        """Ready for the next step."""
        self.passes = 0
        self.given = False
        self.waiter = None
        self.gradient = 0


class Memory:
    """One allocation of a bucket: addresses of its slots, and tensors made over them on demand."""

    __slots__ = ("_dtype", "_pieces", "_unused", "addresses", "buffer", "buffers", "presence")

    def __init__(
        self, buffer: Any, spans: Sequence[tuple[int, int]], presence: tuple[int, int], dtype: torch.dtype
    ) -> None:
        self.buffer = buffer
        self._dtype = dtype
        self._pieces = [(ctypes.c_char * nbytes).from_buffer(buffer, offset) for offset, nbytes in spans]
        self.addresses = [ctypes.addressof(piece) for piece in self._pieces]
        tail = (ctypes.c_char * presence[1]).from_buffer(buffer, presence[0])
        self.presence = torch.frombuffer(tail, dtype=dtype)
        # Addresses for the engine: one span, in place.
        starts, sizes = [*self.addresses, ctypes.addressof(tail)], [*(nbytes for _, nbytes in spans), presence[1]]
        self.buffers: list[Buffer] = [(start, start, nbytes) for start, nbytes in zip(starts, sizes, strict=True)]
        self._unused = self._references()

    def _references(self) -> list[int]:
        return list(map(sys.getrefcount, self._pieces))

    def seen(self) -> list[int]:
        """Slots over which tensors are alive: a storage holds its piece of the buffer."""
        now = self._references()
        if now == self._unused:
            return []
        return [index for index, count in enumerate(now) if count > self._unused[index]]

    def view(self, index: int, shape: Sequence[int], strides: Sequence[int]) -> torch.Tensor:
        """A new tensor over a slot: not a view in autograd's sense, its storage is the slot and nothing else."""
        piece = self._pieces[index]
        if not len(piece):
            return torch.empty(tuple(shape), dtype=self._dtype, device="cpu")
        flat = torch.frombuffer(piece, dtype=self._dtype)
        return flat if len(shape) == 1 else flat.as_strided_(shape, strides)


class Bucket:
    """Slots that are reduced together, in this order."""

    __slots__ = ("dtype", "memory", "missing", "name", "nbytes", "op", "presence", "signature", "slots", "spans")

    def __init__(self, slots: Sequence[Slot], dtype: torch.dtype, name: str) -> None:
        self.slots = list(slots)
        self.dtype = dtype
        self.name = name
        self.memory: Memory | None = None
        self.op: Any = None
        self.signature: Signature | None = None
        self.missing = len(self.slots)
        self.spans: list[tuple[int, int]] = []
        end = 0
        for index, slot in enumerate(self.slots):
            slot.bucket, slot.index, slot.offset = self, index, -(-end // ALIGNMENT) * ALIGNMENT
            slot.nbytes = slot.parameter.numel() * dtype.itemsize
            self.spans.append((slot.offset, slot.nbytes))
            end = slot.offset + slot.nbytes
        self.presence = (-(-end // ALIGNMENT) * ALIGNMENT, len(self.slots) * dtype.itemsize)
        self.nbytes = sum(self.presence)

    def shapes(self) -> list[tuple[int, ...]]:
        """As they lie in memory, presence flags last."""
        laid_out = []
        for slot in self.slots:
            shape = slot.parameter.shape
            laid_out.append(tuple(shape[d] for d in memory_order(shape, slot.strides)))
        return [*laid_out, (len(self.slots),)]

    def begin(self, alloc: Callable[[int], Any]) -> Memory:
        """Memory for a new round: the old one unless somebody looks at a gradient of an earlier step."""
        memory = self.memory
        if memory is None or any(self._is_held(memory, self.slots[index]) for index in memory.seen()):
            memory = Memory(alloc(self.nbytes), self.spans, self.presence, self.dtype)
            self.memory = memory
        memory.presence.fill_(1)  # until a gradient turns out to be missing
        return memory

    def _is_held(self, memory: Memory, slot: Slot) -> bool:
        """Whether it is seen by others than the parameter, whose gradient may be accumulated in the slot itself."""
        gradient = slot.parameter.grad
        return (
            gradient is None
            or gradient.layout is not torch.strided
            or gradient.data_ptr() != memory.addresses[slot.index]
        )

    def view(self, slot: Slot) -> torch.Tensor:
        """A tensor over the slot in the current memory."""
        assert self.memory is not None
        return self.memory.view(slot.index, slot.shape, slot.strides)

    def forget_step(self) -> None:
        """Ready for the next step."""
        self.op = None
        self.missing = len(self.slots)


def cut_into_buckets(slots: Sequence[Slot], item_bytes: Callable[[Slot], int]) -> list[list[Slot]]:
    """Runs of slots in reverse order of registration, which is about the order in which gradients appear.

    The first run is short, so that reduction starts early; the others hold about 16 MiB.
    """
    runs: list[list[Slot]] = []
    run: list[Slot] = []
    filled, limit = 0, FIRST_BUCKET_BYTES
    for slot in reversed(slots):
        run.append(slot)
        filled += slot.parameter.numel() * item_bytes(slot)
        if filled >= limit:
            runs.append(run)
            run, filled, limit = [], 0, BUCKET_BYTES
    return [*runs, run] if run else runs
