"""A world of size 1: every collective works in this process, without agent, sockets or threads.

Numbers go through the same kernel as everywhere else, so that factors, rounding and truncation do not depend on how
many ranks there are.  Every operation is over when its submit returns.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from horovod import native
from horovod.common.checks import check_submit, full_name
from horovod.common.exceptions import EngineError, UsageError
from horovod.common.layout import kernel_arguments, segment_dtype_bytes
from horovod.common.types import ArenaBuffer, Buffer, Copy, ProcessSetInfo, Signature

__all__ = ["SoloClient", "plain_buffer"]

_ALIGNMENT = 64


def plain_buffer(nbytes: int) -> ArenaBuffer:
    """Ordinary memory with the alignment that the arena gives."""
    store = bytearray(nbytes + _ALIGNMENT)
    address = ctypes.addressof(ctypes.c_char.from_buffer(store))
    return (ctypes.c_char * nbytes).from_buffer(store, -address % _ALIGNMENT)


def _reduce_one(signature: Signature, source: int, target: int, nbytes: int) -> None:
    """Runs the kernel over one member."""
    op, post = kernel_arguments(signature, 1)
    count = nbytes // segment_dtype_bytes(signature.dtype)
    inputs, outputs = (ctypes.c_void_p * 1)(source), (ctypes.c_void_p * 1)(target)
    status = native.lib.hvd_reduce(signature.dtype, op, signature.prescale, post, inputs, outputs, 1, count)
    if status != 0:
        raise EngineError(f"{full_name(signature)}: the kernel refused dtype {signature.dtype} with op {op}.")


class _FinishedOp:
    """Nothing to wait for."""

    __slots__ = ()

    def wait(self) -> None:
        return None

    def poll(self) -> bool:
        return True


_FINISHED = _FinishedOp()


class _SoloPullOp:
    """The published data, copied at submit as everywhere else."""

    __slots__ = ("_data", "_meta", "_signature")

    def __init__(self, signature: Signature, buffers: Sequence[tuple[int, int]], meta: Sequence[int]) -> None:
        self._signature = signature
        self._data = b"".join(ctypes.string_at(address, nbytes) for address, nbytes in buffers if nbytes)
        self._meta = tuple(meta)

    def wait(self) -> None:
        return None

    def poll(self) -> bool:
        return True

    def meta(self, member: int) -> tuple[int, ...]:
        self._check_member(member)
        return self._meta

    def data_bytes(self, member: int) -> int:
        self._check_member(member)
        return len(self._data)

    def copy(self, copies: Sequence[Copy]) -> None:
        for member, offset, target, nbytes in copies:
            self._check_member(member)
            if nbytes:
                ctypes.memmove(target, self._address(offset, nbytes), nbytes)

    def reduce(self, source_offset: int, out_ptr: int, nbytes: int) -> None:
        if nbytes:
            _reduce_one(self._signature, self._address(source_offset, nbytes), out_ptr, nbytes)

    def done(self) -> None:
        return None

    def _address(self, offset: int, nbytes: int) -> int:
        if offset < 0 or nbytes < 0 or offset + nbytes > len(self._data):
            raise UsageError(f"{full_name(self._signature)}: bytes {offset} to {offset + nbytes} lie outside the data.")
        return (ctypes.cast(ctypes.c_char_p(self._data), ctypes.c_void_p).value or 0) + offset

    def _check_member(self, member: int) -> None:
        if member != 0:
            raise UsageError(f"{full_name(self._signature)}: there is no member {member} in a world of size 1.")


class SoloClient:
    """The client of a process that runs alone."""

    rank = local_rank = cross_rank = 0
    size = local_size = cross_size = 1
    homogeneous = True

    def __init__(self) -> None:
        self._sets: dict[int, tuple[int, ...]] = {0: (0,)}

    def reduce(
        self,
        signature: Signature,
        buffers: Sequence[Buffer],
        *,
        blocking: bool,
        keep: object = None,
        name: str | None = None,
    ) -> _FinishedOp:
        """Reduces each buffer over the one member."""
        check_submit(signature, self._sets, 0, name)
        for source, target, nbytes in buffers:
            if nbytes:
                _reduce_one(signature, source, target, nbytes)
        return _FINISHED

    def gather(
        self,
        signature: Signature,
        buffers: Sequence[tuple[int, int]],
        meta: Sequence[int],
        *,
        keep: object = None,
        name: str | None = None,
    ) -> _SoloPullOp:
        """Publishes to the one member."""
        check_submit(signature, self._sets, 0, name)
        return _SoloPullOp(signature, buffers, meta)

    def join(self) -> int:
        """The only rank joined last."""
        return 0

    def add_process_set(self, ranks: Sequence[int]) -> ProcessSetInfo:
        """There is no set but the global one."""
        raise UsageError(f"A process set with ranks {list(ranks)} can't be added: a world of size 1 has one set.")

    def remove_process_set(self, set_id: int) -> None:
        """There is nothing to remove."""
        raise UsageError(f"There is no process set with id {set_id} that could be removed.")

    def process_sets(self) -> dict[int, tuple[int, ...]]:
        """The global set."""
        return dict(self._sets)

    def alloc(self, nbytes: int) -> ArenaBuffer:
        """Ordinary memory."""
        return plain_buffer(nbytes)

    def leave(self, reason: str = "", finished: bool = False) -> None:
        """Nothing to do."""
