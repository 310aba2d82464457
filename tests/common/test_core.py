"""The client core on its own, with Hypothesis: an agent that orders anything it may, and a board that only counts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from horovod.common.core import ClientCore, CollectiveKind, Operation, OperationState, Plan, Signature
from horovod.common.core import events as ev
from hypothesis import given, settings
from hypothesis import strategies as st

NAMED = [Signature(CollectiveKind.ALLREDUCE, f"allreduce.{name}", False, 7, ((n,),)) for name in "ab" for n in (1, 2)]
UNNAMED = [Signature(CollectiveKind.ALLREDUCE, "allreduce.noname", True, 7, ((n,),)) for n in (1, 2)]
MOVES = ["submit", "ready", "refuse", "mark", "retire", "finish"]
STEPS = st.lists(st.tuples(st.sampled_from(MOVES), st.integers(0, 99)))


@dataclass
class BoardPlan:
    """``limit`` None: not marked.  Rounds below ``next_round`` were given out."""

    limit: int | None = None
    next_round: int = 0


@dataclass
class World:
    """Plays engine and agent; remembers everything that must happen exactly once."""

    core: ClientCore = field(default_factory=ClientCore)
    board: dict[int, BoardPlan] = field(default_factory=dict)
    announced: list[Operation] = field(default_factory=list)
    submitted: list[Operation] = field(default_factory=list)
    failed: list[Operation] = field(default_factory=list)
    finished: list[Operation] = field(default_factory=list)
    acknowledged: list[int] = field(default_factory=list)
    retired: dict[int, int] = field(default_factory=dict)
    plans: int = 0

    def tell(self, event: ev.Event) -> None:
        self.run(self.core.handle(event))
        self.core.check_invariants()

    def run(self, commands: Iterable[ev.Command]) -> None:
        for command in commands:
            if isinstance(command, ev.Announce):
                assert command.op not in self.announced, "announced twice"
                self.announced.append(command.op)
            elif isinstance(command, ev.Bind):
                self.bind(command.op, command.plan)
            elif isinstance(command, ev.Unbind):
                self.run(self.core.handle(ev.Unbound(command.plan, command.ops)))
            elif isinstance(command, ev.FailOp):
                self.failed.append(command.op)
            else:
                for plan in command.plans:
                    assert plan not in self.acknowledged, "acknowledged twice"
                    assert plan in self.retired, "acknowledged without being asked"
                    self.acknowledged.append(plan)

    def bind(self, op: Operation, plan: Plan) -> None:
        block = self.board[plan.id]
        if block.limit is not None and block.next_round >= block.limit:
            self.run(self.core.handle(ev.Marked(op, plan)))
            return
        block.next_round += 1
        self.run(self.core.handle(ev.Bound(op, plan, block.next_round - 1)))

    # ---- moves, each chosen by a number

    def submit(self, choice: int) -> None:
        signature = [*NAMED, *UNNAMED][choice % 6]
        if not self.core.in_flight(signature):
            op = Operation(signature, f"{signature.name}.{len(self.submitted)}")
            self.submitted.append(op)
            self.tell(ev.Submit(op))

    def ready(self, choice: int) -> None:
        if self.announced:
            op = self.announced.pop(choice % len(self.announced))
            self.plans += 1
            self.board[self.plans] = BoardPlan()
            self.tell(ev.PlanReady(self.plans, self.plans * 64, (op.request,)))

    def refuse(self, choice: int) -> None:
        if self.announced:
            op = self.announced.pop(choice % len(self.announced))
            self.tell(ev.Refused(op.request, 0, "no"))

    def mark(self, choice: int) -> None:
        free = [plan for plan, block in self.board.items() if block.limit is None]
        if free:
            self.board[free[choice % len(free)]].limit = 0

    def retire(self, choice: int) -> None:
        free = [plan for plan in self.board if plan not in self.retired]
        if free:
            plan = free[choice % len(free)]
            limit = max(0, self.board[plan].next_round + choice % 4 - 2)
            self.board[plan].limit = self.retired[plan] = limit
            self.board[plan].next_round = min(self.board[plan].next_round, limit)
            self.tell(ev.Retire(plan, limit))

    def finish(self, choice: int) -> None:
        bound = [op for op in self.submitted if op.state is OperationState.BOUND]
        below = [op for op in bound if op.plan and op.round < self.retired.get(op.plan.id, 1 << 30)]
        if below:
            self.finished.append(below[choice % len(below)])
            self.tell(ev.Finished(self.finished[-1]))

    def settle(self) -> None:
        """The agent does its duty: everything ends, nothing is left."""
        for _ in range(10_000):
            if self.announced:
                self.ready(0)
            elif any(block.limit is not None and plan not in self.retired for plan, block in self.board.items()):
                plan = next(p for p, b in self.board.items() if b.limit is not None and p not in self.retired)
                self.board[plan].limit = self.retired[plan] = self.board[plan].next_round
                self.tell(ev.Retire(plan, self.retired[plan]))
            elif any(op.state is OperationState.BOUND for op in self.submitted):
                self.finish(0)
            else:
                return
        raise AssertionError("it never settles")


@settings(max_examples=150, deadline=None)
@given(STEPS)
def test_nothing_is_lost_and_nothing_happens_twice(steps: list[tuple[str, int]]) -> None:
    world = World()
    for move, choice in steps:
        getattr(world, move)(choice)
    world.settle()
    ended = world.finished + world.failed
    assert len(ended) == len(set(map(id, ended)))
    assert set(map(id, ended)) == set(map(id, world.submitted))
    for plan in [plan for plan in world.board if plan not in world.retired]:
        world.board[plan].limit = world.retired[plan] = world.board[plan].next_round
        world.tell(ev.Retire(plan, world.retired[plan]))
    core = world.core
    live_below_limit = {plan.id for plan in core.plans.values() if not plan.exhausted}
    assert set(world.retired) - set(world.acknowledged) == live_below_limit
    assert not core.waiting
    assert not core.requests


@settings(max_examples=60, deadline=None)
@given(STEPS)
def test_the_end_reaches_everything_that_is_open(steps: list[tuple[str, int]]) -> None:
    world = World()
    for move, choice in steps:
        getattr(world, move)(choice)
    world.tell(ev.EpochEnded(4, "lost", board_fails=False))
    ended = world.finished + world.failed
    assert set(map(id, ended)) == set(map(id, world.submitted))
    late = Operation(NAMED[0], "late")
    world.tell(ev.Submit(late))
    assert world.failed[-1] is late
