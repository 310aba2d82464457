"""Sums large tensors while ``/dev/shm`` is full: ``python -m tests.torch.small_shm BYTES``."""

from __future__ import annotations

import errno
import sys
from pathlib import Path
from typing import BinaryIO

import horovod.torch as hvd
import pytest
import torch


def write_on(file: BinaryIO) -> None:
    """Never ends."""
    while True:
        file.write(bytes(1 << 16))


def fill(folder: Path) -> None:
    """Takes what is left there."""
    with (folder / f"filler.{hvd.rank()}").open("wb", buffering=0) as file, pytest.raises(OSError) as raised:
        write_on(file)
    assert raised.value.errno == errno.ENOSPC


def main(nbytes: int) -> None:
    """Plain tensors and gradients that live in shared memory."""
    hvd.init()
    hvd.barrier()
    fill(Path("/dev/shm"))
    hvd.barrier()
    w = torch.nn.Parameter(torch.zeros(nbytes // 4))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([w], lr=1.0), op=hvd.Sum)
    for _ in range(2):
        optimizer.zero_grad()
        (w * (hvd.rank() + 1.0)).sum().backward()
        optimizer.step()
    total = sum(range(1, hvd.size() + 1))
    assert torch.all(w == -2 * total)
    x = torch.full((nbytes // 4,), hvd.rank() + 1.0)
    assert torch.all(hvd.allreduce(x, op=hvd.Sum) == total)
    assert torch.all(hvd.synchronize(hvd.allreduce_async(x, op=hvd.Sum)) == total)
    print("done", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
