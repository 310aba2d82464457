"""What must work on one host works over several, with results that are right to the last bit on all ranks."""

from __future__ import annotations

import pytest

from tests.hosts.site import Site
from tests.multi.cases import COLLECTIVES
from tests.torch.harness import _split_by_rank, checks_of

slow = pytest.mark.slow
TOPOLOGIES = [(2, 1), (1, 1, 1), pytest.param((1, 1), marks=slow), pytest.param((2, 2), marks=slow)]
everywhere = pytest.mark.parametrize("site", TOPOLOGIES, indirect=True, ids=str)
CHECKS = ["checks_sets", "checks_ops", "checks_state", "checks_optimizer"]


@everywhere
@pytest.mark.timeout(120)
def test_programs(site: Site) -> None:
    cases = [case for case in COLLECTIVES if case.fits(site.np)]
    run = site.run("tests.hosts.programs", "several", *(case.program for case in cases), timeout_s=100)
    said = [(text, rank) for case in cases for rank, texts in case.says.items() for text in texts]
    assert [text for text, rank in said if text not in run.said(rank)] == [], run.output


@everywhere
def test_sums_have_the_same_bits_on_all_ranks(site: Site) -> None:
    run = site.run("tests.hosts.programs", "same_bits")
    words = {rank: [line for line in lines if line.startswith("bits ")] for rank, lines in run.ranks.items()}
    assert len(words[0]) > 10
    assert {rank: lines for rank, lines in words.items() if lines != words[0]} == {}


def run_checks(site: Site, module: str) -> None:
    """All checks of a module of ``tests.torch`` pass on all ranks."""
    run = site.run(
        "tests.torch.harness", f"tests.torch.{module}", timeout_s=150, ok=False, PYTHONWARNINGS="error::UserWarning"
    )
    outputs = _split_by_rank(run.output, site.np)
    names = checks_of(f"tests.torch.{module}")
    passed = [(name, f"PASSED tests.torch.{module}.{name}\n") for name in names]
    missing = [(name, rank) for name, line in passed for rank, said in enumerate(outputs) if line not in said]
    assert not missing, f"{missing}\n{run.output[-6000:]}"


@pytest.mark.timeout(180)
@pytest.mark.parametrize("site", [(2, 1)], indirect=True, ids=str)
def test_torch(site: Site) -> None:
    run_checks(site, "checks_sets")


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("module", CHECKS)
@pytest.mark.parametrize("site", [(1, 1), (1, 1, 1), (2, 1)], indirect=True, ids=str)
def test_torch_everywhere(site: Site, module: str) -> None:
    run_checks(site, module)


def run_fuzz(site: Site, seed: int, programs: int, steps: int) -> None:
    """Random programs give what NumPy gives."""
    arguments = (f"--seed={seed}", f"--programs={programs}", f"--steps={steps}")
    run = site.run("tests.fuzz.worker", *arguments, timeout_s=280, ok=False)
    assert run.output.count("fuzz ok") == site.np, run.output[-6000:]


@everywhere
@pytest.mark.timeout(120)
def test_random_programs(site: Site) -> None:
    run_fuzz(site, 5000 + 100 * len(site.slots) + site.np, programs=1, steps=15)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("site", [(1,) * 9], indirect=True, ids=str)
def test_random_programs_where_small_sums_double(site: Site) -> None:
    run_fuzz(site, 9000, programs=2, steps=25)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", range(4))
@everywhere
def test_many_random_programs(site: Site, seed: int) -> None:
    run_fuzz(site, 200_000 + 10_000 * seed + 1000 * len(site.slots) + site.np, programs=20, steps=30)
