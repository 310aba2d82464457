"""Checks that need ranks: all modules in one job for each topology."""

from __future__ import annotations

import importlib.util

import pytest

from tests.tensorflow.conftest import TOPOLOGIES, slow, text_of
from tests.tensorflow.harness import Slots, checks_of, expect_passed

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.timeout(460),
    pytest.mark.skipif(importlib.util.find_spec("tensorflow") is None, reason="TensorFlow is not installed"),
]

MODULES = (
    "checks_ops", "checks_tape", "checks_session", "checks_keras", "checks_callbacks", "checks_refusals", "checks_sets",
    "checks_elastic", "checks_models", "checks_adasum", "checks_sparse", "checks_rows", "checks_lifecycle",
)  # fmt: skip


def _cases(modules: tuple[str, ...]) -> list[str]:
    return [f"{module}.{name}" for module in modules for name in checks_of(module)]


@pytest.mark.parametrize("name", _cases(MODULES))
@pytest.mark.parametrize("topology", [*TOPOLOGIES, pytest.param((3,), marks=slow)], indirect=True, ids=text_of)
def test_check(topology: Slots, name: str) -> None:
    expect_passed(topology, MODULES, name)


TORCH = ("checks_torch_backend", "checks_torch_elastic")


@pytest.mark.parametrize("name", _cases(TORCH))
def test_keras_on_the_torch_backend(topology: Slots, name: str) -> None:
    expect_passed(topology, TORCH, name, backend="torch")


@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="jax is not installed")
@pytest.mark.parametrize("name", _cases(("checks_jax_backend",)))
@pytest.mark.parametrize("topology", [(2,), pytest.param((1, 1), marks=slow)], indirect=True, ids=text_of)
def test_keras_on_the_jax_backend(topology: Slots, name: str) -> None:
    expect_passed(topology, ("checks_jax_backend",), name, backend="jax")


@pytest.mark.slow
@pytest.mark.parametrize("name", _cases(("checks_memory",)))
def test_memory(name: str) -> None:
    expect_passed((2,), ("checks_memory",), name)
