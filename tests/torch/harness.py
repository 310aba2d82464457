"""Runs modules of named checks on several real ranks, once for each module, and reports each check by itself.

A check is a function ``check_<name>()`` of a module ``checks_*``; all ranks run all checks in the order of their
definition.  The test process starts them with the launcher and reads what they print.
"""

from __future__ import annotations

import functools
import importlib
import os
import re
import subprocess
import sys
import traceback
from collections.abc import Callable

import pytest

TIMEOUT_S = 120


def checks_of(module_name: str) -> list[str]:
    """Names of the module's checks, in order, without importing torch twice in the ranks' way."""
    module = importlib.import_module(module_name)
    return [name for name in vars(module) if name.startswith("check_")]


def run_checks(module_name: str) -> None:
    """In a rank: runs every check and prints its outcome."""
    import horovod.torch as hvd
    import torch

    torch.set_num_threads(1)
    hvd.init()
    module = importlib.import_module(module_name)
    for name in checks_of(module_name):
        check: Callable[[], None] = getattr(module, name)
        try:
            check()
        except (Exception, pytest.fail.Exception):
            print(f"FAILED {name}\n{traceback.format_exc()}", flush=True)
        else:
            print(f"PASSED {name}", flush=True)
    hvd.shutdown()


def _split_by_rank(text: str, size: int) -> list[str]:
    """The lines of each rank; what the launcher says itself goes to all."""
    outputs: list[list[str]] = [[] for _ in range(size)]
    for line in text.splitlines():
        match = re.match(r"\[(\d+)\]<(?:stdout|stderr)>:(.*)", line)
        for rank in [int(match[1])] if match else range(size):
            outputs[rank].append(match[2] if match else line)
    return ["\n".join(lines) + "\n" for lines in outputs]


@functools.cache
def outcomes(size: int, module_name: str) -> list[str]:
    """The output of each rank."""
    command = [
        sys.executable, "-m", "horovod.runner", "-np", str(size), sys.executable, "-m", "tests.torch.harness", module_name,
    ]  # fmt: skip
    environment = {**os.environ, "PYTHONWARNINGS": "error::UserWarning"}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as launcher:
        try:
            text = launcher.communicate(timeout=TIMEOUT_S)[0]
        except subprocess.TimeoutExpired:
            launcher.terminate()
            text = launcher.communicate()[0] + "\n(ended: it took too long)"
    return _split_by_rank(text, size)


def expect_passed(size: int, module_name: str, name: str) -> None:
    """Fails unless the check passed on every rank."""
    for rank, output in enumerate(outcomes(size, module_name)):
        if f"PASSED {name}\n" not in output:
            position = max(output.find(f"FAILED {name}\n"), 0)
            pytest.fail(f"{name} did not pass on rank {rank} of {size}:\n{output[position:][-4000:]}", pytrace=False)


if __name__ == "__main__":
    run_checks(sys.argv[1])
