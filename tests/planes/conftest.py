"""Worlds: one for each plane and shape that many checks share, and fresh ones for what breaks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.planes.makers import MAKERS, Made
from tests.planes.world import Shape, World

Fresh = Callable[..., Made]


@pytest.fixture(scope="module")
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    """Its parameter are the plane's name and the shape."""
    name, shape = request.param
    made = MAKERS[name](shape)
    yield made.world
    made.close()


@pytest.fixture
def fresh() -> Iterator[Fresh]:
    """``fresh("tcp", (1, 1), silent_s=2.0, troubled=True)``: closed after the test, which must leave nothing."""
    with ExitStack() as stack:

        def make(name: str, shape: Shape, silent_s: float = 20.0, troubled: bool = False) -> Made:
            made = MAKERS[name](shape, silent_s, troubled)
            stack.callback(made.close)
            return made

        yield make
