"""Fixtures for all suites.  ``no_leaks`` fails a test that leaves something behind in this process.

Every test finds Horovod's variables as they were when the run began, whatever tests before it have set.
"""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator

import pytest

from tests.leaks import holdings, wait_until_no_more_than


def pytest_configure() -> None:
    """Programs under test inherit what is ignored: a shell starts a run in the background with SIGINT ignored."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


def _variables() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith(("HOROVOD_", "HVD_"))}


@pytest.fixture(autouse=True)
def _same_variables() -> Iterator[None]:
    """Undoes changes of Horovod's variables, such as those of ``init(process_sets="dynamic")``."""
    before = _variables()
    yield
    for name in _variables().keys() - before.keys():
        del os.environ[name]
    os.environ.update(before)


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
