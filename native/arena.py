"""A rank's shared memory for tensor data.  One per process; it outlives epochs."""

from __future__ import annotations

import ctypes
import os
import weakref

from horovod.native._abi import CArenaInfo, lib
from horovod.native.errors import InvalidArgument, OutOfMemory, check

ArenaBuffer = ctypes.Array  # of c_char, over a block of the arena; the block is given back when nothing refers to it


class Arena:
    """``nbytes`` of sparse shared memory: address space now, memory where it is touched."""

    def __init__(self, nbytes: int) -> None:
        pointer = ctypes.c_void_p()
        check(lib.hvd_arena_create(nbytes, ctypes.byref(pointer)), f"Creating an arena of {nbytes} bytes")
        self.pointer = int(pointer.value or 0)
        self.nbytes = nbytes
        self._owner_pid = os.getpid()
        self._blocks: set[int] = set()

    @property
    def fd(self) -> int:
        """The descriptor of the memory; it stays the arena's."""
        return int(lib.hvd_arena_fd(self.pointer))

    @property
    def base(self) -> int:
        """Address of the first byte."""
        return int(lib.hvd_arena_base(self.pointer))

    def buffer(self, nbytes: int) -> ctypes.Array[ctypes.c_char]:
        """A block as an object with the buffer protocol; freed when the last reference to it is gone."""
        address = lib.hvd_arena_alloc(self.pointer, nbytes)
        if not address:
            raise OutOfMemory(
                f"The arena of {self.nbytes} bytes has no room for {nbytes} bytes; HVD_ARENA_BYTES sets its size."
            )
        block = (ctypes.c_char * nbytes).from_address(address)
        # Not at interpreter exit: the memory goes with the process, and others may still look at it.
        self._blocks.add(address)
        weakref.finalize(block, self._give_back, address).atexit = False
        return block

    def _give_back(self, address: int) -> None:
        # A forked child sees the memory but does not own the blocks.
        if os.getpid() == self._owner_pid:
            self._blocks.discard(address)
            lib.hvd_arena_free(self.pointer, address)

    def stat(self) -> tuple[int, int, int]:
        """Bytes in use, bytes free but touched, bytes resident."""
        info = CArenaInfo()
        check(lib.hvd_arena_stat(self.pointer, ctypes.byref(info)), "Looking at the arena")
        return info.used_bytes, info.free_touched_bytes, info.resident_bytes

    def trim(self, keep_bytes: int) -> None:
        """Gives free memory back to the system until at most ``keep_bytes`` of it stay touched."""
        check(lib.hvd_arena_trim(self.pointer, keep_bytes), "Trimming the arena")

    def close(self) -> None:
        """Unmaps; raises InvalidArgument while a block is in use, which would then be memory that is gone."""
        if self._blocks:
            raise InvalidArgument(f"The arena cannot be closed: {len(self._blocks)} of its blocks are in use.")
        pointer, self.pointer = self.pointer, 0
        if pointer:
            lib.hvd_arena_close(pointer)
