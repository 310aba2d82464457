"""The seam between framework bindings and the two clients: words, protocols, nothing that runs.

A binding describes a collective by a :class:`Signature`, hands over addresses, and waits on an operation.  Whether an
agent stands behind it (``client.AgentClient``) or the process is alone (``solo.SoloClient``) makes no difference to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from horovod.common.core.signature import CollectiveKind, ReduceOp, Signature

__all__ = ["Buffer", "Client", "CollectiveKind", "Copy", "Op", "ProcessSetInfo", "PullOp", "ReduceOp", "Signature"]

Buffer = tuple[int, int, int]
"""Address of the input, address of the output (equal = in place), bytes."""

Copy = tuple[int, int, int, int]
"""Member index, offset in that member's data, address to write to, bytes."""

ArenaBuffer = Any
"""An object with the buffer protocol; its memory goes back to the arena with it."""


@dataclass(frozen=True, slots=True)
class ProcessSetInfo:
    """A registered process set: its id and its ranks in ascending order."""

    id: int
    ranks: tuple[int, ...]


class Op(Protocol):
    """A submitted collective whose result is written to the caller's memory."""

    def wait(self) -> None:
        """Returns when the output is written; raises the failure, each time it is called."""
        ...

    def poll(self) -> bool:
        """True when wait() would return or raise at once."""
        ...


class PullOp(Protocol):
    """A submitted gather: after wait() the members' data can be read until done()."""

    def wait(self) -> None:
        """Returns when all members have published; raises the failure."""
        ...

    def poll(self) -> bool:
        """True when wait() would return or raise at once."""
        ...

    def meta(self, member: int) -> tuple[int, ...]:
        """The integers that this member of the process set published; zeros for one that has joined and has none."""
        ...

    def data_bytes(self, member: int) -> int:
        """How much data this member published."""
        ...

    def copy(self, copies: Sequence[Copy]) -> None:
        """Copies pieces of the members' data to addresses of this process."""
        ...

    def reduce(self, source_offset: int, out_ptr: int, nbytes: int) -> None:
        """Writes the reduction, over all members, of this span of their data."""
        ...

    def done(self) -> None:
        """This rank has read what it needs; calling it again does nothing."""
        ...


class Client(Protocol):
    """One rank's membership in an epoch."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int
    homogeneous: bool

    def reduce(
        self,
        signature: Signature,
        buffers: Sequence[Buffer],
        *,
        blocking: bool,
        keep: object = None,
        name: str | None = None,
    ) -> Op:
        """Submits an ALLREDUCE or BARRIER.

        ``keep`` is held until the operation is over.  ``name`` replaces the name of an unnamed signature, so that one
        signature object serves a whole loop.  Raises ValueError when this call is wrong (duplicate name, not a member,
        unknown process set, bad root), HorovodInternalError when the epoch has ended.
        """
        ...

    def gather(
        self,
        signature: Signature,
        buffers: Sequence[tuple[int, int]],
        meta: Sequence[int],
        *,
        keep: object = None,
        name: str | None = None,
    ) -> PullOp:
        """Submits an ALLGATHER, BROADCAST, ALLTOALL or REDUCESCATTER: (address, bytes) pieces, integers."""
        ...

    def join(self) -> int:
        """This rank has no more data; returns the rank that joined last, when all have."""
        ...

    def add_process_set(self, ranks: Sequence[int]) -> ProcessSetInfo:
        """Registers a set on all ranks; blocks until every rank has asked for it."""
        ...

    def remove_process_set(self, set_id: int) -> None:
        """Removes a set on all ranks; blocks until every rank has asked for it."""
        ...

    def process_sets(self) -> dict[int, tuple[int, ...]]:
        """Ids and ranks of all registered sets."""
        ...

    def alloc(self, nbytes: int) -> ArenaBuffer:
        """Memory that collectives work on where it is."""
        ...

    def leave(self, reason: str = "", finished: bool = False) -> None:
        """Ends this rank's membership; what is open fails.

        ``finished``: the process ends now.  ``reason``: what it died of, for the others, where that is known.
        """
        ...
