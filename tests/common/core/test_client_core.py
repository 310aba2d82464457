"""The client core where the board is ahead of the agent's words, or behind them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from horovod.common.core import ClientCore, CollectiveKind, Operation, OperationState, Plan, Signature
from horovod.common.core import events as ev

PLAN = 7


def unnamed(number: int) -> Operation:
    """The n-th use of one unnamed signature."""
    name = f"allreduce.noname.{number}"
    return Operation(Signature(CollectiveKind.ALLREDUCE, name, True, 7, ((4,),)), name)


def named(size: int = 4) -> Operation:
    """A use of ``x``."""
    return Operation(Signature(CollectiveKind.ALLREDUCE, "allreduce.x", False, 7, ((size,),)), "allreduce.x")


@dataclass
class Shell:
    """A board that binds below ``limit`` and a journal of what was said."""

    core: ClientCore = field(default_factory=ClientCore)
    limit: int = 1 << 30
    rounds: int = 0
    opened: set[Operation] = field(default_factory=set)
    too_large: set[Operation] = field(
        default_factory=set
    )  # there is no memory for them, which shows when they are bound
    said: list[str] = field(default_factory=list)
    failed: list[Operation] = field(default_factory=list)

    def tell(self, event: ev.Event) -> None:
        """An event and all that follows."""
        for command in self.core.handle(event):
            self.carry_out(command)

    def carry_out(self, command: ev.Command) -> None:
        """One command."""
        if isinstance(command, ev.Announce):
            contest = f" contests {command.contested_plan}/{command.contested_round}" if command.contested_plan else ""
            self.said.append(f"announce {command.op.name}{contest}")
        elif isinstance(command, ev.RetireAck):
            self.said.append(f"ack {command.plans[0]}")
        elif isinstance(command, ev.Bind):
            self._bind(command)
        elif isinstance(command, ev.Unbind):
            gone = tuple(op for op in command.ops if op not in self.opened)
            self.said.append(f"off {len(gone)}")
            self.tell(ev.Unbound(command.plan, gone))
        elif isinstance(command, ev.Resubmit):
            for op in command.ops:
                self.submit(op)
        else:
            self.failed.append(command.op)

    def _bind(self, command: ev.Bind) -> None:
        if command.plan.dropped or command.op in self.too_large:
            self.tell(ev.Unplaced(command.op, command.plan))
            return
        number = (
            command.op.round if command.op.state is OperationState.PARKED and command.op.round >= 0 else self.rounds
        )
        self.rounds = max(self.rounds, number + 1)
        if number < self.limit:
            self.tell(ev.Bound(command.op, command.plan, number))
        else:
            self.tell(ev.Marked(command.op, command.plan))

    def submit(self, op: Operation) -> Operation:
        """A user's call."""
        self.tell(ev.Submit(op))
        return op

    def ready(self, *requests: int, plan: int = PLAN) -> Plan:
        """The agent has a plan."""
        self.rounds = 0
        self.tell(ev.PlanReady(plan, 64, requests))
        return self.core.plans[plan]


def no_room(op: Operation) -> Operation:
    """This rank has no memory for it."""
    op.no_room_bytes = 16
    return op


@pytest.fixture
def shell() -> Iterator[Shell]:
    shell = Shell()
    yield shell
    shell.core.check_invariants()


def test_a_parked_operation_that_went_on_by_itself_counts_as_a_round(shell: Shell) -> None:
    shell.submit(unnamed(0))
    plan = shell.ready(1)
    shell.limit = 1
    parked, behind = shell.submit(unnamed(1)), shell.submit(unnamed(2))
    assert [parked.state, behind.state] == [OperationState.PARKED] * 2
    shell.limit = 2
    shell.tell(ev.Finished(parked))
    assert (plan.next_round, plan.parked) == (2, [behind])
    shell.tell(ev.Retire(PLAN, 2))
    assert shell.said[-1] == "announce allreduce.noname.2"


def test_parked_operations_leave_the_board_before_the_plan_is_acknowledged(shell: Shell) -> None:
    first = shell.submit(unnamed(0))
    shell.ready(1)
    shell.limit = 1
    for number in (1, 2):
        shell.submit(unnamed(number))
    shell.tell(ev.Finished(first))
    shell.tell(ev.Retire(PLAN, 1))
    assert shell.said[1:] == ["off 1", "announce allreduce.noname.1", "ack 7"]


