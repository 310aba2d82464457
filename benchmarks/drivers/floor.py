"""The floor: the reduction kernel on the arena buffers of all ranks, statically split, no rounds.

Nothing that reduces in shared memory with this kernel can be faster than this, so it is what percentages refer to.
Each rank maps the other ranks' buffers by itself and reduces its share of them; nobody waits for anybody.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path
from typing import Any

import horovod.torch as hvd
import torch
from horovod import native
from horovod.common import basics

from benchmarks.cases import Case
from benchmarks.drivers.tensors import check_sum

API: Any = hvd
DTYPES = {
    "float32": native.DType.FLOAT32,
    "float64": native.DType.FLOAT64,
    "float16": native.DType.FLOAT16,
    "bfloat16": native.DType.BFLOAT16,
}
SHARE = 64  # elements that a rank's share is a multiple of, so that no two ranks write to one cache line


def arena_tensor(shape: tuple[int, ...], dtype: str) -> torch.Tensor:
    """A tensor of zeros in this rank's arena."""
    kind = getattr(torch, dtype)
    count = torch.Size(shape).numel()
    memory = basics.client().alloc(count * kind.itemsize)
    return torch.frombuffer(memory, dtype=kind, count=count).reshape(shape).zero_()


def _place_in_file(address: int) -> tuple[int, int]:
    """Descriptor and offset of the shared memory that is mapped at this address."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, _, offset, _, inode, *_ = line.split()
        start, end = (int(part, 16) for part in span.split("-"))
        if start <= address < end:
            for entry in os.listdir("/proc/self/fd"):
                try:
                    if os.stat(f"/proc/self/fd/{entry}").st_ino == int(inode):
                        return int(entry), int(offset, 16) + address - start
                except OSError:
                    continue
    raise LookupError(f"no descriptor for the memory at {address:#x}")


def _map(pid: int, descriptor: int, offset: int, nbytes: int) -> tuple[Any, int]:
    """Maps another process's shared memory; returns what keeps it mapped, and its address."""
    opened = os.open(f"/proc/{pid}/fd/{descriptor}", os.O_RDWR)
    try:
        slack = offset % mmap.ALLOCATIONGRANULARITY
        mapping = mmap.mmap(opened, nbytes + slack, offset=offset - slack)
    finally:
        os.close(opened)
    view = (ctypes.c_char * len(mapping)).from_buffer(mapping)
    return view, ctypes.addressof(view) + slack


class Floor:
    """This rank's share of the reduction, and nothing else."""

    def __init__(self, case: Case) -> None:
        self.tensor = arena_tensor(case.shapes[0], case.dtype)
        self.dtype = int(DTYPES[case.dtype])
        nbytes = self.tensor.numel() * self.tensor.element_size()
        own = (os.getpid(), *_place_in_file(self.tensor.data_ptr()))
        places = API.allgather_object(own)
        self._mapped = [_map(pid, descriptor, offset, nbytes) for pid, descriptor, offset in places]
        start, self.count = self._share(self.tensor.numel())
        starts = [address + start * self.tensor.element_size() for _, address in self._mapped]
        self.pointers = (ctypes.c_void_p * len(starts))(*starts)

    def _share(self, count: int) -> tuple[int, int]:
        blocks = -(-count // SHARE)
        first, last = (min(count, SHARE * (blocks * rank // API.size())) for rank in (API.rank(), API.rank() + 1))
        return first, last - first

    def check(self) -> None:
        """The shares together give the sum."""
        check_sum([self.tensor], API.rank(), API.size(), self._run_together)
        API.barrier()  # others still read their buffers, which the next run of this rank writes to

    def _run_together(self) -> None:
        API.barrier()
        self.run(1)
        API.barrier()

    def run(self, count: int) -> None:
        """That many reductions of this rank's share."""
        pointers, reduce = ctypes.addressof(self.pointers), native.lib.hvd_reduce
        for _ in range(count):
            reduce(self.dtype, int(native.ReduceOp.SUM), 1.0, 1.0, pointers, pointers, len(self.pointers), self.count)
