"""The two nouns of the client core: an operation of this rank, and a plan as this rank sees it.

Both are plain records.  The shell extends :class:`Operation` with what the engine needs, and reads and counts a live
:class:`Plan` directly on its fast path; the rules for doing so are in ``client.py``.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from enum import Enum

from horovod.common.core.signature import Signature

__all__ = ["Operation", "OperationState", "Plan"]


class OperationState(Enum):
    """Where an operation is.

    NEW -> WAITING (announced, or queued behind an announcement) -> BOUND (has a round) -> GONE
    NEW -> BOUND; BOUND -> WAITING (taken off a retired plan)
    NEW -> PARKED (its plan is on hold) -> BOUND or WAITING
    """

    NEW = "new"
    WAITING = "waiting"
    PARKED = "parked"
    BOUND = "bound"
    GONE = "gone"


class Operation:
    """One submitted collective of this rank."""

    __slots__ = ("input_gone", "name", "no_room_bytes", "plan", "request", "round", "signature", "state")

    def __init__(self, signature: Signature, name: str) -> None:
        self.signature = signature
        self.name = name
        self.plan: Plan | None = None
        self.round = -1
        self.request = 0
        self.state = OperationState.NEW
        # This rank has no memory for so much, or lost the input: the operation is announced only to be refused.
        self.no_room_bytes = 0
        self.input_gone = False

    @property
    def unable(self) -> bool:
        """Whether this rank can take no part in it."""
        return self.no_room_bytes > 0 or self.input_gone


class Plan:
    """A negotiated signature: where it lies on the board and which operations of this rank are on it."""

    __slots__ = ("dropped", "id", "key", "limit", "next_round", "offset", "ops", "parked", "signature")

    def __init__(self, plan_id: int, offset: int, signature: Signature) -> None:
        self.id = plan_id
        self.offset = offset
        self.signature = signature
        self.key: Hashable = signature.key
        self.next_round = 0
        self.limit: int | None = None
        self.dropped = False
        self.ops: dict[Operation, None] = {}
        self.parked: list[Operation] = []

    @property
    def exhausted(self) -> bool:
        """No operation of this rank will be bound to it any more."""
        return self.dropped or (self.limit is not None and self.next_round >= self.limit)

    def mark_bound(self, ops: Iterable[Operation]) -> None:
        """Counts these as operations that have a round here, whichever it is."""
        for op in ops:
            op.plan, op.state = self, OperationState.BOUND
            self.ops[op] = None
