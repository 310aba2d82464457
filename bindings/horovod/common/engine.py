"""The native engine as the client calls it: flat calls on integers, cheap enough for the fast path.

``Engine`` is the seam; tests put a model of the board behind it.  Statuses are the numbers of hvd.h.
"""

from __future__ import annotations

import array
import ctypes
from collections.abc import Sequence
from typing import Any, Protocol

from horovod import native
from horovod.common.exceptions import EngineError
from horovod.common.types import Buffer, Copy

__all__ = [
    "CANCELLED",
    "CLOSED",
    "FAILED",
    "MARKED",
    "MEMORY",
    "OK",
    "PENDING",
    "SPENT",
    "Engine",
    "NativeEngine",
    "NoRoom",
    "status_text",
]

OK, PENDING, MARKED = 0, 1, 2
INVALID, MEMORY, CLOSED, FAILED, CANCELLED, SPENT = -1, -2, -3, -4, -5, -6
_BLOCKING = 1

_TEXTS = {
    INVALID: "the engine refused an argument",
    MEMORY: "shared memory is exhausted (HVD_ARENA_BYTES sets its size; memory limits of the container count too)",
    CLOSED: "the epoch was closed",
    FAILED: "the epoch failed",
    CANCELLED: "the operation was cancelled",
    SPENT: "its input lay in shared memory, and a round that was taken back has overwritten it",
}


def status_text(status: int) -> str:
    """What a negative status means."""
    return _TEXTS.get(status, f"the engine answered {status}")


def _check(status: int, what: str) -> None:
    if status < 0:
        raise EngineError(f"{what}: {status_text(status)}.")


class NoRoom(EngineError):
    """Inside the client only: the payload has no place in the arena, and nothing was submitted."""


def _check_staged(status: int, what: str) -> None:
    if status == MEMORY:
        raise NoRoom(f"{what}: {status_text(status)}.")
    _check(status, what)


class Engine(Protocol):
    """A rank's view of one epoch's board.  ``handle`` holds the operation of the last submitting call."""

    handle: int

    def reduce(self, buffers: Sequence[Buffer], blocking: bool, tag: int) -> int: ...
    def reduce_bound(self, offset: int, buffer: Buffer, blocking: bool, tag: int) -> int: ...
    def pull(self, buffers: Sequence[tuple[int, int]], meta: Sequence[int], tag: int) -> int: ...
    def bind(self, handle: int, offset: int) -> tuple[int, int]: ...
    def unbind(self, handle: int) -> int: ...
    def wait(self, handle: int, timeout_ms: int) -> int: ...
    def tag(self, handle: int, tag: int) -> None: ...
    def poll(self, handle: int) -> int: ...
    def fail(self, handle: int) -> None: ...
    def meta(self, handle: int, member: int) -> tuple[tuple[int, ...], int]: ...
    def pull_copy(self, handle: int, copies: Sequence[Copy]) -> int: ...
    def pull_reduce(self, handle: int, offset: int, out: int, nbytes: int) -> int: ...
    def done(self, handle: int) -> None: ...
    def agent_dead(self) -> None: ...
    def reason(self) -> str: ...
    def close(self) -> None: ...


