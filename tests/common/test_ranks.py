"""Client and engine together in real processes, with a small agent that never fails anything."""

from __future__ import annotations

import pytest

from tests.common.small_agent import run_ranks


@pytest.mark.parametrize("size", [1, 2, 3])
def test_collectives(size: int) -> None:
    run_ranks(size, "collectives")


def test_unnamed_operations_cost_one_announcement() -> None:
    agent, _ = run_ranks(2, "unnamed")
    assert agent.counts["announce"] == 2


def test_steady_state_sends_nothing() -> None:
    agent, _ = run_ranks(2, "any_order")
    assert agent.counts["announce"] == 2 * 24


@pytest.mark.parametrize(
    "program",
    [
        "contests",
        "duplicates",
        "skewed_shutdown",
        "shutdown_beside_a_waiting_thread",
        "fork",
        "names",
        "trims",
        "interrupt",
    ],
)
def test_program(program: str) -> None:
    run_ranks(2, program)


def test_cycles_leave_nothing_behind() -> None:
    agent, _ = run_ranks(2, "cycles")
    assert agent.counts["hello"] == agent.counts["leave"]