def test_a_limit_may_fall_as_long_as_something_is_on_the_plan(shell: Shell) -> None:
    op = shell.submit(named())
    shell.ready(1)
    shell.tell(ev.Retire(PLAN, 1))
    assert shell.said == ["announce allreduce.x"]
    shell.limit = 0
    shell.tell(ev.Retire(PLAN, 0))
    assert shell.said[1:] == ["off 1", "announce allreduce.x", "ack 7"]
    assert op.state is OperationState.WAITING


def test_a_higher_limit_is_no_news(shell: Shell) -> None:
    shell.submit(named())
    plan = shell.ready(1)
    shell.tell(ev.Retire(PLAN, 1))
    shell.tell(ev.Retire(PLAN, 5))
    assert plan.limit == 1


def test_a_round_that_has_opened_holds_up_the_acknowledgement(shell: Shell) -> None:
    op = shell.submit(named())
    shell.ready(1)
    shell.opened.add(op)
    shell.tell(ev.Retire(PLAN, 0))
    assert shell.said[1:] == ["off 0"]
    shell.tell(ev.Finished(op))
    assert shell.said[-1] == "ack 7"


def test_zeros_of_a_join_use_up_rounds_that_this_rank_never_submitted(shell: Shell) -> None:
    op = shell.submit(named())
    plan = shell.ready(1)
    shell.tell(ev.Finished(op))
    shell.tell(ev.Retire(PLAN, 3))
    assert shell.core.live == {plan.key: plan}
    shell.rounds = shell.limit = 3
    shell.submit(named())
    assert shell.said[1:] == ["off 1", "announce allreduce.x", "ack 7"]


def test_a_waiting_operation_that_the_board_failed_is_forgotten(shell: Shell) -> None:
    first = shell.submit(unnamed(0))
    second = shell.submit(unnamed(1))
    shell.tell(ev.Finished(second))
    shell.tell(ev.Finished(first))
    assert not shell.core.waiting
    assert not shell.core.requests
    shell.tell(ev.EpochEnded(4, "lost"))
    assert shell.failed == []


def test_the_next_in_line_announces_when_the_first_is_gone(shell: Shell) -> None:
    first = shell.submit(unnamed(0))
    shell.submit(unnamed(1))
    shell.tell(ev.Finished(first))
    assert shell.said == ["announce allreduce.noname.0", "announce allreduce.noname.1"]


def test_parked_operations_are_the_boards_when_the_epoch_ends(shell: Shell) -> None:
    shell.submit(unnamed(0))
    shell.ready(1)
    shell.limit = 1
    parked = shell.submit(unnamed(1))
    shell.tell(ev.EpochEnded(3, "shut down"))
    assert shell.failed == []
    shell.tell(ev.Finished(parked))
    assert parked.state is OperationState.GONE


def test_leaving_fails_parked_and_bound_operations(shell: Shell) -> None:
    bound = shell.submit(unnamed(0))
    shell.ready(1)
    shell.limit = 1
    parked = shell.submit(unnamed(1))
    shell.tell(ev.EpochEnded(3, "shut down", board_fails=False))
    assert shell.failed == [parked, bound]


def test_a_contest_says_how_many_rounds_were_used(shell: Shell) -> None:
    op = shell.submit(named())
    shell.ready(1)
    shell.tell(ev.Finished(op))
    shell.submit(named(3))
    assert shell.said[-1] == "announce allreduce.x contests 7/1"
    shell.tell(ev.Retire(PLAN, 1))
    assert shell.said[-1] == "ack 7"


def test_without_room_the_plan_of_that_very_signature_is_contested(shell: Shell) -> None:
    op = shell.submit(named())
    shell.ready(1)
    shell.tell(ev.Finished(op))
    refused = shell.submit(no_room(named()))
    assert shell.said[-1] == "announce allreduce.x contests 7/1"
    shell.tell(ev.Refused(refused.request, 6, "no room"))
    assert (shell.failed, shell.core.waiting) == ([refused], {})
    shell.submit(named())
    assert shell.said[-1] == "announce allreduce.x"


