"""Operations of a rank as the bindings hold them: waiting, polling, reading what others published.

An operation is over when the engine has freed it; from then on wait() repeats the outcome.  The plan holds it until
then, and with it ``keep``: memory that the engine still writes to can't be freed by dropping the object.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from horovod.common.core import Operation, OperationState, Signature
from horovod.common.engine import OK, PENDING, Engine, status_text
from horovod.common.exceptions import EngineError, UsageError
from horovod.common.types import Copy

if TYPE_CHECKING:
    from horovod.common.client import AgentClient

__all__ = ["AgentOp", "AgentPullOp"]

_NEW = OperationState.NEW
_SLICE_MS = 100  # the longest time without handling a signal


class AgentOp(Operation):
    """A cooperative operation."""

    __slots__ = ("client", "failure", "handle", "keep", "over", "placed")

    def __init__(self, client: AgentClient, signature: Signature, name: str, keep: object) -> None:
        # Written out, not left to the base class: this runs for every operation.
        self.signature = signature
        self.name = name
        self.plan = None
        self.round = -1
        self.request = 0
        self.state = _NEW
        self.no_room_bytes = 0
        self.input_gone = False
        self.client = client
        self.handle = 0
        self.keep = keep
        self.over = False
        self.placed = False  # has a place on the board, be it marked
        self.failure: tuple[int, str] | None = None

    def wait(self) -> None:
        """Returns when the output is written; raises the failure."""
        if not self.over:
            self._await()
        if self.failure is not None:
            raise self.client.error(self)

    def complete(self) -> None:
        """Returns when wait() would not wait any more; raises nothing that wait() is to raise."""
        if not self.settled:
            self._await()

    def _await(self) -> None:
        client = self.client
        engine = client.enter()
        try:
            status = engine.wait(self.handle, _SLICE_MS)
            shown = 0
            while status == PENDING:
                shown = client.show(self, shown)
                status = engine.wait(self.handle, _SLICE_MS)
        except BaseException:
            client.exit()
            raise
        self._exit(status)

    def _exit(self, status: int) -> None:
        """Leaves the engine, which is through with this operation."""
        self.client.exit_concluding(self, status)

    def poll(self) -> bool:
        """True when wait() would return or raise at once."""
        if self.over:
            return True
        engine = self.client.enter()
        try:
            status = engine.poll(self.handle)
            if status != PENDING:
                status = engine.wait(self.handle, 0)
        except BaseException:
            self.client.exit()
            raise
        if status == PENDING:
            self.client.exit()
            return False
        self._exit(status)
        return True

    @property
    def settled(self) -> bool:
        """Whether another operation of this name may follow."""
        return self.over or self.poll()


class AgentPullOp(AgentOp):
    """A pull operation: between wait() and done() the members' data can be read."""

    __slots__ = ("_n_meta", "ready")

    def __init__(self, client: AgentClient, signature: Signature, name: str, keep: object, n_meta: int) -> None:
        super().__init__(client, signature, name, keep)
        self.ready = False
        self._n_meta = n_meta

    def wait(self) -> None:
        """Returns when all members have published; raises the failure."""
        if not self.ready:
            super().wait()

    def _exit(self, status: int) -> None:
        self.client.exit()
        if status == OK:
            self.ready = True
            self.keep = None
        else:
            self.client.conclude(self, status)

    def poll(self) -> bool:
        """True when wait() would return or raise at once."""
        return self.ready or super().poll()

    @property
    def settled(self) -> bool:
        """Whether another operation of this name may follow."""
        return self.ready or super().settled

    def meta(self, member: int) -> tuple[int, ...]:
        """The integers that this member published; as many zeros for one that has joined and publishes nothing."""
        return self._read(member)[0] or (0,) * self._n_meta

    def data_bytes(self, member: int) -> int:
        """How much data this member published."""
        return self._read(member)[1]

    def copy(self, copies: Sequence[Copy]) -> None:
        """Copies pieces of the members' data to addresses of this process."""
        if copies:
            engine = self._enter()
            try:
                status = engine.pull_copy(self.handle, copies)
            finally:
                self.client.exit()
            self._check(status)

    def reduce(self, source_offset: int, out_ptr: int, nbytes: int) -> None:
        """Writes the reduction, over all members, of this span of their data."""
        if nbytes:
            engine = self._enter()
            try:
                status = engine.pull_reduce(self.handle, source_offset, out_ptr, nbytes)
            finally:
                self.client.exit()
            self._check(status)

    def done(self) -> None:
        """This rank has read what it needs; calling it again does nothing."""
        if self.over or not self.ready:
            return
        engine = self.client.enter()
        try:
            engine.done(self.handle)
        except BaseException:
            self.client.exit()
            raise
        self.client.exit_concluding(self, OK)

    def _read(self, member: int) -> tuple[tuple[int, ...], int]:
        engine = self._enter()
        try:
            return engine.meta(self.handle, member)
        finally:
            self.client.exit()

    def _enter(self) -> Engine:
        if self.over or not self.ready:
            raise UsageError(f"{self.name}: its data can only be read between wait() and done().")
        return self.client.enter()

    def _check(self, status: int) -> None:
        if status < 0:
            raise EngineError(f"{self.name}: the members' data can't be read: {status_text(status)}.")
