"""Every collective on real ranks, started as users start them."""

from __future__ import annotations

import pytest

from tests.multi.cases import COLLECTIVES, Case
from tests.multi.conftest import RunRanks

RUNS = [pytest.param(case, np, id=f"{case.title}-{np}") for case in COLLECTIVES for np in case.sizes]


@pytest.mark.parametrize(("case", "np"), RUNS)
def test_collectives(run_ranks: RunRanks, case: Case, np: int) -> None:
    run = run_ranks(np, case.program, *case.arguments, **case.variables)
    for rank, texts in case.says.items():
        assert [text for text in texts if text not in run.said(rank)] == [], run.output


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_many_cycles(run_ranks: RunRanks) -> None:
    run_ranks(2, "tests.common.rank_programs.many_cycles", timeout_s=350)
