"""Checks that need ranks: all on two; operations and process sets on three, too."""

from __future__ import annotations

import importlib.util

import pytest

from tests.tensorflow.harness import checks_of, expect_passed

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(importlib.util.find_spec("tensorflow") is None, reason="TensorFlow is not installed"),
]

TWO = (
    "checks_ops", "checks_tape", "checks_session", "checks_keras", "checks_callbacks", "checks_refusals", "checks_sets",
    "checks_elastic",
)  # fmt: skip
THREE = ("checks_ops", "checks_sets")


def _cases(modules: tuple[str, ...]) -> list[str]:
    return [f"{module}.{name}" for module in modules for name in checks_of(module)]


@pytest.mark.parametrize("name", _cases(TWO))
def test_two_ranks(name: str) -> None:
    expect_passed(2, TWO, name)


@pytest.mark.slow
@pytest.mark.parametrize("name", _cases(THREE))
def test_three_ranks(name: str) -> None:
    expect_passed(3, THREE, name)


TORCH = ("checks_torch_backend", "checks_torch_elastic")


@pytest.mark.parametrize("name", _cases(TORCH))
def test_keras_on_the_torch_backend(name: str) -> None:
    expect_passed(2, TORCH, name, backend="torch")
