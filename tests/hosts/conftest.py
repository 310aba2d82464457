"""Sites for tests: one for each topology that many tests share, and fresh ones for tests that break something."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.cluster.harness import Cluster, LoopbackCluster, why_not
from tests.hosts.site import Options, Site

Slots = tuple[int, ...]
MakeSite = Callable[..., Site]


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Tests with network namespaces run where there are some."""
    if item.get_closest_marker("cluster") and (reason := why_not()):
        pytest.skip(reason)


@pytest.fixture(scope="module")
def site(request: pytest.FixtureRequest) -> Iterator[Site]:
    """Shared by the tests of a module; its parameter are the slots."""
    slots: Slots = request.param
    with LoopbackCluster(len(slots)) as cluster:
        yield Site(cluster.hosts, slots)


@pytest.fixture
def fresh() -> Iterator[MakeSite]:
    """``fresh((1, 1), options)``: a site of its own on loopback addresses."""
    with ExitStack() as stack:

        def make(slots: Slots, options: Options | None = None) -> Site:
            return Site(stack.enter_context(LoopbackCluster(len(slots))).hosts, slots, options)

        yield make


@pytest.fixture
def network() -> Iterator[Callable[[int], Cluster]]:
    """``network(2)``: hosts with links that can be cut."""
    with ExitStack() as stack:
        yield lambda n: stack.enter_context(Cluster(n))
