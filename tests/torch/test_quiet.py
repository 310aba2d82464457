"""Init slows nothing down: threads, affinity, variables and handlers of the process are the user's (P46)."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

QUIET = [sys.executable, "-m", "tests.torch.quiet"]
LAUNCHER = [sys.executable, "-m", "horovod.runner", "-np"]

pytestmark = pytest.mark.timeout(100)


def last_words(command: list[str]) -> tuple[list[str], str]:
    """What each process says about its cores and threads; all the output."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stdout
    return [line[line.index("cores") :] for line in done.stdout.splitlines() if "cores" in line], done.stdout


@pytest.mark.parametrize("size", [1, 2])
def test_a_process_is_the_same_before_and_after_init(size: int) -> None:
    words, output = last_words([*LAUNCHER, str(size), *QUIET])
    assert output.count("done") == size, output
    # Neither does the launcher bind ranks to cores or tell OpenMP how many threads there are.
    assert words == size * last_words(QUIET)[0]
    assert str(sorted(os.sched_getaffinity(0))) in words[0]