class NativeEngine:
    """``Engine`` over libhvd_native.  Submitting calls belong under the client's lock: they share one output cell."""

    __slots__ = ("_bind_round", "_cell", "_cell_ref", "_engine", "_lib", "_op_reduce_bound", "_round_ref", "handle")

    def __init__(self, board_fd: int, arena: int, local_index: int, arena_fds: Sequence[int]) -> None:
        self._lib = native.lib
        pointer = ctypes.c_void_p()
        descriptors = (ctypes.c_int * len(arena_fds))(*arena_fds)
        status = self._lib.hvd_engine_open(
            board_fd, arena, local_index, descriptors, len(arena_fds), ctypes.byref(pointer)
        )
        _check(status, "The board can't be opened")
        self._engine = pointer.value or 0
        self._cell = ctypes.c_int64()
        self._cell_ref = ctypes.byref(self._cell)
        self._bind_round = ctypes.c_uint64()
        self._round_ref = ctypes.byref(self._bind_round)
        self._op_reduce_bound = self._lib.hvd_op_reduce_bound
        self.handle = 0

    def reduce(self, buffers: Sequence[Buffer], blocking: bool, tag: int) -> int:
        """hvd_op_reduce; the handle.  Safe without the lock: it has an output cell of its own."""
        cell = ctypes.c_int64()
        flat = array.array("Q", [number for buffer in buffers for number in buffer])
        status = self._lib.hvd_op_reduce(
            self._engine, _segments(flat), len(buffers), _BLOCKING if blocking else 0, tag, ctypes.byref(cell)
        )
        _check_staged(status, "The payload can't be staged")
        return cell.value

    def reduce_bound(self, offset: int, buffer: Buffer, blocking: bool, tag: int) -> int:
        """hvd_op_reduce_bound; the status, and the handle in ``handle``."""
        status: int = self._op_reduce_bound(
            self._engine, offset, buffer[0], buffer[1], buffer[2], 1 if blocking else 0, tag, self._cell_ref
        )
        self.handle = self._cell.value
        return status

    def pull(self, buffers: Sequence[tuple[int, int]], meta: Sequence[int], tag: int) -> int:
        """hvd_op_pull; the handle."""
        cell = ctypes.c_int64()
        flat = array.array("Q", [number for address, nbytes in buffers for number in (address, 0, nbytes)])
        numbers = (ctypes.c_int64 * len(meta))(*meta)
        status = self._lib.hvd_op_pull(
            self._engine, _segments(flat), len(buffers), numbers, len(meta), None, 0, tag, ctypes.byref(cell)
        )
        _check_staged(status, "The data can't be published")
        return cell.value

    def bind(self, handle: int, offset: int) -> tuple[int, int]:
        """hvd_op_bind; status and round."""
        status: int = self._lib.hvd_op_bind(self._engine, handle, offset, self._round_ref)
        return status, self._bind_round.value

    def unbind(self, handle: int) -> int:
        """hvd_op_unbind; the status: the operation is off its round with OK and with SPENT."""
        status: int = self._lib.hvd_op_unbind(self._engine, handle)
        return status

    def wait(self, handle: int, timeout_ms: int) -> int:
        """hvd_op_wait; the status."""
        status: int = self._lib.hvd_op_wait(self._engine, handle, timeout_ms)
        return status

    def tag(self, handle: int, tag: int) -> None:
        """hvd_op_tag; an operation that is over already does not matter."""
        self._lib.hvd_op_tag(self._engine, handle, tag)

    def poll(self, handle: int) -> int:
        """hvd_op_poll; the status."""
        status: int = self._lib.hvd_op_poll(self._engine, handle)
        return status

    def fail(self, handle: int) -> None:
        """hvd_op_fail; an operation that is over already does not matter."""
        self._lib.hvd_op_fail(self._engine, handle)

    def meta(self, handle: int, member: int) -> tuple[tuple[int, ...], int]:
        """The integers that a member published, and how many bytes of data."""
        capacity = 64
        while True:
            numbers, count, nbytes = (ctypes.c_int64 * capacity)(), ctypes.c_uint32(), ctypes.c_uint64()
            status = self._lib.hvd_op_meta(
                self._engine, handle, member, numbers, capacity, ctypes.byref(count), ctypes.byref(nbytes)
            )
            _check(status, f"The data of member {member} can't be read")
            if count.value <= capacity:
                return tuple(numbers[: count.value]), nbytes.value
            capacity = count.value

    def pull_copy(self, handle: int, copies: Sequence[Copy]) -> int:
        """hvd_op_pull_copy; the status."""
        flat = array.array("Q", [number for copy in copies for number in copy])
        pieces = _pointer(flat, self._lib.hvd_op_pull_copy.argtypes[2])
        status: int = self._lib.hvd_op_pull_copy(self._engine, handle, pieces, len(copies))
        return status

    def pull_reduce(self, handle: int, offset: int, out: int, nbytes: int) -> int:
        """hvd_op_pull_reduce; the status."""
        status: int = self._lib.hvd_op_pull_reduce(self._engine, handle, offset, out, nbytes)
        return status

    def done(self, handle: int) -> None:
        """hvd_op_done."""
        self._lib.hvd_op_done(self._engine, handle)

    def agent_dead(self) -> None:
        """hvd_engine_agent_dead."""
        self._lib.hvd_engine_agent_dead(self._engine)

    def reason(self) -> str:
        """Why the board failed, empty when it did not."""
        text = ctypes.create_string_buffer(4096)
        length = self._lib.hvd_engine_reason(self._engine, text, len(text))
        return text.raw[: min(length, len(text))].decode("utf-8", "replace").rstrip("\0")

    def close(self) -> None:
        """hvd_engine_close; only once."""
        engine, self._engine = self._engine, 0
        if engine:
            self._lib.hvd_engine_close(engine)


def _segments(flat: array.array[int]) -> Any:
    return _pointer(flat, native.lib.hvd_op_reduce.argtypes[1])


def _pointer(flat: array.array[int], kind: Any) -> Any:
    """The array as a pointer to records of 64-bit fields; the caller keeps the array alive."""
    return ctypes.cast(flat.buffer_info()[0], kind)
