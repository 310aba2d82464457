"""One rank's native engine: operations and their queues, as the states of native/src/op.h."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from enum import Enum

from tests.model.board import Block, Board, BoardState, ModelError, Payload

OK, MARKED, INVALID, CLOSED, FAILED, CANCELLED = "ok", "marked", "invalid", "closed", "failed", "cancelled"


class State(Enum):
    """Of an operation."""

    UNBOUND = "unbound"
    QUEUED = "queued"
    ARRIVED = "arrived"
    COMPLETE = "complete"
    FAILED = "failed"
    GONE = "gone"


@dataclass(eq=False)
class NativeOp:
    """``result`` is set with COMPLETE or FAILED."""

    payload: Payload
    state: State = State.UNBOUND
    block: Block | None = None
    round: int = -1
    cancelled: bool = False
    result: str = ""


@dataclass(eq=False)
class Bound:
    """A plan in use by this process."""

    queue: list[NativeOp] = field(default_factory=list)
    next_round: int = 0


@dataclass
class Engine:
    """Opened on the board of an epoch."""

    board: Board
    rank: int
    plans: dict[int, Bound] = field(default_factory=dict)
    open_ops: list[NativeOp] = field(default_factory=list)
    closed: bool = False

    def submit(self, payload: Payload) -> NativeOp:
        op = NativeOp(payload)
        self.open_ops.append(op)
        return op

    def bind(self, op: NativeOp, offset: int) -> Generator[object, None, tuple[str, int]]:
        """hvd_op_bind, in steps."""
        block = self.board.blocks.get(offset)
        if block is None or self.rank not in block.members:
            raise ModelError(f"rank {self.rank} binds to offset {offset}, where it has no plan")
        self.settle(op)
        if op.state is State.FAILED:
            return op.result, -1
        if op.state is State.GONE:
            return INVALID, -1
        if op.block is not None and op.block is not block and not self.take_off(op, "withdrawn"):
            return INVALID, -1
        if op.state is State.UNBOUND:
            self._enqueue(op, block)
        yield from self.pump(block)
        return self._bind_result(op, block), op.round

    def _enqueue(self, op: NativeOp, block: Block) -> None:
        bound = self.plans.setdefault(block.plan, Bound())
        if not bound.queue:
            bound.next_round = max(bound.next_round, block.arrivals.get(self.rank, 0))
        op.block, op.round, op.state = block, bound.next_round, State.QUEUED
        bound.next_round += 1
        bound.queue.append(op)

    def _bind_result(self, op: NativeOp, block: Block) -> str:
        if op.state is State.FAILED:
            return op.result
        if op.state is State.COMPLETE or (op.state is State.ARRIVED and block.entry(op.round).opened):
            return OK
        return OK if block.is_below_limit(self.board.host, op.round) else MARKED

    def pump(self, block: Block) -> Generator[object, None, None]:
        """Arrives for what the limit and the ring allow."""
        bound = self.plans[block.plan]
        while bound.queue and self.board.state is BoardState.OK:
            op = bound.queue[0]
            if not block.is_below_limit(self.board.host, op.round) or not block.is_free(op.round):
                return
            yield "will arrive"
            arrival = self.board.arrive(block, op.round, self.rank, op.payload)
            yield next(arrival)
            bound.queue.pop(0)
            op.state = State.ARRIVED
            yield from arrival

    def take_off(self, op: NativeOp, how: str) -> bool:
        block = op.block
        assert block is not None
        bound = self.plans[block.plan]
        self.board.touch(block)
        if op.state is State.QUEUED:
            bound.queue.remove(op)
            if op.round + 1 == bound.next_round:
                bound.next_round -= 1
        elif op.state is not State.ARRIVED or not self.board.close_unopened(block, op.round, how):
            return False
        op.block, op.round, op.state = None, -1, State.UNBOUND
        return True

    def unbind(self, op: NativeOp) -> bool:
        """hvd_op_unbind."""
        if op.state not in (State.QUEUED, State.ARRIVED) or op.block is None:
            return False
        return not op.block.is_below_limit(self.board.host, op.round) and self.take_off(op, "withdrawn")

    def fail(self, op: NativeOp) -> None:
        """hvd_op_fail."""
        if op.state not in (State.COMPLETE, State.FAILED, State.GONE):
            op.cancelled = True
            self.settle(op)

    # ---- progress of waiters

    def can_move(self, op: NativeOp) -> bool:
        """Whether a waiter of this operation would get anywhere."""
        if op.state in (State.COMPLETE, State.FAILED, State.GONE):
            return True
        if op.cancelled or self.board.state is not BoardState.OK:
            return True
        block = op.block
        if block is None:
            return False
        if op.state is State.ARRIVED:
            entry = block.entry(op.round)
            return entry.opened or entry.closed == "cancelled" or block.can_open(op.round)
        return self._can_pump(block)

    def _can_pump(self, block: Block) -> bool:
        queue = self.plans[block.plan].queue
        number = queue[0].round if queue else 0
        return bool(queue) and block.is_below_limit(self.board.host, number) and block.is_free(number)

    def attempt(self, op: NativeOp) -> Generator[object, None, bool]:
        """One look of a waiter: True when the operation is over here (complete or failed)."""
        if op.state is State.QUEUED and op.block is not None:
            yield from self.pump(op.block)
        self.settle(op)
        return op.state in (State.COMPLETE, State.FAILED, State.GONE)

    def settle(self, op: NativeOp) -> None:
        """Moves an op on as far as the board allows."""
        fate = CANCELLED if op.cancelled else self._epoch_fate()
        if op.state is State.ARRIVED:
            self._settle_arrived(op, fate)
        elif fate and op.state in (State.UNBOUND, State.QUEUED):
            if op.state is State.QUEUED:
                self.take_off(op, "cancelled")
            op.state, op.result = State.FAILED, fate

    def _epoch_fate(self) -> str:
        return {BoardState.OK: "", BoardState.CLOSED: CLOSED, BoardState.FAILED: FAILED}[self.board.state]

    def _settle_arrived(self, op: NativeOp, fate: str) -> None:
        block = op.block
        assert block is not None
        entry = block.entry(op.round)
        if self.board.open_round(block, op.round):
            self.board.touch(block)
            op.state, op.result = State.COMPLETE, OK
        elif entry.closed == "cancelled" or (fate and self.board.close_unopened(block, op.round, "cancelled")):
            op.state, op.result, op.block = State.FAILED, fate or CANCELLED, None

    def release(self, op: NativeOp) -> str:
        """The waiter takes the result; the handle is gone."""
        if op.state is State.COMPLETE:
            assert op.block is not None
            op.block.entry(op.round).reads += 1
        op.state, op.block = State.GONE, None
        self.open_ops.remove(op)
        return op.result

    def close(self) -> None:
        """hvd_engine_close."""
        for op in list(self.open_ops):
            self.fail(op)
            self.release(op)
        self.closed = True
