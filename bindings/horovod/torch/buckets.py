"""Where gradients live: slots in buckets, buckets in the arena.

A bucket is one contiguous span that is reduced by one operation where it is.  Each gradient has a slot in it with the
strides that the parameter had when it was added, and each slot is a storage of its own, so a gradient that is pickled or
kept carries its own bytes only.  A gradient that lies otherwise, since its parameter was given another memory format, is
copied in and out.  Behind the gradients lie presence flags, one element for each slot: 1 where this rank had a gradient,
so the reduced flag is 0 exactly where no rank had one.

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
from horovod.torch.layouts import dense_strides, is_same_layout, memory_order, owns_its_bytes

__all__ = ["Bucket", "Memory", "Slot", "cut_into_buckets"]

ALIGNMENT = 64
FIRST_BUCKET_BYTES = 1 << 20
BUCKET_BYTES = 16 << 20


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

    def strides_of(self, gradient: torch.Tensor) -> tuple[int, ...]:
        """The gradient's strides; if it has gaps or overlaps, those that autograd would give it."""
        strides = gradient.stride()
        return strides if strides == dense_strides(gradient) else dense_strides(self.parameter)

    def has_layout(self, strides: tuple[int, ...]) -> bool:
        """Whether a tensor with these strides lies in memory as the slot does."""
        return is_same_layout(self.shape, strides, self.strides)

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

    def view(self, slot: Slot, strides: Sequence[int] | None = None) -> torch.Tensor:
        """A tensor over the slot in the current memory; ``strides`` of the same layout, else the slot's."""
        assert self.memory is not None
        return self.memory.view(slot.index, slot.shape, slot.strides if strides is None else strides)

    def fill_apart(self, slot: Slot, gradient: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
        """For a gradient that lies otherwise than its slot, as after a change of the memory format: it keeps its own memory."""
        assert self.memory is not None
        is_own = gradient.stride() == strides and owns_its_bytes(gradient)
        if not is_own or gradient.untyped_storage().data_ptr() == self.memory.addresses[slot.index]:
            laid = torch.empty_strided(slot.shape, strides, dtype=gradient.dtype, device=gradient.device)
            gradient = slot.parameter.grad = laid.copy_(gradient)
        self.view(slot).copy_(gradient)
        return gradient

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
