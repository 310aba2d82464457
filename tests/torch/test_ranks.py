"""Checks that need ranks: on one, two and three of them."""

from __future__ import annotations

import pytest

from tests.torch.harness import checks_of, expect_passed

pytestmark = pytest.mark.timeout(150)

OPS = "tests.torch.checks_ops"
OPTIMIZER = "tests.torch.checks_optimizer"


@pytest.mark.parametrize("name", checks_of(OPS))
@pytest.mark.parametrize("size", [1, 2, 3])
def test_operations(size: int, name: str) -> None:
    expect_passed(size, OPS, name)


@pytest.mark.parametrize("name", checks_of(OPTIMIZER))
@pytest.mark.parametrize("size", [1, 2, 3])
def test_optimizer(size: int, name: str) -> None:
    expect_passed(size, OPTIMIZER, name)
