"""DataLoader workers beside ranks (P66): each way to start them leaves the ranks working, and none of them becomes a rank."""

from __future__ import annotations

import pytest

from tests.multi.conftest import Run, RunRanks, run_ranks

__all__ = ["run_ranks"]  # a fixture

pytestmark = pytest.mark.timeout(150)  # each worker imports torch
LOADERS = "tests.torch.loaders"


def run_loaders(run_ranks: RunRanks, program: str, method: str, **variables: str) -> Run:
    """Both ranks get to the end; workers that are ended may have the last word on stderr."""
    run = run_ranks(2, f"{LOADERS}.{program}", method, timeout_s=120, ok=False, **variables)
    assert run.code == 0, run.output
    assert all("done" in run.ranks[rank] for rank in (0, 1)), run.output
    return run


@pytest.mark.parametrize(
    ("method", "text"),
    [
        ("fork", "This process was forked from rank {}"),
        ("forkserver", "inherited the variables of rank {}"),
        ("spawn", "inherited the variables of rank {}"),
    ],
)
def test_workers_that_start_after_init(run_ranks: RunRanks, method: str, text: str) -> None:
    run = run_loaders(run_ranks, "training", method)
    for rank in (0, 1):
        assert text.format(rank) in run.said(rank), run.output


@pytest.mark.parametrize("method", [pytest.param("forkserver", marks=pytest.mark.slow), "spawn"])
def test_workers_that_call_init_by_importing_the_main_module(run_ranks: RunRanks, method: str) -> None:
    run = run_loaders(run_ranks, "imported", method, HVD_TEST_INIT_AT_IMPORT="1")
    for rank in (0, 1):
        assert f"inherited the variables of rank {rank}" in run.said(rank), run.output
        assert 'under if __name__ == "__main__":' in run.said(rank)