def test_without_room_an_unnamed_operation_takes_no_round(shell: Shell) -> None:
    shell.submit(unnamed(0))
    shell.ready(1)
    refused, following = shell.submit(no_room(unnamed(1))), shell.submit(unnamed(2))
    assert shell.said[1:] == ["announce allreduce.noname.1 contests 7/1"]
    shell.tell(ev.Refused(refused.request, 6, "no room"))
    assert shell.said[2:] == ["announce allreduce.noname.2"]
    assert following.state is OperationState.WAITING


def test_without_room_behind_an_announcement(shell: Shell) -> None:
    first, refused, last = shell.submit(unnamed(0)), shell.submit(no_room(unnamed(1))), shell.submit(unnamed(2))
    shell.ready(1)
    assert first.state is OperationState.BOUND
    assert shell.said[1:] == ["announce allreduce.noname.1 contests 7/1"]
    shell.tell(ev.Retire(PLAN, 1))
    shell.tell(ev.Finished(first))
    shell.tell(ev.Refused(refused.request, 6, "no room"))
    assert shell.said[2:] == ["ack 7", "announce allreduce.noname.2"]
    assert shell.failed == [refused]
    assert last.state is OperationState.WAITING


def test_without_room_behind_parked_operations_below_the_limit(shell: Shell) -> None:
    shell.submit(unnamed(0))
    shell.ready(1)
    shell.limit = 1
    parked = shell.submit(unnamed(1))
    refused, last = shell.submit(no_room(unnamed(2))), shell.submit(unnamed(3))
    assert [op.state for op in (parked, refused, last)] == [OperationState.PARKED] * 3
    shell.limit = 4
    shell.tell(ev.Retire(PLAN, 4))
    assert parked.state is OperationState.BOUND
    assert shell.said[1:] == ["announce allreduce.noname.2 contests 7/2"]
    assert [op.state for op in (refused, last)] == [OperationState.WAITING] * 2


def test_without_room_behind_parked_operations_beyond_the_limit(shell: Shell) -> None:
    first = shell.submit(unnamed(0))
    shell.ready(1)
    shell.limit = 1
    parked, refused = shell.submit(unnamed(1)), shell.submit(no_room(unnamed(2)))
    shell.tell(ev.Finished(first))
    shell.tell(ev.Retire(PLAN, 1))
    assert shell.said[1:] == ["off 1", "announce allreduce.noname.1", "ack 7"]
    assert [op.state for op in (parked, refused)] == [OperationState.WAITING] * 2
    shell.limit = 1 << 30
    shell.ready(parked.request, plan=8)
    assert shell.said[4:] == ["announce allreduce.noname.2 contests 8/1"]


def test_an_operation_that_can_not_be_bound_contests_its_plan_and_those_behind_it_wait(shell: Shell) -> None:
    ops = [shell.submit(unnamed(number)) for number in range(4)]
    shell.too_large.add(ops[1])
    plan = shell.ready(1)
    assert shell.said == ["announce allreduce.noname.0", "announce allreduce.noname.1 contests 7/1"]
    assert (list(plan.ops), list(shell.core.waiting[ops[1].signature.key])) == (ops[:1], ops[1:])
    shell.tell(ev.Refused(ops[1].request, 6, "no room"))
    assert (shell.failed, shell.said[2:]) == ([ops[1]], ["announce allreduce.noname.2"])


def test_a_name_that_can_not_be_bound_contests_its_plan(shell: Shell) -> None:
    first = shell.submit(named())
    shell.ready(1)
    shell.tell(ev.Finished(first))
    again = named()
    shell.too_large.add(again)
    shell.submit(again)
    assert shell.said[1:] == ["announce allreduce.x contests 7/1"]


def test_one_that_can_not_be_bound_below_a_limit_is_announced_before_those_behind_it(shell: Shell) -> None:
    shell.submit(unnamed(0))
    shell.ready(1)
    shell.limit = 1
    parked, tight, behind = (shell.submit(unnamed(number)) for number in (1, 2, 3))
    shell.tell(ev.Finished(parked))
    shell.too_large.add(tight)
    shell.limit = 3
    shell.tell(ev.Retire(PLAN, 3))
    assert shell.said[1:] == ["announce allreduce.noname.2 contests 7/2"]
    assert list(shell.core.waiting[tight.signature.key]) == [tight, behind]
