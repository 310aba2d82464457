"""What the client core is told, and what it answers.

Events are frozen; each command names the operation or plan that it is about, and the outcome of Bind and Unbind comes
back as an event before anything else is handled.
"""

from __future__ import annotations

from dataclasses import dataclass

from horovod.common.core.model import Operation, Plan

__all__ = [
    "Announce",
    "Bind",
    "Bound",
    "Command",
    "EpochEnded",
    "Event",
    "FailOp",
    "Finished",
    "Marked",
    "PlanReady",
    "Refused",
    "Resubmit",
    "Retire",
    "RetireAck",
    "Submit",
    "Unbind",
    "Unbound",
    "Unplaced",
]


@dataclass(frozen=True, slots=True)
class Submit:
    """A new operation.  The shell has made sure that no operation of this name is in flight."""

    op: Operation


@dataclass(frozen=True, slots=True)
class Bound:
    """The engine bound the operation to this round of the plan."""

    op: Operation
    plan: Plan
    round: int


@dataclass(frozen=True, slots=True)
class Marked:
    """The plan is on hold, or its limit is reached: the engine parked the operation."""

    op: Operation
    plan: Plan


@dataclass(frozen=True, slots=True)
class Unplaced:
    """The operation has no round of the plan: there is no memory for it after all, or its turn did not come."""

    op: Operation
    plan: Plan


@dataclass(frozen=True, slots=True)
class Unbound:
    """Outcome of Unbind: these operations are off the plan; the others' rounds have opened and will end there."""

    plan: Plan
    ops: tuple[Operation, ...]


@dataclass(frozen=True, slots=True)
class Finished:
    """The operation is over in the engine, well or badly."""

    op: Operation


@dataclass(frozen=True, slots=True)
class PlanReady:
    """The agent: these requests have a plan."""

    plan: int
    offset: int
    requests: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Refused:
    """The agent: this request can't be carried out."""

    request: int
    kind: int
    text: str


@dataclass(frozen=True, slots=True)
class Retire:
    """The agent: rounds below ``limit`` still run, all else leaves the plan."""

    plan: int
    limit: int


@dataclass(frozen=True, slots=True)
class EpochEnded:
    """No round will start any more.  Without ``board_fails`` bound operations must be ended here as well."""

    kind: int
    text: str
    board_fails: bool = True


Event = Submit | Bound | Marked | Unplaced | Unbound | Finished | PlanReady | Refused | Retire | EpochEnded


@dataclass(frozen=True, slots=True)
class Announce:
    """Tell the agent about an operation that has no plan."""

    op: Operation
    contested_plan: int = 0
    contested_round: int = 0


@dataclass(frozen=True, slots=True)
class Bind:
    """Bind to the plan's next round; answer with Bound, Marked or Unplaced (also if the plan is dropped already)."""

    op: Operation
    plan: Plan


@dataclass(frozen=True, slots=True)
class Unbind:
    """Take these off the plan where their round has not opened; answer with Unbound."""

    plan: Plan
    ops: tuple[Operation, ...]


@dataclass(frozen=True, slots=True)
class FailOp:
    """The operation ends with this error; the engine must let its waiters go."""

    op: Operation
    kind: int
    text: str


@dataclass(frozen=True, slots=True)
class RetireAck:
    """Tell the agent that nothing of this rank refers to the plans."""

    plans: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Resubmit:
    """Submit these again, in this order, now that the commands before are carried out."""

    ops: tuple[Operation, ...]


Command = Announce | Bind | Unbind | FailOp | RetireAck | Resubmit
