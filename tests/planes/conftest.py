"""Worlds: one for each plane and shape that many checks share, and fresh ones for what breaks."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from horovod.agent.planes.gloo import GlooServer

from tests.planes.makers import Made, PlaneMaker, doubling, gloo, local, tcp
from tests.planes.world import Shape, World

Fresh = Callable[..., Made]


@pytest.fixture(scope="session")
def gloo_server() -> Iterator[GlooServer]:
    """Loads torch once for all tests."""
    server = GlooServer(os.environ)
    server.start()
    yield server
    server.close()


@pytest.fixture(scope="session")
def makers(gloo_server: GlooServer) -> dict[str, PlaneMaker]:
    """All planes, and all ways to go over one; whoever adds one adds it here, and it has to pass what the others pass."""
    return {"local": local, "tcp": tcp, "doubling": doubling, "gloo": gloo(gloo_server)}


@pytest.fixture(scope="module")
def world(request: pytest.FixtureRequest, makers: dict[str, PlaneMaker]) -> Iterator[World]:
    """Its parameter are the plane's name and the shape."""
    name, shape = request.param
    made = makers[name](shape)
    yield made.world
    made.close()


@pytest.fixture
def fresh(makers: dict[str, PlaneMaker]) -> Iterator[Fresh]:
    """``fresh("tcp", (1, 1), silent_s=2.0, troubled=True)``: closed after the test, which must leave nothing."""
    with ExitStack() as stack:

        def make(name: str, shape: Shape, **options: Any) -> Made:
            made = makers[name](shape, **options)
            stack.callback(made.close)
            return made

        yield make
