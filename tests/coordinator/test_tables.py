"""The tables of the state machines: complete, reachable, and what the docs show."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

import pytest
from horovod.coordinator.core.job import RankCause, RankPhase, RankRecord
from horovod.coordinator.core.plans import Plan, PlanCause, PlanState
from horovod.coordinator.core.values import Kind, RankPlace, Signature

from tests.coordinator.diagrams import PAGE, TABLES, diagram, page


@pytest.mark.parametrize(("title", "where", "table"), TABLES, ids=lambda value: value if isinstance(value, str) else "")
def test_every_state_is_in_the_table_and_reachable(
    title: str, where: str, table: Mapping[Enum, Mapping[Enum, Enum]]
) -> None:
    first = next(iter(table))
    assert set(table) == set(type(first))
    reached, todo = {first}, [first]
    while todo:
        found = set(table[todo.pop()].values()) - reached
        reached |= found
        todo += found
    assert reached == set(table)


def test_docs_show_the_tables() -> None:
    assert PAGE.read_text() == page(), "run: python -m tests.coordinator.diagrams"


def test_a_diagram_names_states_and_causes() -> None:
    text = diagram({PlanState.LIVE: {PlanCause.HOLD: PlanState.GONE}, PlanState.GONE: {}})
    assert "live --> gone: contest, eviction, join or removed set, Hold" in text


def test_a_plan_refuses_a_step_that_is_not_in_the_table() -> None:
    plan = Plan(1, Signature(Kind.BARRIER, "b"), (0,), ("a",), 0.0)
    with pytest.raises(KeyError):
        plan.move(PlanCause.RETIRED)


def test_a_rank_stays_where_it_is_without_a_step() -> None:
    record = RankRecord(RankPlace(0, "a", "alpha", 0, 1, 0, 1))
    assert not record.move(RankCause.LEFT)
    assert record.phase is RankPhase.STARTING
