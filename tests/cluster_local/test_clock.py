"""A wall clock that is set while a job runs: nothing that waits may notice, on any side."""

from __future__ import annotations

import signal
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster_local.processes import Cluster, Process

SHIM = Path(__file__).parent / "clock.c"
DAY_S = 86_400
STEPS = """
import sys, pathlib, time
import numpy as np
from tests.common.rank_programs import allreduce, hvd
hvd.init()
stop, step = pathlib.Path(sys.argv[1]), 0
while True:
    total = allreduce(np.array([hvd.rank() * 1.0, float(stop.exists())]), f"name.{step}")
    assert total[0] == 1.0
    print("step", step, int(time.time()) // 86_400, flush=True)
    if total[1]:
        break
    step += 1
    time.sleep(0.25)
hvd.shutdown()
"""


class Clock:
    """The wall clock of all processes of the cluster."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "offset"
        self.set(0)
        library = folder / "clock.so"
        subprocess.run(["g++", "-x", "c", "-shared", "-fPIC", "-o", str(library), str(SHIM)], check=True)
        self.variables = {"LD_PRELOAD": str(library), "CLOCK_OFFSET": str(self._file)}

    def set(self, seconds: int) -> None:
        """So far from the true time, from now on."""
        with self._file.open("r+b" if self._file.exists() else "wb") as file:
            file.write(struct.pack("l", seconds))


@pytest.fixture
def clock(tmp_path: Path) -> Clock:
    return Clock(tmp_path)


def steps(launcher: Process) -> list[int]:
    """Days on which rank 0 made its steps."""
    lines = launcher.out.text.splitlines()
    return [int(line.split()[2]) for line in lines if line.startswith("[0]<stdout>:step")]


def wait_for_more(launcher: Process, count: int) -> None:
    launcher.out.wait_for(r"^\[0\]<stdout>:step", len(steps(launcher)) + count)


def test_a_clock_that_is_set_ends_nothing(fresh: Cluster, clock: Clock, tmp_path: Path) -> None:
    """Each rank announces a new name in each step, so that sessions are at work as well as rounds."""
    fresh.variables = clock.variables
    fresh.serve("--peer-timeout", "2")
    for name in ("a", "b"):
        fresh.agent(name, "--peer-timeout", "2", slots=1)
    launcher = fresh.launch("-np", "2", sys.executable, "-c", STEPS, str(tmp_path / "stop"))
    wait_for_more(launcher, 1)
    for offset in (DAY_S, -DAY_S, 0):
        clock.set(offset)
        wait_for_more(launcher, 12)  # three seconds at least, more than the time-out
    days = steps(launcher)
    assert (min(days), max(days)) == (days[0] - 1, days[0] + 1), "the clock was set"
    assert fresh.coordinator is not None
    clock.set(-DAY_S)  # the number of a coordinator is taken from the clock
    fresh.coordinator.end(signal.SIGKILL)
    fresh.serve("--peer-timeout", "2", listen=fresh.address)
    wait_for_more(launcher, 2)
    (tmp_path / "stop").touch()
    assert launcher.wait() == 0, launcher.err.text + fresh.story()
    assert "lost" not in fresh.story()
    assert "fenced" not in fresh.story()
