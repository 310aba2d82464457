"""Tests marked ``cluster`` run where network namespaces work, and are skipped elsewhere with the reason."""

from __future__ import annotations

import pytest

from tests.cluster.harness import why_not


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Looks when the first test needs it, and once."""
    if item.get_closest_marker("cluster") and (reason := why_not()):
        pytest.skip(reason)
