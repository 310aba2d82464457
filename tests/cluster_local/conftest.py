"""Clusters for tests: one that many share, and fresh ones for tests that break something."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from tests.cluster_local.processes import Cluster


@pytest.fixture
def fresh() -> Iterator[Cluster]:
    """Nothing is started yet."""
    cluster = Cluster(uuid.uuid4().hex)
    yield cluster
    cluster.close()


@pytest.fixture(scope="module")
def shared() -> Iterator[Cluster]:
    """A coordinator and two agents with two slots each."""
    cluster = Cluster(uuid.uuid4().hex)
    cluster.serve()
    cluster.agent("a")
    cluster.agent("b")
    yield cluster
    cluster.close()
