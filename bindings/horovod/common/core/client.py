"""The decisions of one rank in one epoch: which operation runs on which plan, and when a plan is given up.

Owns the tables of plans, waiting operations and requests.  Never touches memory, sockets or clocks; the shell calls
``handle`` under its lock and carries out the commands in order, feeding outcomes back at once.

Theory.  A named operation finds its plan by (process set, name), an unnamed one by its content; ``Signature.key`` is
either.  With a live plan it is bound to the plan's next round, and nothing is said to anybody.  Without one it is
announced; unnamed operations of one key queue behind the first announcement and follow in program order.  A plan is
retired by the agent in two steps: the board is marked (binds are answered Marked, the operation is parked), then Retire
names the limit.  Rounds below the limit run; what lies beyond leaves the plan and is announced anew; when nothing of
this rank is on the plan any more, it is acknowledged, once.  A named operation that differs from its live plan contests
it: the plan is dropped here and now, and the announcement says how many rounds this rank has arrived in.  So does
an operation for which this rank has no memory, be it that this shows only when it is to be bound, or whose input is gone
(``unable``): it is never bound, its announcement is refused on every member, and nobody waits in the round that it would have had.

Fast path.  The shell may bind to ``live[key]`` by itself when the plan has no limit and nothing parked: it then sets
``op.plan``, ``op.round``, ``op.state``, adds to ``plan.ops`` and raises ``plan.next_round``; at the end it takes the
operation out of ``plan.ops``, and reports Finished if the plan has got a limit meanwhile or the operation was parked
(the board lets it go on as soon as the limit rises, the word Retire comes later).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from typing import Any

from horovod.common.core.events import (
    Announce,
    Bind,
    Bound,
    Command,
    EpochEnded,
    Event,
    FailOp,
    Finished,
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
from horovod.common.core.model import Operation, OperationState, Plan
from horovod.common.core.signature import Signature

__all__ = ["ClientCore"]


class ClientCore:
    """State of one rank in one epoch; see the module's text for the rules."""

    def __init__(self) -> None:
        self.live: dict[Hashable, Plan] = {}
        self.plans: dict[int, Plan] = {}
        self.retiring: dict[Plan, None] = {}
        self.waiting: dict[Hashable, deque[Operation]] = {}
        self.requests: dict[int, Operation] = {}
        self.ended: EpochEnded | None = None
        self._last_request = 0
        self._handlers: dict[type, Callable[[Any], list[Command]]] = {
            Submit: self._submit,
            Bound: self._bound,
            Marked: self._marked,
            Unplaced: self._unplaced,
            Unbound: self._unbound,
            Finished: self._finished,
            PlanReady: self._plan_ready,
            Refused: self._refused,
            Retire: self._retire,
            EpochEnded: self._epoch_ended,
        }

    def handle(self, event: Event) -> list[Command]:
        """Takes one event in; the commands must be carried out in order."""
        return self._handlers[type(event)](event)

    def new_request(self) -> int:
        """A number for a question to the agent."""
        self._last_request += 1
        return self._last_request

    def in_flight(self, signature: Signature) -> list[Operation]:
        """The operations of this name that the shell has not reported as finished; none for unnamed signatures."""
        if signature.unnamed:
            return []
        key = signature.key
        ops = list(self.waiting.get(key, ()))
        for plan in [plan for plan in (self.live.get(key), *self.retiring) if plan is not None and plan.key == key]:
            ops += [*plan.ops, *plan.parked]
        return ops

    def awaited(self, op: Operation) -> int:
        """What an operation waits for now: the number of its plan, or of the request that stands for its name."""
        if op.plan is not None:
            return op.plan.id
        queue = self.waiting.get(op.signature.key)
        return queue[0].request if queue else op.request

    # ---- submits and their outcomes

    def _submit(self, event: Submit) -> list[Command]:
        op = event.op
        if self.ended is not None:
            return [self._fail(op, self.ended.kind, self.ended.text)]
        key = op.signature.key
        if key in self.waiting:
            self._wait_for_plan(op)
            return []
        plan = self.live.get(key)
        if plan is None:
            return [self._announce(op)]
        if not op.signature.unnamed and (op.unable or plan.signature != op.signature):
            return self._contest(op, plan)
        if plan.parked:
            self._park(op, plan)
            return []
        return self._contest(op, plan) if op.unable else [Bind(op, plan)]

    def _contest(self, op: Operation, plan: Plan) -> list[Command]:
        plan.dropped = True
        self._forget_exhausted(plan)
        announce = self._announce(op, plan.id, plan.next_round)
        return [announce, *self._acknowledge(plan)]

    def _announce(self, op: Operation, contested_plan: int = 0, contested_round: int = 0) -> Command:
        self._wait_for_plan(op)
        op.request = op.request or self.new_request()
        self.requests[op.request] = op
        return Announce(op, contested_plan, contested_round)

    def _wait_for_plan(self, op: Operation) -> None:
        op.plan, op.round, op.state = None, -1, OperationState.WAITING
        self.waiting.setdefault(op.signature.key, deque()).append(op)

    def _park(self, op: Operation, plan: Plan, round_number: int = -1) -> None:
        """With the round that it has on the board; none for those that wait behind others."""
        op.plan, op.round, op.state = plan, round_number, OperationState.PARKED
        plan.parked.append(op)

    def _bound(self, event: Bound) -> list[Command]:
        op, plan = event.op, event.plan
        op.plan, op.round, op.state = plan, event.round, OperationState.BOUND
        plan.ops[op] = None
        plan.next_round = event.round + 1
        self._forget_exhausted(plan)
        return []

    def _marked(self, event: Marked) -> list[Command]:
        op, plan = event.op, event.plan
        if plan.limit is None:
            self._park(op, plan, plan.next_round + len(plan.parked))
            return []
        # All rounds below the limit are used, by zeros of the agent too while this rank had joined.
        plan.next_round = max(plan.next_round, plan.limit)
        self._forget_exhausted(plan)
        plan.mark_bound([op])
        return [Unbind(plan, (op,))]

    def _unplaced(self, event: Unplaced) -> list[Command]:
        """Nobody may wait in the round that it would have had; what was to be bound after it follows when that is settled."""
        op, plan = event.op, event.plan
        return self._submit(Submit(op)) if plan.dropped else self._contest(op, plan)

    def _finished(self, event: Finished) -> list[Command]:
        op, plan = event.op, event.op.plan
        if op.state is OperationState.PARKED and plan is not None:
            self._went_on(op, plan)
        if op.state is OperationState.WAITING:
            return self._stopped_waiting(op)
        op.state = OperationState.GONE
        if plan is None:
            return []
        plan.ops.pop(op, None)
        return self._acknowledge(plan)

    def _stopped_waiting(self, op: Operation) -> list[Command]:
        """The board has failed the operation before word of its end was here, or the agent has refused it."""
        op.state = OperationState.GONE
        queue = self.waiting.pop(op.signature.key)
        queue.remove(op)
        if self.requests.pop(op.request, None) is None:
            self.waiting[op.signature.key] = queue
            return []
        return self._announce_anew(queue)

    def _went_on(self, op: Operation, plan: Plan) -> None:
        """The board's limit rose before Retire came: this operation, and those parked before it, had their rounds."""
        if op not in plan.parked:
            return
        count = plan.parked.index(op) + 1
        plan.mark_bound(plan.parked[:count])
        del plan.parked[:count]
        plan.next_round += count

    # ---- words from the agent

    def _plan_ready(self, event: PlanReady) -> list[Command]:
        ops = [op for op in (self.requests.pop(request, None) for request in event.requests) if op is not None]
        if not ops or self.ended is not None:
            return []
        plan = Plan(event.plan, event.offset, ops[0].signature)
        self.plans[plan.id] = plan
        self.live[plan.key] = plan
        able, again = _up_to_unable(list(self.waiting.pop(plan.key)))
        return [*(Bind(op, plan) for op in able), *_resubmit(again)]

    def _refused(self, event: Refused) -> list[Command]:
        op = self.requests.get(event.request)
        if op is None:
            return []
        anew = self._stopped_waiting(op)
        return [self._fail(op, event.kind, event.text), *anew]

    def _retire(self, event: Retire) -> list[Command]:
        plan = self.plans.get(event.plan)
        if plan is None:
            return [RetireAck((event.plan,))]
        if plan.limit is not None and plan.limit <= event.limit:
            return []
        plan.limit = event.limit
        beyond = tuple(op for op in plan.ops if op.round >= event.limit)
        return [Unbind(plan, beyond)] if beyond else self._settle(plan)

    def _unbound(self, event: Unbound) -> list[Command]:
        plan = event.plan
        for op in event.ops:
            plan.ops.pop(op, None)
        self._forget_exhausted(plan)
        return self._announce_anew(event.ops) + self._settle(plan)

    def _settle(self, plan: Plan) -> list[Command]:
        """Parked operations go on below the limit, and leave from there on."""
        limit = plan.limit or 0
        self._forget_exhausted(plan)
        plan.parked, again = _up_to_unable(plan.parked)
        room = 0 if plan.dropped else max(0, limit - plan.next_round)
        commands: list[Command] = [Bind(op, plan) for op in plan.parked[:room]]
        beyond = plan.parked[room:]
        placed = tuple(op for op in beyond if op.round >= 0)
        if placed:
            # The plan is not let go before they are off the board; those behind them follow then.
            plan.mark_bound(placed)
            plan.parked = [*beyond[len(placed) :], *again]
            return [*commands, Unbind(plan, placed)]
        plan.parked = []
        if commands:  # one that is not bound after all is announced before those behind it
            return [*commands, *_resubmit([*beyond, *again])]
        return [*self._announce_anew(beyond), *_resubmit(again), *self._acknowledge(plan)]

    def _announce_anew(self, ops: Iterable[Operation]) -> list[Command]:
        """One announcement for each key; the others queue behind it."""
        commands: list[Command] = []
        for op in ops:
            if op.signature.key in self.waiting:
                self._wait_for_plan(op)
            else:
                commands.append(self._announce(op))
        return commands

    def _epoch_ended(self, event: EpochEnded) -> list[Command]:
        if self.ended is not None:
            return []
        self.ended = event
        ops = [op for queue in self.waiting.values() for op in queue]
        for plan in self.plans.values():
            if event.board_fails:
                plan.mark_bound(plan.parked)  # some may have gone on and be complete; the board fails the others
            else:
                ops += [*plan.parked, *plan.ops]
            plan.parked = []
        self.waiting.clear()
        self.requests.clear()
        self.retiring.update(dict.fromkeys(self.live.values()))
        self.live.clear()
        return [self._fail(op, event.kind, event.text) for op in ops]

    # ---- helpers

    def _fail(self, op: Operation, kind: int, text: str) -> Command:
        op.state = OperationState.GONE
        return FailOp(op, kind, text)

    def _forget_exhausted(self, plan: Plan) -> None:
        if plan.exhausted and self.live.get(plan.key) is plan:
            del self.live[plan.key]
            self.retiring[plan] = None

    def _acknowledge(self, plan: Plan) -> list[Command]:
        if plan.limit is None or plan.ops or plan.parked or not plan.exhausted or plan.id not in self.plans:
            return []
        del self.plans[plan.id]
        self.retiring.pop(plan, None)
        return [RetireAck((plan.id,))]

    def check_invariants(self) -> None:
        """What must hold between two events."""
        for key, plan in self.live.items():
            assert self.plans.get(plan.id) is plan, f"live plan {plan.id} is not registered"
            assert plan.key == key, f"plan {plan.id} is filed under another key"
            assert not plan.exhausted, f"exhausted plan {plan.id} is live"
            assert key not in self.waiting, f"operations wait for {key!r}, which has a live plan"
        for key, queue in self.waiting.items():
            assert queue, f"empty queue for {key!r}"
            assert self.requests.get(queue[0].request) is queue[0], f"nobody announced {key!r}"
            assert all(op.state is OperationState.WAITING and op.plan is None for op in queue)
        for plan in self.plans.values():
            assert (self.live.get(plan.key) is plan) != (plan in self.retiring), f"plan {plan.id} is lost"
            bound = (OperationState.BOUND,) if self.ended is None else (OperationState.BOUND, OperationState.GONE)
            assert all(op.state in bound and op.plan is plan for op in plan.ops)
            assert all(op.state is OperationState.PARKED and op.plan is plan for op in plan.parked)
            assert not (plan.parked and plan.limit is not None), (
                f"plan {plan.id} has settled, yet operations are parked"
            )


def _up_to_unable(ops: list[Operation]) -> tuple[list[Operation], list[Operation]]:
    """Those before the first operation for which there is no memory, and the others: their rounds depend on it."""
    count = next((index for index, op in enumerate(ops) if op.unable), len(ops))
    return ops[:count], ops[count:]


def _resubmit(ops: list[Operation]) -> list[Command]:
    return [Resubmit(tuple(ops))] if ops else []
