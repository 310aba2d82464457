"""Random programs on 2, 3 and 4 real ranks.  A failing seed is replayed with ``python -m tests.fuzz.worker --seed S``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.program import make_program

ROOT = Path(__file__).parents[2]


def run_programs(size: int, seed: int, programs: int, steps: int = 25) -> str:
    """Output of ``programs`` programs on ``size`` ranks."""
    command = [
        sys.executable,
        "-m",
        "tests.fuzz.worker",
        f"--seed={seed}",
        f"--programs={programs}",
        f"--steps={steps}",
    ]
    launcher = [sys.executable, "-m", "horovod.runner", "-np", str(size)]
    done = subprocess.run([*launcher, *command], cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


def test_programs_are_a_function_of_their_seed() -> None:
    assert make_program(7, 3, 20) == make_program(7, 3, 20)
    assert make_program(7, 3, 20) != make_program(8, 3, 20)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("size", [2, 3, 4])
def test_random_programs_agree_with_numpy(size: int) -> None:
    assert run_programs(size, seed=1000 * size, programs=6).count("fuzz ok") == size


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_many_random_programs_agree_with_numpy(size: int) -> None:
    assert run_programs(size, seed=100_000 + 1000 * size, programs=60, steps=40).count("fuzz ok") == size
