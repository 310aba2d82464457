"""All three cores in virtual time: whatever the order of steps, ranks meet as the dumb twin says, and nobody hangs."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.model.programs import Job, Script, jobs
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
def plans(draw: st.DrawFn, random_steps: int) -> Plan:
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
    )


def run(job: Job, plan: Plan, **cores: Any) -> World:
    """One world from start to end, compared with the twin."""
    settled = Plan(
        job.size, plan.agents, plan.schedule, plan.seed, plan.random_steps, plan.evictions, plan.held_up, plan.fast
    )
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


@pytest.mark.slow
@pytest.mark.timeout(3000)
@given(jobs(), plans(random_steps=20_000))
@settings(max_examples=10_000, **COMMON)
def test_model_deep(job: Job, plan: Plan) -> None:
    run(job, plan)
