"""Runs modules of named checks on real ranks, in one job for each topology, and reports each check by itself.

A check is a function ``check_<name>()`` of a module ``checks_*``; all ranks run all checks in the order of their
definition.  The test process starts them with the launcher and reads what they print.  A topology is a tuple with the
slots of each host: ``(4,)`` is one host, ``(2, 1)`` are two agents beside a coordinator.
"""

from __future__ import annotations

import functools
import importlib
import os
import re
import subprocess
import sys
import traceback
import unittest
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest

Slots = tuple[int, ...]
TIMEOUT_S = 280


def checks_of(module_name: str) -> list[str]:
    """Names of the module's checks, in order."""
    module = importlib.import_module(module_name)
    return [name for name in vars(module) if name.startswith("check_")]


def _default_device(label: str) -> AbstractContextManager[Any]:
    """With HVD_TESTS_DEFAULT_DEVICE, tensors that don't say where they are go to the device of the checks."""
    if not os.environ.get("HVD_TESTS_DEFAULT_DEVICE"):
        return nullcontext()
    import torch

    from tests.torch.devices import DEVICE, NOT_BY_DEFAULT

    if label in NOT_BY_DEFAULT:
        raise unittest.SkipTest(NOT_BY_DEFAULT[label])
    return torch.device(DEVICE)  # type: ignore[no-any-return]


def run_checks(module_name: str) -> None:
    """In a rank: runs every check and prints its outcome."""
    import horovod.torch as hvd
    import torch

    torch.set_num_threads(1)
    hvd.init()
    module = importlib.import_module(module_name)
    for name in checks_of(module_name):
        check: Callable[[], None] = getattr(module, name)
        label = f"{module_name}.{name}"
        try:
            with _default_device(label):
                check()
        except unittest.SkipTest as reason:
            print(f"SKIPPED {label}: {reason}", flush=True)
        except (Exception, pytest.fail.Exception):
            print(f"FAILED {label}\n{traceback.format_exc()}", flush=True)
        else:
            print(f"PASSED {label}", flush=True)
    hvd.shutdown()


def _split_by_rank(text: str, size: int) -> list[str]:
    """The lines of each rank; what the launcher says itself goes to all."""
    outputs: list[list[str]] = [[] for _ in range(size)]
    for line in text.splitlines():
        match = re.match(r"\[(\d+)\]<(?:stdout|stderr)>:(.*)", line)
        for rank in [int(match[1])] if match else range(size):
            outputs[rank].append(match[2] if match else line)
    return ["\n".join(lines) + "\n" for lines in outputs]


def _run_on_one_host(np: int, arguments: list[str], variables: dict[str, str]) -> str:
    command = [sys.executable, "-m", "horovod.runner", "-np", str(np), sys.executable, "-m", *arguments]
    with subprocess.Popen(
        command, env={**os.environ, **variables}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as launcher:
        try:
            return launcher.communicate(timeout=TIMEOUT_S)[0]
        except subprocess.TimeoutExpired:
            launcher.terminate()
            return launcher.communicate()[0] + "\n(ended: it took too long)"


def _run_on_hosts(slots: Slots, arguments: list[str], variables: dict[str, str]) -> str:
    from tests.cluster.harness import LoopbackCluster
    from tests.hosts.site import Site

    with LoopbackCluster(len(slots)) as cluster:
        return Site(cluster.hosts, slots).run(*arguments, timeout_s=TIMEOUT_S, ok=False, **variables).output


@functools.cache
def outcomes(
    slots: Slots, modules: tuple[str, ...], warnings: str = "error::UserWarning", device: str = ""
) -> list[str]:
    """The output of each rank."""
    variables = {"PYTHONWARNINGS": warnings, **({"HVD_TESTS_DEVICE": device} if device else {})}
    return run_modules(slots, ["tests.torch.harness", *modules], variables)


def run_modules(slots: Slots, arguments: list[str], variables: dict[str, str]) -> list[str]:
    """The output of each rank of a job that runs ``python -m`` with these arguments and environment variables."""
    if len(slots) == 1:
        text = _run_on_one_host(slots[0], arguments, variables)
    else:
        text = _run_on_hosts(slots, arguments, variables)
    return _split_by_rank(text, sum(slots))


def expect_passed(
    slots: Slots, modules: tuple[str, ...], label: str, warnings: str = "error::UserWarning", device: str = ""
) -> None:
    """Fails unless the check ``module.name`` passed on every rank of a job that runs these modules."""
    for rank, output in enumerate(outcomes(slots, modules, warnings, device)):
        if f"PASSED {label}\n" not in output:
            position = output.find(f"FAILED {label}\n")
            said = output[position:][:4000] if position >= 0 else output[-4000:]
            pytest.fail(f"{label} did not pass on rank {rank} of {slots}:\n{said}", pytrace=False)


if __name__ == "__main__":
    for module_named in sys.argv[1:]:
        run_checks(module_named)
