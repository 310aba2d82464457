"""Asynchronous operations in flight: the handle table, poll and synchronize, and what happens at the end of each.

An entry owns everything that must stay alive until its operation is over.  ``finish`` waits, writes what has to be
written and gives the user's result; it is called once, by whoever takes the entry out of the table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from horovod.common import basics
from horovod.common.calls import wait_all
from horovod.common.exceptions import HorovodInternalError, NotInitializedError, UsageError
from horovod.common.handles import HandleTable
from horovod.common.types import Client, Op, PullOp
from horovod.torch.staging import copy_out

__all__ = [
    "Entry",
    "PulledEntry",
    "ReducedEntry",
    "handles",
    "increment_version",
    "poll",
    "require_client",
    "start",
    "synchronize",
    "wait_all",
]

_increment_version = torch.autograd.graph.increment_version


def increment_version(tensor: torch.Tensor) -> None:
    """Tells autograd that the tensor's values have changed; tensors of inference mode count nothing."""
    try:
        _increment_version(tensor)
    except RuntimeError:  # of some versions of torch; asking first would cost every other tensor
        if not tensor.is_inference():
            raise


class Entry(Protocol):
    """What a handle stands for."""

    def poll(self) -> bool: ...
    def finish(self) -> Any: ...


handles: HandleTable[Entry] = HandleTable()
basics.on_new_epoch(handles.reset)


def require_client() -> Client:
    """The running client; HorovodInternalError where there is none, as for any operation that can't be run."""
    try:
        return basics.client()
    except NotInitializedError as error:
        raise HorovodInternalError(str(error)) from error


class ReducedEntry:
    """Operations that write through the engine; ``copies`` are (target, buffer) pairs still to be copied."""

    __slots__ = ("_copies", "_ops", "_result")

    def __init__(self, ops: Sequence[Op], result: Any, copies: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
        self._ops = ops
        self._result = result
        self._copies = copies

    def poll(self) -> bool:
        return all(op.poll() for op in self._ops)

    def finish(self) -> Any:
        wait_all(self._ops)
        for target, buffer in self._copies:
            copy_out(target, buffer)
        return self._result


class PulledEntry:
    """Operations whose data is read out of the members' memory once all have published it."""

    __slots__ = ("_ops", "_read")

    def __init__(self, ops: Sequence[PullOp], read: Callable[[Sequence[PullOp]], Any]) -> None:
        self._ops = ops
        self._read = read

    def poll(self) -> bool:
        return all(op.poll() for op in self._ops)

    def finish(self) -> Any:
        try:
            wait_all(self._ops)
            return self._read(self._ops)
        finally:
            for op in self._ops:
                op.done()


def start(entry: Entry, handle: int) -> int:
    """Puts an entry under its handle."""
    handles.put(handle, entry)
    return handle


def poll(handle: int) -> bool:
    """Whether ``synchronize`` would return at once; ValueError for a handle that was cleared or never given out."""
    entry = handles.get(handle)
    if entry is None:
        raise UsageError(f"Handle {handle} stands for no operation: it was synchronized already, or never given out.")
    return entry.poll()


def synchronize(handle: int) -> Any:
    """Waits for the operation and gives its result; the handle is used up.  None for a handle that is not known.

    Raises HorovodInternalError when the operation failed.
    """
    entry = handles.pop(handle)
    return None if entry is None else entry.finish()
