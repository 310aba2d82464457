"""Every plane passes the suite; shapes are the ranks of each host."""

from __future__ import annotations

from typing import Any

import pytest

from tests.planes import suite
from tests.planes.world import Shape, World

pytestmark = pytest.mark.timeout(120)

# Local rounds need no plane; a plane of one host has nobody to talk to, and works.
FAST: dict[str, list[Shape]] = {
    "local": [(1,), (3,)],
    "tcp": [(1,), (1, 1), (2, 1), (1, 1, 1, 1), (1, 2, 1, 1, 2), (1,) * 8],
    "gloo": [(1, 1), (2, 1), (1, 1, 1)],
}
SLOW: dict[str, list[Shape]] = {
    "local": [(2,), (4,), (5,), (8,)],
    "tcp": [(2,), (1, 1, 1), (2, 2), (1,) * 5, (2,) * 8],
    "gloo": [(2,), (1, 2, 1), (1,) * 4, (1, 2, 1, 1, 2), (1,) * 8],
}


def _cases(shapes: dict[str, list[Shape]], *marks: Any) -> list[Any]:
    return [
        pytest.param((name, shape), id=f"{name}-{'.'.join(map(str, shape))}", marks=marks)
        for name, these in shapes.items()
        for shape in these
    ]


DOUBLING: list[Shape] = [(1, 1), (2, 1, 1), (1,) * 6, (2,) * 7, (1,) * 9, (1,) * 12, (1,) * 16]
doubled = [*_cases({"doubling": [(1, 2, 1, 1, 2)]}), *_cases({"doubling": DOUBLING}, pytest.mark.slow)]

everywhere = pytest.mark.parametrize("world", [*_cases(FAST), *_cases(SLOW, pytest.mark.slow)], indirect=True)
# Where it matters how sums of small payloads travel.
sums = pytest.mark.parametrize("world", [*_cases(FAST), *_cases(SLOW, pytest.mark.slow), *doubled], indirect=True)
TWO: dict[str, list[Shape]] = {"local": [(2,)], "tcp": [(1, 1), (2, 1)], "gloo": [(1, 1)]}


@sums
def test_dtypes_and_ops(world: World) -> None:
    suite.check_dtypes_and_ops(world)


@everywhere
def test_dtypes_and_ops_in_pieces(world: World) -> None:
    suite.check_dtypes_around(world)


@sums
def test_sizes(world: World) -> None:
    suite.check_sizes(world)


@sums
def test_factors_and_rounding(world: World) -> None:
    suite.check_factors(world)


@sums
def test_barrier(world: World) -> None:
    suite.check_barrier(world)


@sums
def test_any_order(world: World) -> None:
    suite.check_orders(world)


@everywhere
def test_allgather(world: World) -> None:
    suite.check_allgather(world)


@everywhere
def test_broadcast(world: World) -> None:
    suite.check_broadcast(world)


@everywhere
def test_alltoall(world: World) -> None:
    suite.check_alltoall(world)


@everywhere
def test_reducescatter(world: World) -> None:
    suite.check_reducescatter(world)


@everywhere
def test_sets(world: World) -> None:
    suite.check_sets(world)


@pytest.mark.slow
@pytest.mark.parametrize("world", _cases(TWO), indirect=True)
def test_64_mib(world: World) -> None:
    suite.check_large(world)
