"""The topologies that the suite runs on: the default run takes two ranks on one host, ``-m slow`` the others."""

from __future__ import annotations

import pytest

from tests.tensorflow.harness import Slots

slow = pytest.mark.slow
TOPOLOGIES = [(2,), pytest.param((1, 1), marks=slow), pytest.param((2, 1), marks=slow)]


def text_of(slots: Slots) -> str:
    """The slots of each host."""
    return "+".join(map(str, slots))


@pytest.fixture(params=TOPOLOGIES, ids=text_of)
def topology(request: pytest.FixtureRequest) -> Slots:
    """Slots of each host.  ``indirect=True`` chooses others than these."""
    slots: Slots = request.param
    return slots
