"""Runs modules of named checks on several real ranks, many modules in one job, and reports each check by itself.

A check is a function ``check_<name>()`` of a module ``checks_*``; all ranks run all checks in the order of their
definition.  Importing TensorFlow takes longest, so one job serves all modules of one topology: a tuple with the slots
of each host.
"""

from __future__ import annotations

import functools
import importlib
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.torch.harness import _split_by_rank

Slots = tuple[int, ...]
TIMEOUT_S = 400  # of a job with all modules, on two busy cores
HERE = Path(__file__).parent


def checks_of(module: str) -> list[str]:
    """Names of a module's checks, in order, read from its text: TensorFlow is not imported to collect tests."""
    lines = (HERE / f"{module}.py").read_text().splitlines()
    return [line.split()[1].partition("(")[0] for line in lines if line.startswith("def check_")]


def run_checks(modules: Sequence[str]) -> None:
    """In a rank: runs every check and prints its outcome."""
    from horovod.common.basics import HorovodBasics

    HorovodBasics().init()
    for module_name in modules:
        try:
            module = importlib.import_module(f"tests.tensorflow.{module_name}")
        except Exception:
            print(f"FAILED import of {module_name}\n{traceback.format_exc()}", flush=True)
            continue
        for name in checks_of(module_name):
            started = time.monotonic()
            try:
                getattr(module, name)()
            except (Exception, pytest.fail.Exception):
                print(f"FAILED {module_name}.{name}\n{traceback.format_exc()}", flush=True)
            else:
                print(f"PASSED {module_name}.{name}", flush=True)
            print(f"TOOK {time.monotonic() - started:6.2f} s {module_name}.{name}", flush=True)
    HorovodBasics().shutdown()


def environment(**more: str) -> dict[str, str]:
    """One thread for arithmetic, as ranks share the cores; quiet, and blind to GPUs.

    A session needs more inter-op threads than it has operations that don't depend on each other.
    """
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "2", "TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "8"}
    return {**os.environ, **quiet, "CUDA_VISIBLE_DEVICES": "-1", "OMP_NUM_THREADS": "1", **more}


def run_job(size: int, command: Sequence[str], **more: str) -> str:
    """The output of a program on so many ranks."""
    launcher = [sys.executable, "-m", "horovod.runner", "-np", str(size), sys.executable, *command]
    with subprocess.Popen(
        launcher, env=environment(**more), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            return process.communicate(timeout=TIMEOUT_S)[0]
        except subprocess.TimeoutExpired:
            process.terminate()
            return process.communicate()[0] + "\n(ended: it took too long)"


def _run_on_hosts(slots: Slots, arguments: Sequence[str], **more: str) -> str:
    from tests.cluster.harness import LoopbackCluster
    from tests.hosts.site import Site

    quiet = {name: value for name, value in environment().items() if name.startswith(("TF_", "OMP_", "CUDA_"))}
    with LoopbackCluster(len(slots)) as cluster:
        site = Site(cluster.hosts, slots)
        return site.run(*arguments, timeout_s=TIMEOUT_S, ok=False, **quiet, **more).output


@functools.cache
def outcomes(slots: Slots, modules: tuple[str, ...], backend: str = "tensorflow") -> list[str]:
    """The output of each rank."""
    arguments = ["tests.tensorflow.harness", *modules]
    if len(slots) == 1:
        text = run_job(slots[0], ["-m", *arguments], KERAS_BACKEND=backend)
    else:
        text = _run_on_hosts(slots, arguments, KERAS_BACKEND=backend)
    return _split_by_rank(text, sum(slots))


def expect_passed(slots: Slots, modules: tuple[str, ...], name: str, backend: str = "tensorflow") -> None:
    """Fails unless the check passed on every rank."""
    for rank, output in enumerate(outcomes(slots, modules, backend)):
        if f"PASSED {name}\n" not in output:
            position = max(output.find(f"FAILED {name}\n"), 0)
            pytest.fail(f"{name} did not pass on rank {rank} of {slots}:\n{output[position:][-5000:]}", pytrace=False)


if __name__ == "__main__":
    run_checks(sys.argv[1:])
