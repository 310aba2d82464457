"""Checks that need ranks: on one, two and three of them."""

from __future__ import annotations

import pytest

from tests.torch.harness import checks_of, expect_passed

pytestmark = pytest.mark.timeout(180)

OPS = "tests.torch.checks_ops"
OPTIMIZER = "tests.torch.checks_optimizer"
STATE = "tests.torch.checks_state"
REFUSALS = "tests.torch.checks_refusals"
SETS = "tests.torch.checks_sets"


@pytest.mark.parametrize("name", checks_of(OPS))
@pytest.mark.parametrize("size", [1, 2, 3])
def test_operations(size: int, name: str) -> None:
    expect_passed(size, OPS, name)


@pytest.mark.parametrize("name", checks_of(OPTIMIZER))
@pytest.mark.parametrize("size", [1, 2, 3])
def test_optimizer(size: int, name: str) -> None:
    expect_passed(size, OPTIMIZER, name)


@pytest.mark.parametrize("name", checks_of(STATE))
@pytest.mark.parametrize("size", [1, 2, 3])
def test_state(size: int, name: str) -> None:
    expect_passed(size, STATE, name)


@pytest.mark.parametrize("name", checks_of(SETS))
@pytest.mark.parametrize("size", [1, 2, 3])
def test_sets_and_join(size: int, name: str) -> None:
    expect_passed(size, SETS, name)


@pytest.mark.parametrize("name", checks_of(REFUSALS))
@pytest.mark.parametrize("size", [1, 2, 3])
def test_refusals(size: int, name: str) -> None:
    expect_passed(size, REFUSALS, name)
