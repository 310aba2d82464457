"""Tensors and objects of more than 2 GiB on real ranks, and what they cost in memory (S11)."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import horovod.torch as hvd
import torch

LARGE_BYTES = (2 << 30) + 12_345


def peak_bytes() -> int:
    """The most memory that this process has had at a time, since ``forget_peak``."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) << 10


def forget_peak() -> int:
    """What it has now."""
    Path("/proc/self/clear_refs").write_text("5")
    return peak_bytes()


def check_large_tensors() -> None:
    x = torch.full((LARGE_BYTES,), hvd.rank(), dtype=torch.uint8)
    x[-5:] = torch.arange(5, dtype=torch.uint8) + hvd.rank()
    hvd.broadcast_(x, hvd.size() - 1, name="large")
    assert x[-5:].tolist() == [hvd.size() - 1 + i for i in range(5)]
    assert int(x[:-5].min()) == int(x[:-5].max()) == hvd.size() - 1


def check_large_objects() -> None:
    """The root holds the object and what it was pickled to, others what they received and the object: pieces come on top."""
    root = hvd.size() - 1
    payload = bytes([7]) * LARGE_BYTES if hvd.rank() == root else None
    before = forget_peak()
    received = hvd.broadcast_object(payload, root, name="large")
    grown = peak_bytes() - before
    wanted = hvd.broadcast_object(hashlib.sha256(received).hexdigest(), root)
    assert len(received) == LARGE_BYTES
    assert hashlib.sha256(received).hexdigest() == wanted
    copies = 1 if hvd.rank() == root else 2
    assert grown < copies * LARGE_BYTES + (512 << 20), f"{grown >> 20} MiB more for {copies} copies"


def check_many_objects() -> None:
    payload = bytes([hvd.rank()]) * (300 << 20)
    digests = hvd.allgather_object(hashlib.sha256(payload).hexdigest())
    received = hvd.allgather_object(payload)
    assert [hashlib.sha256(part).hexdigest() for part in received] == digests
