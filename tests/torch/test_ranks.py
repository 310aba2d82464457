"""Checks that need ranks: all modules in one job for each topology."""

from __future__ import annotations

import pytest

from tests.torch.conftest import TOPOLOGIES, _text
from tests.torch.harness import Slots, checks_of, expect_passed

pytestmark = pytest.mark.timeout(330)

CHECKS = (
    "ops",
    "tensors",
    "autograd",
    "batch_norm",
    "training",
    "adasum",
    "adasum_training",
    "sampler",
    "elastic",
    "optimizer",
    "habits",
    "copies",
    "state",
    "sets",
    "join",
    "sparse",
    "pains",
    "numerics",
    "formats",
    "mixed_precision",
    "refusals",
)
MODULES = tuple(f"tests.torch.checks_{name}" for name in CHECKS)
LABELS = [f"{module}.{name}" for module in MODULES for name in checks_of(module)]


@pytest.mark.parametrize("label", LABELS, ids=lambda label: label.removeprefix("tests.torch.checks_"))
@pytest.mark.parametrize(
    "topology", [(1,), pytest.param((3,), marks=pytest.mark.slow), *TOPOLOGIES], indirect=True, ids=_text
)
def test_check(topology: Slots, label: str) -> None:
    expect_passed(topology, MODULES, label)


COMPILE = "tests.torch.checks_compile"


@pytest.mark.slow  # half a minute of compiling
@pytest.mark.parametrize("name", checks_of(COMPILE))
@pytest.mark.parametrize("topology", [(2,)], indirect=True, ids=_text)
def test_compiled(topology: Slots, name: str) -> None:
    """torch's compiler warns itself, so here warnings are no errors."""
    expect_passed(topology, (COMPILE,), f"{COMPILE}.{name}", "default")


MEMORY = "tests.torch.checks_memory"


@pytest.mark.slow
@pytest.mark.parametrize("name", checks_of(MEMORY))
@pytest.mark.parametrize("topology", [(2,)], indirect=True, ids=_text)
def test_memory(topology: Slots, name: str) -> None:
    expect_passed(topology, (MEMORY,), f"{MEMORY}.{name}")


LARGE = "tests.torch.checks_large"


@pytest.mark.slow  # about 10 GiB of memory
@pytest.mark.parametrize("name", checks_of(LARGE))
@pytest.mark.parametrize("topology", [(2,)], indirect=True, ids=_text)
def test_large(topology: Slots, name: str) -> None:
    expect_passed(topology, (LARGE,), f"{LARGE}.{name}")


LITTLE_ROOM = "tests.torch.checks_little_room"


@pytest.mark.parametrize("name", checks_of(LITTLE_ROOM))
@pytest.mark.parametrize("topology", [(2,)], indirect=True, ids=_text)
def test_little_room(topology: Slots, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HVD_ARENA_BYTES", str(1 << 20))
    expect_passed(topology, (LITTLE_ROOM,), f"{LITTLE_ROOM}.{name}")


SWALLOWED = "tests.torch.checks_swallowed"


@pytest.mark.slow
@pytest.mark.parametrize("name", checks_of(SWALLOWED))
@pytest.mark.parametrize("topology", TOPOLOGIES, indirect=True, ids=_text)
def test_swallowed(topology: Slots, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HVD_DEADLOCK_GRACE_SECONDS", "1")
    expect_passed(topology, (SWALLOWED,), f"{SWALLOWED}.{name}")
