"""Every collective on real ranks, started as users start them."""

from __future__ import annotations

import pytest

from tests.multi.conftest import RunRanks


@pytest.mark.parametrize("np", [1, 2, 4])
def test_collectives(run_ranks: RunRanks, np: int) -> None:
    run_ranks(np, "tests.common.rank_programs.collectives")


@pytest.mark.parametrize("np", [1, 2, 3])
def test_pull_kinds(run_ranks: RunRanks, np: int) -> None:
    run_ranks(np, "pull_kinds")


@pytest.mark.parametrize(
    "program", ["unnamed", "any_order", "contests", "duplicates", "skewed_shutdown", "fork", "cycles"]
)
def test_client_programs(run_ranks: RunRanks, program: str) -> None:
    run_ranks(2, f"tests.common.rank_programs.{program}")


@pytest.mark.parametrize("np", [1, 2, 3])
def test_join_with_uneven_batches(run_ranks: RunRanks, np: int) -> None:
    run_ranks(np, "joins")


@pytest.mark.parametrize("np", [2, 3])
def test_join_before_results_are_asked_for(run_ranks: RunRanks, np: int) -> None:
    run_ranks(np, "join_with_open_operations")


@pytest.mark.parametrize("np", [2, 3])
def test_join_completes_what_only_this_rank_submitted(run_ranks: RunRanks, np: int) -> None:
    run_ranks(np, "join_each_with_an_operation_of_its_own")


def test_other_collectives_are_refused_while_somebody_has_joined(run_ranks: RunRanks) -> None:
    run_ranks(2, "other_kinds_while_joined")


def test_uneven_batches_without_join(run_ranks: RunRanks) -> None:
    run = run_ranks(2, "without_join")
    assert "heard: " in run.said(1)
    assert "rank 0" in run.said(1)


def test_static_process_sets(run_ranks: RunRanks) -> None:
    run_ranks(4, "static_sets")


def test_dynamic_process_sets(run_ranks: RunRanks) -> None:
    run_ranks(3, "dynamic_sets")


def test_ranks_with_different_sets_are_told(run_ranks: RunRanks) -> None:
    run = run_ranks(2, "different_sets")
    assert "error: " in run.said(0)


def test_one_rank_comes_back_early(run_ranks: RunRanks) -> None:
    run_ranks(2, "late_second_init")


def test_memory_is_flat_over_many_names(run_ranks: RunRanks) -> None:
    run_ranks(2, "many_names", "1500", HOROVOD_CACHE_CAPACITY="100")


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_many_cycles(run_ranks: RunRanks) -> None:
    run_ranks(2, "tests.common.rank_programs.many_cycles", timeout_s=350)
