"""A model of one rank's engine and of its session: what the client tests put in place of board and agent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace

from horovod.common.client import AgentClient
from horovod.common.engine import CANCELLED, FAILED, INVALID, MARKED, OK, PENDING, SPENT
from horovod.common.exceptions import AgentLostError
from horovod.common.process import Membership
from horovod.common.types import Buffer, CollectiveKind, Copy, Signature
from horovod.proto import worker_pb2

NO_LIMIT = 1 << 62


@dataclass
class FakeOp:
    status: int = PENDING
    offset: int = -1
    round: int = -1
    freed: bool = False
    opened: bool = False
    placed: bool = False
    spent: bool = False


@dataclass
class FakePlan:
    limit: int = NO_LIMIT
    next_round: int = 0


@dataclass
class FakeEngine:
    """Binds in order; a round is over when the test says so."""

    handle: int = 0
    ops: dict[int, FakeOp] = field(default_factory=dict)
    plans: dict[int, FakePlan] = field(default_factory=dict)
    closed: bool = False
    text: str = ""
    tags: list[int] = field(default_factory=list)

    def plan(self, offset: int) -> FakePlan:
        return self.plans.setdefault(offset, FakePlan())

    def _new(self, tag: int) -> int:
        self.handle = len(self.ops) + 1
        self.ops[self.handle] = FakeOp()
        self.tags.append(tag)
        return self.handle

    def reduce(self, buffers: Sequence[Buffer], blocking: bool, tag: int) -> int:
        return self._new(tag)

    def reduce_bound(self, offset: int, buffer: Buffer, blocking: bool, tag: int) -> int:
        return self.bind(self._new(tag), offset)[0]

    def pull(self, buffers: Sequence[tuple[int, int]], meta: Sequence[int], tag: int) -> int:
        return self._new(tag)

    def bind(self, handle: int, offset: int) -> tuple[int, int]:
        op, plan = self.ops[handle], self.plan(offset)
        assert op.round < 0, "bound twice"
        op.placed = True
        if plan.next_round >= plan.limit:
            return MARKED, plan.next_round
        op.offset, op.round = offset, plan.next_round
        plan.next_round += 1
        return OK, op.round

    def unbind(self, handle: int) -> int:
        op = self.ops[handle]
        if op.opened or not op.placed:
            return INVALID
        op.placed = False
        op.offset = op.round = -1
        return SPENT if op.spent else OK

    def wait(self, handle: int, timeout_ms: int) -> int:
        assert not self.closed, "used after it was closed"
        op = self.ops[handle]
        assert not op.freed, "used after it was freed"
        assert timeout_ms == 0 or op.status != PENDING, "this test would wait for ever"
        op.freed = op.status != PENDING
        return op.status

    def tag(self, handle: int, tag: int) -> None:
        assert not self.closed, "used after it was closed"
        self.tags[handle - 1] = tag

    def poll(self, handle: int) -> int:
        return self.ops[handle].status

    def fail(self, handle: int) -> None:
        self.ops[handle].status = CANCELLED

    def meta(self, handle: int, member: int) -> tuple[tuple[int, ...], int]:
        return (member,), 8 * member

    def pull_copy(self, handle: int, copies: Sequence[Copy]) -> int:
        return OK

    def pull_reduce(self, handle: int, offset: int, out: int, nbytes: int) -> int:
        return OK

    def done(self, handle: int) -> None:
        self.ops[handle].freed = True

    def agent_dead(self) -> None:
        self.text = self.text or "the agent is dead"

    def reason(self) -> str:
        return self.text

    def close(self) -> None:
        self.closed = True

    def complete(self, handle: int, status: int = OK) -> None:
        self.ops[handle].status = status

    def fail_board(self) -> None:
        for op in self.ops.values():
            if op.status == PENDING:
                op.status = FAILED


@dataclass
class FakeSession:
    """Collects what the rank says."""

    sent: list[worker_pb2.WorkerMessage] = field(default_factory=list)
    gone: bool = False

    def send(self, message: worker_pb2.WorkerMessage, descriptors: Sequence[int] = ()) -> None:
        if self.gone:
            raise AgentLostError("The agent of this host is gone: it has closed the connection.")
        self.sent.append(message)

    def stop_reading(self, timeout_s: float) -> bool:
        return not self.gone

    def kinds(self) -> list[str | None]:
        return [message.WhichOneof("body") for message in self.sent]


class Rank:
    """One rank of ``size`` with its fakes; the methods speak as the agent."""

    def __init__(self, rank: int = 0, size: int = 2) -> None:
        self.engine = FakeEngine()
        self.session = FakeSession()
        self.process = SimpleNamespace(
            client=None, arena_range=(0, 0), trim=lambda keep: None, drop_session=lambda: None
        )
        welcome = worker_pb2.Welcome(
            epoch=1, rank=rank, size=size, local_rank=rank, local_size=size, cross_rank=0, cross_size=1,
            homogeneous=True,
            process_sets=[
                worker_pb2.ProcessSet(id=0, ranks=range(size)),
                worker_pb2.ProcessSet(id=1, ranks=[1]),
            ],
        )  # fmt: skip
        membership = Membership(self.session, welcome, 1)  # type: ignore[arg-type]
        self.client = AgentClient(self.process, membership, self.engine)  # type: ignore[arg-type]

    def submit(self, signature: Signature, name: str | None = None):  # type: ignore[no-untyped-def]
        return self.client.reduce(signature, [(0, 0, 4)], blocking=False, name=name)

    def announced(self) -> list[worker_pb2.Announce]:
        return [message.announce for message in self.session.sent if message.HasField("announce")]

    def acknowledged(self) -> list[int]:
        return [plan for message in self.session.sent for plan in message.retire_ack.plans]

    def say(self, **body: object) -> None:
        self.client.deliver(worker_pb2.AgentMessage(**body))  # type: ignore[arg-type]

    def plan_ready(self, plan: int, *requests: int) -> None:
        self.say(plan_ready=worker_pb2.PlanReady(plan=plan, offset=plan * 10, requests=requests))

    def refuse(self, request: int, kind: int = 0, text: str = "Mismatched data types: …") -> None:
        self.say(refused=worker_pb2.Refused(request=request, error=worker_pb2.Error(kind=kind, text=text)))

    def mark(self, plan: int, limit: int = 0) -> None:
        self.engine.plan(plan * 10).limit = limit

    def retire(self, plan: int, limit: int) -> None:
        self.mark(plan, limit)
        self.say(retire=worker_pb2.Retire(plan=plan, limit=limit))

    def end_epoch(self, kind: int, text: str) -> None:
        self.engine.fail_board()
        self.say(epoch_ended=worker_pb2.EpochEnded(epoch=1, error=worker_pb2.Error(kind=kind, text=text)))

    def check(self) -> None:
        self.client._core.check_invariants()


def named(name: str, shape: tuple[int, ...] = (4,), **values: object) -> Signature:
    return Signature(CollectiveKind.ALLREDUCE, f"allreduce.{name}", False, 7, (shape,), **values)  # type: ignore[arg-type]


def unnamed(shape: tuple[int, ...] = (4,), **values: object) -> Signature:
    return Signature(CollectiveKind.ALLREDUCE, "allreduce.noname", True, 7, (shape,), **values)  # type: ignore[arg-type]
