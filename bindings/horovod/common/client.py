"""The client of a rank that has an agent: what bindings call, from Welcome to leave.

Steady state: a submit looks the plan up in one dictionary and calls the engine once, and no
message is sent.  Everything else goes through the core, whose commands are carried out under the lock.

Threads: users' threads, and the session's reader while the epoch lasts.  The engine is closed only when no thread is
inside it (``enter``/``exit``).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from horovod.common.checks import about, check_submit
from horovod.common.core import OperationState, Plan, Signature
from horovod.common.core.events import (
    EpochEnded,
    FailOp,
    Finished,
    Marked,
    Submit,
)
from horovod.common.engine import CLOSED, FAILED, MARKED, MEMORY, OK, Engine, NoRoom, status_text
from horovod.common.exceptions import (
    AgentLostError,
    DuplicateNameError,
    EngineError,
    ErrorKind,
    NotInitializedError,
    error_of_kind,
)
from horovod.common.member import SHUT_DOWN_TEXT, EpochMember
from horovod.common.operations import AgentOp, AgentPullOp
from horovod.common.process import join_epoch
from horovod.common.replies import Reply
from horovod.common.types import ArenaBuffer, Buffer, ProcessSetInfo
from horovod.proto import worker_pb2

__all__ = ["AgentClient"]

_SMALL_BYTES = 64 << 10  # copied in under the lock; larger asynchronous payloads are staged before it is taken
_GONE = OperationState.GONE
_BOUND = OperationState.BOUND
_PARKED = OperationState.PARKED
_LEAVE_S = 10.0


class AgentClient(EpochMember):
    """One rank's membership in one epoch; see ``horovod.common.types.Client``."""

    @classmethod
    def start(cls, settings: Any, sets: Sequence[Sequence[int]]) -> AgentClient:
        """Joins the epoch that forms; blocks until all ranks are there.  Raises StartError."""
        process, membership, engine = join_epoch(settings, sets)
        client = cls(process, membership, engine)
        process.client = client
        membership.session.start_reading(client)
        return client

    # ---- submits

    def reduce(
        self,
        signature: Signature,
        buffers: Sequence[Buffer],
        *,
        blocking: bool,
        keep: object = None,
        name: str | None = None,
    ) -> AgentOp:
        """Submits an ALLREDUCE or BARRIER; with ``blocking`` it also waits, and its errors are raised here."""
        op = AgentOp(self, signature, name or signature.name, keep)
        if len(buffers) == 1 and (blocking or buffers[0][2] <= _SMALL_BYTES):
            with self._lock:
                plan = self._live.get(signature.key)
                if plan is None or not self._bind_at_once(op, plan, buffers[0], blocking):
                    plan = None
            if plan is None:
                self._submit(op, lambda engine, tag: engine.reduce(buffers, blocking, tag), buffers[0][2])
        else:
            nbytes = sum(buffer[2] for buffer in buffers)
            self._count_staged(buffers[0][0] if buffers else 0, nbytes)
            self._submit(op, lambda engine, tag: engine.reduce(buffers, blocking, tag), nbytes)
        if blocking:
            op.wait()
        return op

    def _bind_at_once(self, op: AgentOp, plan: Plan, buffer: Buffer, blocking: bool) -> bool:
        """The fast path; False when the core has to decide.  Its rules are in core/client.py."""
        signature = op.signature
        if plan.parked or plan.limit is not None or self._gone:
            return False
        if not signature.unnamed and (plan.ops or (plan.signature is not signature and plan.signature != signature)):
            return False
        status = self._engine.reduce_bound(plan.offset, buffer, blocking, plan.id)
        if status == MEMORY:
            return False  # the general path tells the others
        if status < 0:
            self._raise_status(op, status)
        op.handle = self._engine.handle
        op.placed = True
        if status == MARKED:
            self._run(self._core.handle(Marked(op, plan)))
            return True
        op.plan, op.round, op.state = plan, plan.next_round, _BOUND
        plan.next_round += 1
        plan.ops[op] = None
        return True

    def gather(
        self,
        signature: Signature,
        buffers: Sequence[tuple[int, int]],
        meta: Sequence[int],
        *,
        keep: object = None,
        name: str | None = None,
    ) -> AgentPullOp:
        """Submits an ALLGATHER, BROADCAST, ALLTOALL or REDUCESCATTER."""
        op = AgentPullOp(self, signature, name or signature.name, keep, len(meta))
        nbytes = sum(buffer[1] for buffer in buffers)
        self._count_staged(buffers[0][0] if buffers else 0, nbytes)
        self._submit(op, lambda engine, tag: engine.pull(buffers, meta, tag), nbytes)
        return op

    def _count_staged(self, address: int, nbytes: int) -> None:
        """What the next seconds may need again; payloads in the arena are not staged."""
        if not self._arena_start <= address < self._arena_end:
            self._staged_bytes += nbytes

    def _submit(self, op: AgentOp, stage: Callable[[Engine, int], int], nbytes: int) -> None:
        """The general path: checks, staging outside the lock, then the core decides."""
        with self._lock:
            self._check_open(op)
            check_submit(op.signature, self._sets, self.rank, op.name)
            op.request = tag = self._core.new_request()
        engine = self.enter()
        try:
            op.handle = self._stage(engine, op, lambda: stage(engine, tag), tag, nbytes)
            with self._lock:
                self._start(op)
                # Only what this call itself found wrong is raised here.  A refusal may come as soon as the lock is free:
                # it belongs to wait(), however fast the agent was.
                failed = op.state is OperationState.GONE and op.failure is not None
        finally:
            self.exit()
        if failed:
            raise self.error(op)

    def _stage(self, engine: Engine, op: AgentOp, stage: Callable[[], int], tag: int, nbytes: int) -> int:
        """The handle.  Without room an empty operation takes its place: it is announced, and refused on all ranks."""
        try:
            return stage()
        except NoRoom:
            op.no_room_bytes = max(nbytes, 1)
            return engine.reduce([], False, tag)

    def _start(self, op: AgentOp) -> None:
        for other in self._core.in_flight(op.signature):
            if isinstance(other, AgentOp) and not other.settled:
                self._engine.fail(op.handle)
                self._engine.wait(op.handle, 0)
                raise DuplicateNameError(
                    f"{op.name}: an operation of this name is in flight already in this process. Wait for it, or give "
                    "this one another name."
                )
        try:
            self._run(self._core.handle(Submit(op)))
        except Exception:
            self._take_back(op)
            raise

    def _take_back(self, op: AgentOp) -> None:
        """It could not be submitted: the name is free again, and nothing is left in the engine."""
        op.over = True
        self._engine.fail(op.handle)
        self._engine.wait(op.handle, 0)
        if op.state is OperationState.WAITING:
            self._run(self._core.handle(Finished(op)))

    def _check_open(self, op: AgentOp) -> None:
        if self._gone:
            raise NotInitializedError(self._gone)
        ended = self._core.ended
        if ended is not None:
            raise self._error_of(ended.kind, about(op.signature, op.name, ended.text))

    def _raise_status(self, op: AgentOp, status: int) -> None:
        """A submit that the engine refused."""
        if status in (CLOSED, FAILED):
            kind, text = self._end_of_epoch(status, 0)
            raise self._error_of(kind, about(op.signature, op.name, text))
        raise EngineError(f"{op.name}: {status_text(status)}.")

    # ---- what operations call

    def enter(self) -> Engine:
        """The engine, which is not closed before ``exit``; raises when this membership is over."""
        with self._lock:
            if self._gone:
                raise NotInitializedError(self._gone)
            self._inside += 1
            return self._engine

    def exit(self) -> None:
        """This thread has left the engine."""
        with self._lock:
            self._inside -= 1

    def show(self, op: AgentOp, shown: int) -> int:
        """Tells the agent what an operation waits for that has waited for a while; ``shown`` is what it knows already."""
        with self._lock:
            awaited = self._core.awaited(op)
            if awaited != shown and not self._gone:
                self._engine.tag(op.handle, awaited)
        return awaited

    def exit_concluding(self, op: AgentOp, status: int) -> None:
        """``exit`` and ``conclude``; for one that went well under one lock, because this runs for every operation."""
        if status != OK:
            self.exit()
            self.conclude(op, status)
            return
        with self._lock:
            self._inside -= 1
            self._book(op)

    def conclude(self, op: AgentOp, status: int) -> None:
        """The engine has freed the operation: books its outcome, once."""
        failure = None if status == OK else self._failure(op, status)
        with self._lock:
            if not op.over:
                op.failure = op.failure or failure
                self._book(op)

    def _book(self, op: AgentOp) -> None:
        if op.over:
            return
        op.over = True
        op.keep = None
        plan = op.plan
        if plan is None or plan.limit is not None or op.state is _PARKED:
            self._run(self._core.handle(Finished(op)))
        else:
            op.state = _GONE
            plan.ops.pop(op, None)

    def error(self, op: AgentOp) -> Exception:
        """A fresh exception for a failed operation; it names the operation."""
        kind, text = op.failure or (ErrorKind.SHUT_DOWN, SHUT_DOWN_TEXT)
        return self._error_of(kind, about(op.signature, op.name, text))

    # ---- questions to the agent

    def _ask(self, make: Callable[[int], worker_pb2.WorkerMessage]) -> int:
        return self._post(make).wait()

    def _post(self, make: Callable[[int], worker_pb2.WorkerMessage]) -> Reply:
        with self._lock:
            ended = self._core.ended
            if self._gone:
                raise NotInitializedError(self._gone)
            if ended is not None:
                raise self._error_of(ended.kind, ended.text)
            request = self._core.new_request()
            reply = self._replies.expect(request)
            self._send(make(request))
        return reply

    def join(self) -> int:
        """This rank has no more data; returns the rank that joined last, when all have."""
        reply = self._post(lambda request: worker_pb2.WorkerMessage(join=worker_pb2.Join(request=request)))
        # Only now: operations of other ranks may need this rank's zeros before they, too, can join.
        for op in self._open_operations():
            op.complete()
        return reply.wait()

    def _open_operations(self) -> list[AgentOp]:
        core = self._core
        with self._lock:
            ops = [op for queue in core.waiting.values() for op in queue]
            for plan in core.plans.values():
                ops += [*plan.ops, *plan.parked]
        return [op for op in ops if isinstance(op, AgentOp)]

    def add_process_set(self, ranks: Sequence[int]) -> ProcessSetInfo:
        """Registers a set on all ranks; blocks until every rank has asked for it."""
        clean = tuple(sorted(ranks))
        set_id = self._ask(
            lambda request: worker_pb2.WorkerMessage(
                add_process_set=worker_pb2.AddProcessSet(request=request, ranks=clean)
            )
        )
        return ProcessSetInfo(set_id, clean)

    def remove_process_set(self, set_id: int) -> None:
        """Removes a set on all ranks; blocks until every rank has asked for it."""
        self._ask(
            lambda request: worker_pb2.WorkerMessage(
                remove_process_set=worker_pb2.RemoveProcessSet(request=request, id=set_id)
            )
        )

    def process_sets(self) -> dict[int, tuple[int, ...]]:
        """Ids and ranks of all registered sets."""
        return dict(self._sets)

    def alloc(self, nbytes: int) -> ArenaBuffer:
        """Memory in the arena."""
        return self._process.alloc(nbytes)

    # ---- the end

    def leave(self, reason: str = "", finished: bool = False) -> None:
        """Ends this membership: what is open fails, the agent is told (also why), the reader ends."""
        with self._lock:
            if self._gone:
                return
            self._finish_complete()
            self._run(self._core.handle(EpochEnded(ErrorKind.SHUT_DOWN, SHUT_DOWN_TEXT, board_fails=False)))
            self._fail_bound()
            self._replies.fail_all(error_of_kind(ErrorKind.SHUT_DOWN, SHUT_DOWN_TEXT))
            self._ended.set()
            self._gone = "Horovod has not been initialized; use hvd.init()."
        self._wait_outside()
        self._engine.close()
        self._process.client = None
        self._say_goodbye(reason.encode(errors="replace").decode(), finished)

    def _finish_complete(self) -> None:
        """What is complete keeps its result, whether anybody has asked for it or not."""
        for op in [op for plan in self._core.plans.values() for op in plan.ops]:
            if isinstance(op, AgentOp):
                op.poll()

    def _fail_bound(self) -> None:
        for plan in self._core.plans.values():
            for op in plan.ops:
                if isinstance(op, AgentOp) and op.failure is None:
                    self._do_fail(FailOp(op, ErrorKind.SHUT_DOWN, SHUT_DOWN_TEXT))

    def _wait_outside(self) -> None:
        """Until no thread is inside the engine; those inside come out within a slice."""
        deadline = time.monotonic() + _LEAVE_S
        while self._inside and time.monotonic() < deadline:
            time.sleep(0.0005)

    def _say_goodbye(self, reason: str, finished: bool) -> None:
        leave = worker_pb2.Leave(generation=self._generation, reason=reason, finished=finished)
        try:
            self._session.send(worker_pb2.WorkerMessage(leave=leave))
        except AgentLostError:
            self._process.drop_session()
            return
        if not self._session.stop_reading(_LEAVE_S):
            self._process.drop_session()

    def disown(self, text: str) -> None:
        """In a forked child: every call from here raises this, and nothing is sent."""
        self._lock = threading.RLock()
        self._gone = text
