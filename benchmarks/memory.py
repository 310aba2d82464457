"""How much memory processes use: ordinary memory of each, and shared memory counted once, by the blocks that exist."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress

import psutil


def tree(pids: Iterable[int]) -> list[int]:
    """These processes and all their descendants."""
    found: dict[int, None] = {}
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            found.update({each.pid: None for each in (process, *process.children(recursive=True))})
    return list(found)


def private_bytes(pids: Iterable[int]) -> int:
    """Memory that belongs to these processes alone, in all: resident minus shared pages and files."""
    total = 0
    for pid in pids:
        with suppress(psutil.Error):
            memory = psutil.Process(pid).memory_info()
            total += memory.rss - memory.shared
    return total


def _memfds(pid: int) -> Iterator[tuple[int, str, int]]:
    folder = f"/proc/{pid}/fd"
    with suppress(OSError):
        for entry in os.listdir(folder):
            with suppress(OSError):
                link = os.readlink(f"{folder}/{entry}")
                if link.startswith("/memfd:"):
                    status = os.stat(f"{folder}/{entry}")
                    name = link.removeprefix("/memfd:").removesuffix(" (deleted)")
                    yield status.st_ino, name, status.st_blocks * 512


def memfd_bytes(pids: Iterable[int]) -> dict[int, tuple[str, int]]:
    """Inode -> name and bytes that exist, of every memfd that one of these processes has open."""
    return {inode: (name, nbytes) for pid in pids for inode, name, nbytes in _memfds(pid)}
