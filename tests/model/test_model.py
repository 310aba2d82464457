"""All three cores in virtual time: whatever the order of steps, ranks meet as the dumb twin says, and nobody hangs."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from typing import Any

import pytest
from horovod.agent.core import values as v
from horovod.common.core import CollectiveKind, Signature
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.model.programs import Job, Script, jobs
from tests.model.rank import Condition, Rank
from tests.model.twin import check, check_silence
from tests.model.world import Plan, World

COMMON: dict[str, Any] = {
    "deadline": None,
    "database": None,
    "derandomize": True,
    "report_multiple_bugs": False,
    "suppress_health_check": list(HealthCheck),
}


@st.composite
def plans(draw: st.DrawFn, random_steps: int, restarts: tuple[int, ...] = (0,)) -> Plan:
    """Who moves when."""
    return Plan(
        size=0,
        agents=draw(st.integers(1, 2)),
        schedule=draw(st.binary(max_size=40)),
        seed=draw(st.integers(0, 1 << 20)),
        random_steps=draw(st.sampled_from((0, random_steps))),
        evictions=draw(st.integers(0, 3)),
        held_up=draw(st.integers(0, 2)),
        fast=draw(st.booleans()),
        restarts=draw(st.sampled_from(restarts)),
        extended_join=draw(st.booleans()),
    )


def run(job: Job, plan: Plan, **cores: Any) -> World:
    """One world from start to end, compared with the twin."""
    settled = replace(plan, size=job.size)
    programs = [lambda world, rank: [Script(job, world, rank).main()] for _ in range(job.size)]
    world = World(settled, programs, **cores)
    world.at_checkpoint = check_silence
    world.run()
    check(world, job)
    return world


@given(jobs(), plans(random_steps=3000))
@settings(max_examples=250, **COMMON)
def test_model(job: Job, plan: Plan) -> None:
    run(job, plan)


@given(jobs(), plans(random_steps=3000, restarts=(1, 2, 4)))
@settings(max_examples=250, **COMMON)
def test_coordinators_that_are_killed_and_started_anew(job: Job, plan: Plan) -> None:
    run(job, plan)


@pytest.mark.slow
@pytest.mark.timeout(3000)
@given(jobs(), plans(random_steps=20_000))
@settings(max_examples=10_000, **COMMON)
def test_model_deep(job: Job, plan: Plan) -> None:
    run(job, plan)


def _cycle(world: World, rank: Rank) -> Generator[Condition, None, None]:
    """Two ranks wait for each other's second name."""
    yield from rank.init(())
    names = ("x", "y") if rank.number == 0 else ("y", "x")
    for name in names:
        signature = Signature(CollectiveKind.ALLREDUCE, f"allreduce.{name}", False, 7, ((1,),))
        op = yield from rank.submit(signature)
        yield from rank.wait(op)
    yield from rank.leave()


@pytest.mark.parametrize("agents", [1, 2])
def test_ranks_that_wait_for_each_other_are_told(agents: int) -> None:
    world = World(Plan(2, agents, deadlock_grace_s=1.0), [lambda world, rank: [_cycle(world, rank)]] * 2)
    world.run()
    failures = [outcome.error for outcome in world.outcomes()]
    assert len(failures) == 2 + 2  # the second submits fail at once
    for failure in failures:
        assert failure is not None
        assert failure[0] == int(v.ErrorKind.STALLED)
        assert "'allreduce.x'" in failure[1]
        assert "'allreduce.y'" in failure[1]
    assert world.now < 5.0
    assert any("wait for each other" in text for text in world.texts)
