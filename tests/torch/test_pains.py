"""Troubles that users have reported, as whole jobs: with limits, or in surroundings, of their own."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys

import pytest

from tests.torch.harness import run_modules

pytestmark = pytest.mark.timeout(120)
IN_ITS_OWN_MOUNTS = ("unshare", "--mount", "sh", "-c")


@pytest.mark.slow
def test_one_rank_evaluates_alone() -> None:
    """P06: the others wait as long as it takes; at most one warning in each period, which says that rank 0 lives."""
    limits = {"HOROVOD_STALL_CHECK_TIME_SECONDS": "1", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "60"}
    outputs = run_modules((3,), ["tests.torch.alone"], limits)
    assert all("done" in output for output in outputs), outputs[0]
    warnings = re.findall(r"has waited \d+ s for .*", outputs[0])
    assert 1 <= len(warnings) <= 4, outputs[0]
    assert all("rank 0" in warning for warning in warnings), warnings
    assert "alive" in warnings[0], warnings


def _can_mount() -> bool:
    test = [*IN_ITS_OWN_MOUNTS, "mount -t tmpfs -o size=1m tmpfs /dev/shm"]
    return (
        shutil.which("unshare") is not None
        and subprocess.run(test, check=False, stderr=subprocess.DEVNULL).returncode == 0
    )


@pytest.mark.parametrize(("shm", "nbytes"), [("1m", 8 << 20), pytest.param("64m", 256 << 20, marks=pytest.mark.slow)])
def test_little_of_the_containers_shared_memory(shm: str, nbytes: int) -> None:
    """P67: memory of ranks has no place in ``/dev/shm``, so a small and full one harms nobody."""
    if not _can_mount():
        pytest.skip("mounting in a namespace of its own does not work here")
    job = f"{sys.executable} -m horovod.runner -np 2 {sys.executable} -m tests.torch.small_shm {nbytes}"
    command = f"mount -t tmpfs -o size={shm} tmpfs /dev/shm && exec {job}"
    done = subprocess.run(
        [*IN_ITS_OWN_MOUNTS, command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("done") == 2
