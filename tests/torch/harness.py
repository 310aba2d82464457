"""Runs modules of named checks on several real ranks, once for each module, and reports each check by itself.

A check is a function ``check_<name>()`` of a module ``checks_*``; all ranks run all checks in the order of their
definition.  The test process starts the ranks and reads what they print.
"""

from __future__ import annotations

import functools
import importlib
import os
import subprocess
import sys
import traceback
from collections.abc import Callable

import pytest

from tests.common.small_agent import SmallAgent

TIMEOUT_S = 25


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


def _start_ranks(agent: SmallAgent, size: int, module_name: str) -> list[subprocess.Popen[str]]:
    base = {
        **os.environ,
        "HOROVOD_AGENT": agent.address,
        "HOROVOD_SIZE": str(size),
        "PYTHONWARNINGS": "error::UserWarning",
    }
    command = [sys.executable, "-m", "tests.torch.harness", module_name]
    return [
        subprocess.Popen(
            command, env={**base, "HOROVOD_RANK": str(rank)}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        for rank in range(size)
    ]  # fmt: skip


@functools.cache
def outcomes(size: int, module_name: str) -> list[str]:
    """The output of each rank."""
    agent = SmallAgent(size)
    processes = _start_ranks(agent, size, module_name)
    outputs = []
    try:
        for process in processes:
            try:
                outputs.append(process.communicate(timeout=TIMEOUT_S)[0])
            except subprocess.TimeoutExpired:
                process.kill()
                outputs.append(process.communicate()[0] + "\n(killed: it did not end)")
    finally:
        for process in processes:
            process.kill()
            process.wait()
            if process.stdout:
                process.stdout.close()
        agent.close()
    return outputs


def expect_passed(size: int, module_name: str, name: str) -> None:
    """Fails unless the check passed on every rank."""
    for rank, output in enumerate(outcomes(size, module_name)):
        if f"PASSED {name}\n" not in output:
            position = max(output.find(f"FAILED {name}\n"), 0)
            pytest.fail(f"{name} did not pass on rank {rank} of {size}:\n{output[position:][-4000:]}", pytrace=False)


if __name__ == "__main__":
    run_checks(sys.argv[1])
