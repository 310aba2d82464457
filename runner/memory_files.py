"""Anonymous files in memory, shared by inherited descriptors.  No offset is used: every rank reads the same file."""

from __future__ import annotations

import os

__all__ = ["FUNCTION_VARIABLE", "RESULT_VARIABLE", "make", "read_all", "write_all"]

# Variables that tell a rank of horovod.run its descriptors.
FUNCTION_VARIABLE = "HVD_FUNCTION_FD"
RESULT_VARIABLE = "HVD_RESULT_FD"


def make(name: str, content: bytes = b"") -> int:
    """A new file with this content; the name is for people who look at /proc."""
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC)
    write_all(descriptor, content)
    return descriptor


def read_all(descriptor: int) -> bytes:
    """The whole content."""
    parts, offset = [], 0
    while part := os.pread(descriptor, 1 << 24, offset):
        parts.append(part)
        offset += len(part)
    return b"".join(parts)


def write_all(descriptor: int, content: bytes) -> None:
    """Replaces the content."""
    view, offset = memoryview(content), 0
    os.ftruncate(descriptor, len(content))
    while offset < len(content):
        offset += os.pwrite(descriptor, view[offset : offset + (1 << 24)], offset)
