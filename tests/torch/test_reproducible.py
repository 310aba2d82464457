"""The same job again: other helpers, instruction sets, delays and orders of submission, and the same bits (P31, F17)."""

from __future__ import annotations

import re

import pytest

from tests.torch.conftest import TOPOLOGIES, _text
from tests.torch.harness import Slots, run_modules

NUMERICS = "tests.torch.checks_numerics"
RUNS = (
    {"HVD_HELPERS": "0", "CHECK_SEED": "1"},
    {"HVD_HELPERS": "3", "CHECK_SEED": "2", "HVD_SIMD": "baseline"},
    {"HVD_HELPERS": "1", "CHECK_SEED": "3", "HVD_SIMD": "avx2"},
)


@pytest.mark.slow  # three jobs for each topology
@pytest.mark.timeout(330)
@pytest.mark.parametrize("topology", TOPOLOGIES, indirect=True, ids=_text)
def test_runs_have_the_same_bits(topology: Slots) -> None:
    """Every rank of every run compares with the twin; what a whole training gives is compared from run to run."""
    found: set[str] = set()
    for variables in RUNS:
        for output in run_modules(
            topology, ["tests.torch.harness", NUMERICS], {**variables, "HOROVOD_DETERMINISTIC": "1"}
        ):
            assert "FAILED" not in output, output
            found |= set(re.findall(r"DIGEST (\w+)", output))
    assert len(found) == 1
