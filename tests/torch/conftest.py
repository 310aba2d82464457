"""The topologies that suites run on: the default run takes the small ones, ``-m slow`` the others."""

from __future__ import annotations

import pytest

from tests.torch.harness import Slots

slow = pytest.mark.slow
TOPOLOGIES = [
    (2,),
    pytest.param((4,), marks=slow),
    pytest.param((1, 1), marks=slow),
    pytest.param((2, 1), marks=slow),
]


def _text(slots: Slots) -> str:
    return "+".join(map(str, slots))


@pytest.fixture(params=TOPOLOGIES, ids=_text)
def topology(request: pytest.FixtureRequest) -> Slots:
    """Slots of each host.  ``indirect=True`` chooses others than these."""
    slots: Slots = request.param
    return slots
