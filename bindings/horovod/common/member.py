"""A rank's membership in one epoch: carries out the core's commands and takes the agent's words.

Owns the engine's view of the board and the core's tables; one lock guards both.  It is never held while waiting, and no
other process can hold it.  The calls that bindings make are in ``client.py``.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from typing import Any

from horovod.common import basics, departure
from horovod.common.core import ClientCore, OperationState
from horovod.common.core.events import (
    Announce,
    Bind,
    Bound,
    Command,
    EpochEnded,
    FailOp,
    Marked,
    PlanReady,
    Refused,
    Resubmit,
    Retire,
    RetireAck,
    Submit,
    Unbind,
    Unbound,
    Unplaced,
)
from horovod.common.engine import CANCELLED, CLOSED, FAILED, INVALID, MARKED, MEMORY, OK, SPENT, Engine, status_text
from horovod.common.exceptions import AgentLostError, EngineError, ErrorKind, error_of_kind
from horovod.common.layout import payload_bytes
from horovod.common.operations import AgentOp
from horovod.common.process import Membership, Process
from horovod.common.replies import Replies
from horovod.common.wire import announce_message
from horovod.proto import worker_pb2

__all__ = ["SHUT_DOWN_TEXT", "EpochMember"]

_log = logging.getLogger("horovod")

SHUT_DOWN_TEXT = "Horovod has been shut down. This process called shutdown while operations were open."
_END_TEXT_S = 1.0
_AGENT_LOST = -1
_ENGINE = -2


class EpochMember:
    """State and decisions' execution; thread-safe."""

    def __init__(self, process: Process, membership: Membership, engine: Engine) -> None:
        welcome = membership.welcome
        self.rank: int = welcome.rank
        self.size: int = welcome.size
        self.local_rank: int = welcome.local_rank
        self.local_size: int = welcome.local_size
        self.cross_rank: int = welcome.cross_rank
        self.cross_size: int = welcome.cross_size
        self.homogeneous: bool = welcome.homogeneous
        self._generation = membership.generation
        self._process = process
        self._session = membership.session
        self._engine = engine
        self._lock = threading.RLock()
        self._core = ClientCore()
        self._live = self._core.live
        self._sets = {entry.id: tuple(entry.ranks) for entry in welcome.process_sets}
        self._replies = Replies()
        self._ended = threading.Event()
        self._inside = 0
        self._gone = ""
        self._arena_start, self._arena_end = process.arena_range
        self._staged_bytes = 0
        self._commands: dict[type, Callable[[Any], None]] = {
            Announce: self._do_announce,
            Bind: self._do_bind,
            Unbind: self._do_unbind,
            FailOp: self._do_fail,
            RetireAck: self._do_acknowledge,
            Resubmit: self._do_resubmit,
        }

    # ---- commands of the core

    def _run(self, commands: Iterable[Command]) -> None:
        for command in commands:
            self._commands[type(command)](command)

    def _do_announce(self, command: Announce) -> None:
        self._send(announce_message(command))

    def _do_bind(self, command: Bind) -> None:
        op, plan = command.op, command.plan
        assert isinstance(op, AgentOp)
        if plan.dropped:  # by an operation that was to be bound before this one
            self._run(self._core.handle(Unplaced(op, plan)))
            return
        status, round_number = self._engine.bind(op.handle, plan.offset)
        op.placed = op.placed or status in (OK, MARKED)
        if status == OK:
            self._run(self._core.handle(Bound(op, plan, round_number)))
        elif status == MARKED:
            self._run(self._core.handle(Marked(op, plan)))
        elif status in (MEMORY, SPENT):
            op.input_gone = status == SPENT
            op.no_room_bytes = max(payload_bytes(op.signature), 1) if status == MEMORY else 0
            self._run(self._core.handle(Unplaced(op, plan)))
        elif status == INVALID and self._engine.poll(op.handle) == INVALID:
            # The engine is through with it (it went on by itself, or failed); its waiter is about to say so.
            self._run(self._core.handle(Bound(op, plan, plan.next_round)))
        else:
            kind, text = self._failure(op, status) if status not in (CLOSED, FAILED) else self._end_of_epoch(status, 0)
            self._do_fail(FailOp(op, kind, text))

    def _do_unbind(self, command: Unbind) -> None:
        gone = tuple(op for op in command.ops if isinstance(op, AgentOp) and self._taken_off(op))
        self._run(self._core.handle(Unbound(command.plan, gone)))

    def _taken_off(self, op: AgentOp) -> bool:
        """Whether the operation has no place on the board (any more): one that was only parked here never had.

        One whose input is gone, because nothing has kept it, takes no part in any round: all ranks hear of it, and stay in step.
        """
        if op.placed:
            status = self._engine.unbind(op.handle)
            op.placed = status not in (OK, SPENT)
            op.input_gone = status == SPENT
        return not op.placed

    def _do_fail(self, command: FailOp) -> None:
        op = command.op
        assert isinstance(op, AgentOp)
        op.failure = (command.kind, command.text)
        op.state = OperationState.GONE
        self._engine.fail(op.handle)

    def _do_resubmit(self, command: Resubmit) -> None:
        for op in command.ops:
            self._run(self._core.handle(Submit(op)))

    def _do_acknowledge(self, command: RetireAck) -> None:
        if self._gone:
            return  # plan numbers of the next epoch may be the same
        self._send(worker_pb2.WorkerMessage(retire_ack=worker_pb2.RetireAck(plans=command.plans)))

    def _send(self, message: worker_pb2.WorkerMessage) -> None:
        try:
            self._session.send(message)
        except AgentLostError as error:
            self.lost(str(error))

    # ---- words from the agent, in the reader thread

    def deliver(self, message: worker_pb2.AgentMessage) -> bool:
        """Takes a message of the agent; False after the last one."""
        kind = message.WhichOneof("body")
        with self._lock:
            if self._gone:
                return bool(kind != "closed")
            if kind == "plan_ready":
                ready = message.plan_ready
                self._run(self._core.handle(PlanReady(ready.plan, ready.offset, tuple(ready.requests))))
            elif kind == "refused":
                self._refused(message.refused)
            elif kind == "retire":
                self._run(self._core.handle(Retire(message.retire.plan, message.retire.limit)))
            elif kind == "epoch_ended":
                self._end(message.epoch_ended.error.kind, message.epoch_ended.error.text, board_fails=True)
            elif kind in ("joined", "process_set_ready", "process_set_removed"):
                self._answered(message)
            elif kind == "warning":
                warning: Any = message.warning  # type checkers take the message class for the builtin of its name
                _log.warning("%s", warning.text)
        return bool(kind != "closed")

    def _refused(self, refused: worker_pb2.Refused) -> None:
        error = self._error_of(refused.error.kind, refused.error.text)
        if not self._replies.fail(refused.request, error):
            self._run(self._core.handle(Refused(refused.request, refused.error.kind, refused.error.text)))

    def _answered(self, message: worker_pb2.AgentMessage) -> None:
        if message.HasField("joined"):
            self._replies.answer(message.joined.request, message.joined.last_rank)
        elif message.HasField("process_set_ready"):
            ready = message.process_set_ready
            self._sets[ready.process_set.id] = tuple(ready.process_set.ranks)
            self._replies.answer(ready.request, ready.process_set.id)
        else:
            self._sets.pop(message.process_set_removed.id, None)
            self._replies.answer(message.process_set_removed.request, message.process_set_removed.id)

    def idle(self) -> None:
        """Staging memory that the last seconds did not need goes back to the system; a program that is over leaves."""
        if departure.main_has_failed() and not self._gone:
            # Threads of the program keep the process alive; atexit handlers wait for them, and so would all ranks.
            threading.Thread(target=basics.leave_at_end, name="hvd-farewell", daemon=True).start()
            return
        keep, self._staged_bytes = self._staged_bytes, 0
        with self._lock:
            if not self._gone:
                self._process.trim(keep)

    def lost(self, reason: str) -> None:
        """The agent is gone, whatever it held: everything that is open ends here."""
        with self._lock:
            if not self._gone:
                self._engine.agent_dead()
                self._end(_AGENT_LOST, reason, board_fails=False)

    def _end(self, kind: int, text: str, board_fails: bool) -> None:
        self._run(self._core.handle(EpochEnded(kind, text, board_fails)))
        self._replies.fail_all(self._error_of(kind, text))
        self._ended.set()

    # ---- errors

    def _error_of(self, kind: int, text: str) -> Exception:
        if kind == _AGENT_LOST:
            return AgentLostError(text)
        return EngineError(text) if kind == _ENGINE else error_of_kind(kind, text)

    def _failure(self, op: AgentOp, status: int) -> tuple[int, str]:
        if op.failure is not None:
            return op.failure
        if status in (CLOSED, FAILED):
            return self._end_of_epoch(status, _END_TEXT_S)
        if status == CANCELLED:
            return ErrorKind.SHUT_DOWN, self._gone or SHUT_DOWN_TEXT
        return _ENGINE, f"{op.name}: {status_text(status)}."

    def _end_of_epoch(self, status: int, patience_s: float) -> tuple[int, str]:
        """Kind and text of the end; the board may know it a moment before the agent's message is here."""
        if patience_s:
            self._ended.wait(patience_s)
        ended = self._core.ended
        if ended is not None:
            return ended.kind, ended.text
        text = self._engine.reason() or status_text(status)
        return (ErrorKind.SHUT_DOWN if status == CLOSED else ErrorKind.LOST), text
