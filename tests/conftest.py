"""Fixtures for all suites.  ``no_leaks`` fails a test that leaves something behind in this process."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from tests.leaks import holdings, wait_until_no_more_than


@pytest.fixture
def no_leaks() -> Iterator[None]:
    """Descriptors, shared memory, threads and children must be as few after the test as before.

    Ask for it before the fixtures whose resources it should see released, or mark a module with
    ``pytestmark = pytest.mark.usefixtures("no_leaks")``.
    """
    before = holdings()
    yield
    gc.collect()
    more = wait_until_no_more_than(before)
    assert not more, f"left behind: {more}"
