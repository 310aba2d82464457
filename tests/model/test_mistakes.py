"""The model can fail: each of these known mistakes is caught within a few hundred worlds, and so would be one like it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, ClassVar

import pytest
from horovod.agent.core import AgentCore
from horovod.agent.core import events as ae
from horovod.agent.core import values as v
from horovod.common.core import ClientCore, CollectiveKind, Operation, Plan
from horovod.common.core import events as ce
from horovod.coordinator.core import Coordinator
from horovod.coordinator.core.commands import Outbox
from horovod.coordinator.core.negotiation import Negotiation
from horovod.coordinator.core.plans import Plans
from horovod.coordinator.core.values import Error
from hypothesis import Phase as Stage
from hypothesis import given, settings

from tests.model.programs import Call, Job, Phase
from tests.model.test_model import COMMON, plans, run
from tests.model.world import Plan as WorldPlan


class EarlyAck(ClientCore):
    """Acknowledges a retirement at once, whatever is on the plan."""

    def _retire(self, event: ce.Retire) -> list[ce.Command]:
        commands = super()._retire(event)
        early = ce.RetireAck((event.plan,))
        return [early, *(c for c in commands if not isinstance(c, ce.RetireAck))]


class LosesParked(ClientCore):
    """Forgets an operation that found its plan on hold."""

    def _park(self, op: Operation, plan: Plan, round_number: int = -1) -> None:
        super()._park(op, plan, round_number)
        plan.parked.remove(op)


class PlacesLeftBehind(ClientCore):
    """Announces parked operations anew while they still have their places in the old plan."""

    def _settle(self, plan: Plan) -> list[ce.Command]:
        for op in plan.parked:
            op.round = -1
        return super()._settle(plan)


class HighLimitsOnly(ClientCore):
    """Takes the first limit for the last word."""

    def _retire(self, event: ce.Retire) -> list[ce.Command]:
        plan = self.plans.get(event.plan)
        return [] if plan is not None and plan.limit is not None else super()._retire(event)


class RejectsTheNext(AgentCore):
    """Takes the end of an epoch that is over for the end of the one that ranks wait for."""

    def _order(self, event: ae.FromCoordinator, now: float) -> list[ae.Command]:
        if isinstance(event.body, v.EndEpoch):
            self.missed_epoch = event.epoch
        return super()._order(event, now)


class ForgetsRefusals(Negotiation):
    """Who announces a refused name late is not told."""

    __slots__ = ()

    def owed(self, key: tuple[int, str], rank: int) -> Error | None:
        return None


class KeepsPlansAfterJoin(Plans):
    """Plans that ran with zeros are used further."""

    __slots__ = ()

    def retire_now(self, out: Outbox, plan_ids: Iterable[int]) -> None:
        return None


class Forgetful(Coordinator):
    """Uses ``part`` in each epoch."""

    part: ClassVar[type]

    def handle(self, event: Any, now: float) -> list[Any]:
        commands = super().handle(event, now)
        if self.epoch is not None:
            old = self.epoch.plans if issubclass(self.part, Plans) else self.epoch.negotiation
            old.__class__ = self.part
        return commands


class ForgetfulRefuser(Forgetful):
    part = ForgetsRefusals


class ForgetfulJoiner(Forgetful):
    part = KeepsPlansAfterJoin


MISTAKES: dict[str, dict[str, Any]] = {
    "acknowledged too early": {"client": EarlyAck},
    "a parked operation is lost": {"client": LosesParked},
    "places left behind": {"client": PlacesLeftBehind},
    "a lower limit is ignored": {"client": HighLimitsOnly},
    "a late end rejects the next init": {"agent": RejectsTheNext},
    "late announcers of a refused name are not told": {"coordinator": ForgetfulRefuser},
    "plans live on after a join": {"coordinator": ForgetfulJoiner},
}


NAMED = tuple(Call(kind, name, 1) for kind in (CollectiveKind.ALLREDUCE, CollectiveKind.BARRIER) for name in "xy")
UNNAMED = (Call(CollectiveKind.ALLREDUCE, None, 1),) * 4
CHANGED = (Call(CollectiveKind.ALLREDUCE, "x", 2), Call(CollectiveKind.ALLREDUCE, "y", 1))
ODD = (Call(CollectiveKind.ALLREDUCE, "y", 1, odd=1),)
BUSY = (
    Phase(NAMED, 1),
    Phase(UNNAMED),
    Phase(NAMED, 2),
    Phase(CHANGED, 3),
    Phase(UNNAMED),
    Phase(ODD),
    Phase(NAMED, 4),
)
JOINS = (Phase(NAMED, action="join"), Phase(NAMED), Phase(UNNAMED, action="join"), Phase(UNNAMED))
AGAIN = (Phase(NAMED[:1], action="again"),) * 3


@pytest.mark.parametrize("cores", MISTAKES.values(), ids=MISTAKES.keys())
def test_mistake_is_caught(cores: dict[str, Any]) -> None:
    job = Job(3, AGAIN if "agent" in cores else BUSY)
    if cores.get("client") is HighLimitsOnly or cores.get("coordinator") is ForgetfulJoiner:
        job = Job(3, JOINS)

    @settings(max_examples=400, phases=[Stage.generate], **COMMON)
    @given(plans(random_steps=3000))
    def search(plan: WorldPlan) -> None:
        run(job, replace(plan, evictions=20), **cores)

    with pytest.raises(AssertionError):
        search()
