"""Checks with tensors on a device: on the stand-in everywhere, on a GPU where there is one (``pytest -m gpu``)."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from tests.torch.conftest import _text
from tests.torch.devices import NOT_BY_DEFAULT, skip_reason
from tests.torch.harness import Slots, checks_of, expect_passed
from tests.torch.test_ranks import LABELS
from tests.torch.test_ranks import MODULES as ALL

pytestmark = pytest.mark.timeout(330)

COMMON = tuple(f"tests.torch.checks_device_{name}" for name in ("ops", "training", "state"))
MODULES = {"standin": COMMON, "cuda": (*COMMON, "tests.torch.checks_device_streams")}
SLOW = [pytest.param(slots, marks=pytest.mark.slow) for slots in ((3,), (1, 1))]


def _cases() -> list[Any]:
    """Every check on every device that it is for."""
    return [
        pytest.param(
            device,
            f"{module}.{name}",
            id=f"{device}-{module.removeprefix('tests.torch.checks_device_')}.{name}",
            marks=[pytest.mark.gpu] if device == "cuda" else [],
        )
        for device, modules in MODULES.items()
        for module in modules
        for name in checks_of(module)
    ]


@pytest.mark.parametrize("topology", [(2,), *SLOW], indirect=True, ids=_text)
@pytest.mark.parametrize(("device", "label"), _cases())
def test_check(device: str, label: str, topology: Slots) -> None:
    reason = skip_reason(device)
    if reason is not None:
        pytest.skip(reason)
    # A new GPU or torch may have something to say that is none of our business.
    warnings = "default" if device == "cuda" else "error::UserWarning"
    expect_passed(topology, MODULES[device], label, warnings, device)


@pytest.mark.slow  # two minutes
@pytest.mark.parametrize("topology", [(2,)], indirect=True, ids=_text)
@pytest.mark.parametrize("label", [label for label in LABELS if label not in NOT_BY_DEFAULT])
def test_default_device(label: str, topology: Slots, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every other check once more, in a program whose tensors are on the device unless they say otherwise."""
    reason = skip_reason("standin")
    if reason is not None:
        pytest.skip(reason)
    monkeypatch.setenv("HVD_TESTS_DEFAULT_DEVICE", "1")
    expect_passed(topology, ALL, label, device="standin")


LEFT_ALONE = """
import os

import horovod.torch as hvd
import torch

hvd.init()
w = torch.nn.Parameter(torch.ones(3))
optimizer = hvd.DistributedOptimizer(torch.optim.SGD([w], lr=1.0), [("w", w)])
hvd.broadcast_parameters([w], 0)
hvd.allreduce(w).sum().backward()
optimizer.step()
hvd.broadcast_optimizer_state(optimizer, 0)
assert not torch.cuda.is_initialized()
child = os.fork()
if not child:
    torch.ones(1, device="cuda")  # fails where the parent has used CUDA
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
"""


@pytest.mark.gpu
def test_work_on_the_host_leaves_the_gpu_alone() -> None:
    """So that a child that was forked can use it."""
    reason = skip_reason("cuda")
    if reason is not None:
        pytest.skip(reason)
    done = subprocess.run([sys.executable, "-c", LEFT_ALONE], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
