"""A rank: the client core in a shell like that of ``horovod.common``, and threads that run a program.

The client's lock is held from a submit or a message to the end of its commands; other threads of the rank wait
meanwhile, other ranks and the agents do not.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field, replace

from horovod.agent.core import values as v
from horovod.common.core import ClientCore, Operation, OperationState, Signature
from horovod.common.core import events as ce

from tests.model import engine as native
from tests.model.board import Board, ModelError, Payload
from tests.model.recast import to_agent

SHUT_DOWN = int(v.ErrorKind.SHUT_DOWN)
ERA = 1000
SHUT_DOWN_TEXT = "Horovod has been shut down here."
Condition = Callable[[], bool]
Thread = Generator[Condition, None, None]


class RankOp(Operation):
    """An operation with its handle in the engine."""

    __slots__ = ("failure", "native", "over", "use")

    def __init__(self, signature: Signature, use: int) -> None:
        super().__init__(signature, signature.name)
        self.native: native.NativeOp
        self.over = False
        self.failure: tuple[int, str] | None = None
        self.use = use


@dataclass
class Outcome:
    """What became of an operation: ``error`` is None for a result."""

    rank: int
    key: object
    use: int
    content: object
    error: tuple[int, str] | None


@dataclass(eq=False)
class Rank:
    """One process.  ``answers`` of questions by request; ``replies`` to Hello and Leave."""

    number: int
    agent: str
    connection: int
    board_of: Callable[[Rank], Board]
    make_core: Callable[[], ClientCore]
    inbox: deque[v.AgentBody] = field(default_factory=deque)
    outbox: deque[v.WorkerBody] = field(default_factory=deque)
    threads: list[Thread] = field(default_factory=list)
    locked_by: object = None
    core: ClientCore | None = None
    engine: native.Engine | None = None
    welcome: v.Welcome | None = None
    ready: v.AgentBody | None = None
    closed: bool = False
    generation: int = 0
    nonce: str = ""
    alive: bool = True
    answers: dict[int, v.AgentBody | tuple[int, str]] = field(default_factory=dict)
    outcomes: list[Outcome] = field(default_factory=list)
    uses: dict[object, int] = field(default_factory=dict)
    era: int = 0
    unnamed: int = 0
    fast: bool = True
    extended_join: bool = False
    waiting_for: list[RankOp] = field(default_factory=list)

    # ---- commands of the core

    def run(self, commands: Iterable[ce.Command]) -> Generator[object, None, None]:
        """Carries the commands out; outcomes are told at once."""
        for command in commands:
            yield from self._do(command)

    def tell(self, event: ce.Event) -> Generator[object, None, None]:
        """One event and what follows from it."""
        assert self.core is not None
        yield from self.run(self.core.handle(event))

    def _do(self, command: ce.Command) -> Generator[object, None, None]:
        if isinstance(command, ce.Announce):
            signature = to_agent(command.op.signature)
            self.outbox.append(
                v.Announce(command.op.request, signature, command.contested_plan, command.contested_round)
            )
        elif isinstance(command, ce.RetireAck):
            self.outbox.append(v.RetireAck(command.plans))
        elif isinstance(command, ce.Bind):
            yield from self._bind(command)
        elif isinstance(command, ce.Unbind):
            engine = self._engine()
            gone = tuple(op for op in command.ops if isinstance(op, RankOp) and engine.unbind(op.native))
            yield from self.tell(ce.Unbound(command.plan, gone))
        elif isinstance(command, ce.Resubmit):
            for op in command.ops:
                yield from self.tell(ce.Submit(op))
        else:
            self._fail(command)

    def _engine(self) -> native.Engine:
        assert self.engine is not None
        return self.engine

    def _fail(self, command: ce.FailOp) -> None:
        op = command.op
        assert isinstance(op, RankOp)
        op.failure, op.state = op.failure or (command.kind, command.text), OperationState.GONE
        self._engine().fail(op.native)

    def _bind(self, command: ce.Bind) -> Generator[object, None, None]:
        op, plan = command.op, command.plan
        assert isinstance(op, RankOp)
        status, number = yield from self._engine().bind(op.native, plan.offset)
        if status == native.OK:
            yield from self.tell(ce.Bound(op, plan, number))
        elif status == native.MARKED:
            yield from self.tell(ce.Marked(op, plan))
        elif status == native.INVALID and op.native.state is native.State.GONE:
            yield from self.tell(ce.Bound(op, plan, plan.next_round))
        else:
            self._fail(ce.FailOp(op, *self._failure(op, status)))

    def _failure(self, op: RankOp, status: str) -> tuple[int, str]:
        if op.failure is not None:
            return op.failure
        if status in (native.CLOSED, native.FAILED):
            kind = SHUT_DOWN if status == native.CLOSED else int(v.ErrorKind.LOST)
            ended = self.core.ended if self.core else None
            return (ended.kind, ended.text) if ended else (kind, self._engine().board.reason)
        if status == native.CANCELLED:
            return SHUT_DOWN, SHUT_DOWN_TEXT
        raise ModelError(f"rank {self.number}: {op.name} got status {status}")

    # ---- what user threads call; ``yield condition`` is where others may come between

    def free(self) -> bool:
        """Whether the lock can be taken."""
        return self.locked_by is None

    def locked(self, steps: Generator[object, None, None]) -> Thread:
        """Runs steps under the lock."""
        yield self.free
        me = object()
        self.locked_by = me
        for _ in steps:
            yield lambda: True
        if self.locked_by is me:
            self.locked_by = None

    def new_era(self) -> None:
        """Counts uses and unnamed operations anew: after init, and after a join (uneven ranks have uneven counts)."""
        self.era += 1
        self.uses, self.unnamed = {}, self.era * ERA

    def submit(self, signature: Signature) -> Generator[Condition, None, RankOp]:
        """Starts an operation."""
        use = self.uses.get(signature.key, 0)
        self.uses[signature.key] = use + 1
        use += self.era * ERA
        op = RankOp(signature, use)
        if self.core is None or self.core.ended is not None:
            ended = self.core.ended if self.core else None
            self._conclude_failed(op, (ended.kind, ended.text) if ended else (SHUT_DOWN, SHUT_DOWN_TEXT))
            return op
        op.native = self._engine().submit(Payload(self.number, signature.key, use, signature.content()))
        yield from self.locked(self._start(op))
        return op

    def _start(self, op: RankOp) -> Generator[object, None, None]:
        core = self.core
        if core is None:
            self._conclude_failed(op, (SHUT_DOWN, SHUT_DOWN_TEXT))
            return
        if core.in_flight(op.signature):
            raise ModelError(f"rank {self.number}: {op.name} is in flight, the program is wrong")
        plan = core.live.get(op.signature.key)
        fast = self.fast and plan is not None and not plan.parked and plan.limit is None
        if plan is None or not fast or (not op.signature.unnamed and (plan.ops or plan.signature != op.signature)):
            yield from self.tell(ce.Submit(op))
            return
        status, _ = yield from self._engine().bind(op.native, plan.offset)
        if status == native.MARKED:
            yield from self.tell(ce.Marked(op, plan))
        elif status == native.OK:
            op.plan, op.round, op.state = plan, plan.next_round, OperationState.BOUND
            plan.next_round += 1
            plan.ops[op] = None
        else:
            op.failure = self._failure(op, status)

    def wait(self, op: RankOp) -> Thread:
        """Until the operation is over."""
        self.waiting_for.append(op)
        yield from self._wait(op)
        self.waiting_for.remove(op)

    def _wait(self, op: RankOp) -> Thread:
        while not op.over:
            engine = self.engine
            if engine is None or engine.closed:
                self._conclude_failed(op, op.failure or (SHUT_DOWN, SHUT_DOWN_TEXT))
                return
            yield lambda engine=engine: self.free() and (_is_settled(op, engine) or engine.can_move(op.native))  # type: ignore[misc]
            if _is_settled(op, engine):
                continue
            over = yield from self._attempt(engine, op)
            if over and not _is_settled(op, engine):
                status = engine.release(op.native)
                if status in (
                    native.CLOSED,
                    native.FAILED,
                ):  # the client waits for the agent's message: it has the kind
                    yield lambda: self.core is None or self.core.ended is not None
                yield self.free
                yield from self.locked(self._conclude(op, status))

    def _attempt(self, engine: native.Engine, op: RankOp) -> Generator[Condition, None, bool]:
        # The engine's own lock: no other thread of this process is inside it during these steps.
        me = object()
        self.locked_by = me
        steps = engine.attempt(op.native)
        while True:
            try:
                next(steps)
            except StopIteration as stop:
                if self.locked_by is me:
                    self.locked_by = None
                return bool(stop.value)
            yield lambda: True

    def _conclude(self, op: RankOp, status: str) -> Generator[object, None, None]:
        if op.over:
            return
        failure = None if status == native.OK else self._failure(op, status)
        self._over(op, op.failure or failure)
        plan = op.plan
        if self.core is None:
            return
        if plan is None or plan.limit is not None or op.state is OperationState.PARKED:
            yield from self.tell(ce.Finished(op))
        else:
            op.state = OperationState.GONE
            plan.ops.pop(op, None)

    def _conclude_failed(self, op: RankOp, failure: tuple[int, str]) -> None:
        if not op.over:
            self._over(op, failure)

    def _over(self, op: RankOp, failure: tuple[int, str] | None) -> None:
        op.over, op.failure = True, failure
        self.outcomes.append(Outcome(self.number, op.signature.key, op.use, op.signature.content(), failure))

    def ask(self, make: Callable[[int], v.WorkerBody]) -> Generator[Condition, None, object]:
        """A question to the agent and its answer."""
        core = self.core
        if core is None or core.ended is not None:
            return (
                (SHUT_DOWN, SHUT_DOWN_TEXT)
                if core is None or core.ended is None
                else (core.ended.kind, core.ended.text)
            )
        request = core.new_request()
        self.outbox.append(make(request))
        yield lambda: request in self.answers
        return self.answers.pop(request)

    # ---- init and shutdown

    def init(self, sets: tuple[v.ProcessSet, ...]) -> Generator[Condition, None, bool]:
        """True when the rank is in an epoch."""
        self.generation += 1
        self.ready = None
        hello = v.Hello(1, self.nonce, self.number, 100 + self.number, self.generation, 0, sets)
        self.outbox.append(replace(hello, extended_join=self.extended_join))
        yield lambda: self.ready is not None
        return isinstance(self.ready, v.Welcome)

    def leave(self) -> Thread:
        """shutdown."""
        yield self.free
        core, engine = self.core, self.engine
        if core is None or engine is None:
            return
        for op in [op for plan in core.plans.values() for op in plan.ops]:
            if isinstance(op, RankOp) and not op.over and engine.can_move(op.native):
                engine.settle(op.native)
                if op.native.state is native.State.COMPLETE:
                    list(self._conclude(op, engine.release(op.native)))
        list(self.tell(ce.EpochEnded(SHUT_DOWN, SHUT_DOWN_TEXT, board_fails=False)))
        self.core = None
        engine.close()
        for request in [request for request in self.pending_questions if request not in self.answers]:
            self.answers[request] = (SHUT_DOWN, SHUT_DOWN_TEXT)
        self.closed = False
        self.outbox.append(v.Leave(self.generation))
        yield lambda: self.closed
        self.engine = None

    pending_questions: tuple[int, ...] = ()

    # ---- the reader thread

    def deliver(self) -> Generator[object, None, None]:
        """One message of the agent."""
        body = self.inbox.popleft()
        if isinstance(body, (v.Welcome, v.Rejected)):
            self._start_epoch(body)
        elif isinstance(body, v.Closed):
            self.closed = True
        elif self.core is not None:
            yield from self._deliver_inside(body)

    def _start_epoch(self, body: v.Welcome | v.Rejected) -> None:
        self.ready = body
        if isinstance(body, v.Welcome):
            self.welcome, self.core, self.answers = body, self.make_core(), {}
            self.new_era()
            self.engine = native.Engine(self.board_of(self), self.number)

    def _deliver_inside(self, body: v.AgentBody) -> Generator[object, None, None]:
        core = self.core
        assert core is not None
        if isinstance(body, v.PlanReady):
            yield from self.tell(ce.PlanReady(body.plan, body.offset, body.requests))
        elif isinstance(body, v.Refused):
            if body.request in core.requests:
                yield from self.tell(ce.Refused(body.request, int(body.error.kind), body.error.text))
            else:
                self.answers[body.request] = (int(body.error.kind), body.error.text)
        elif isinstance(body, v.Retire):
            yield from self.tell(ce.Retire(body.plan, body.limit))
        elif isinstance(body, v.EpochEnded):
            yield from self.tell(ce.EpochEnded(int(body.error.kind), body.error.text))
            for request in range(1, core.new_request()):
                self.answers.setdefault(request, (int(body.error.kind), body.error.text))
        elif isinstance(body, (v.Joined, v.ProcessSetReady, v.ProcessSetRemoved)):
            self.answers[body.request] = body
        core.check_invariants()


def _is_settled(op: RankOp, engine: native.Engine) -> bool:
    return op.over or engine.closed
