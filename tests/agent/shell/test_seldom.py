"""Warnings that others can cause: few lines, nothing uncounted."""

from __future__ import annotations

import logging

import pytest
from horovod.agent.seldom import Seldom


@pytest.fixture
def log() -> logging.Logger:
    log = logging.getLogger("test.seldom")
    log.propagate = True
    return log


def test_one_line_of_a_kind_in_ten_seconds(log: logging.Logger, caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    seldom = Seldom(log, lambda: now)
    for number in range(100):
        seldom.warning("Ended the connection of process %d: %s.", number, "why")
    seldom.warning("Another: %s", "x")
    assert caplog.messages == ["Ended the connection of process 0: why.", "Another: x"]
    caplog.clear()
    now = 10.0
    seldom.warning("Ended the connection of process %d: %s.", 100, "why")
    assert caplog.messages == [
        "99 more like it: Ended the connection of process …",
        "Ended the connection of process 100: why.",
    ]
    caplog.clear()
    seldom.warning("Ended the connection of process %d: %s.", 101, "why")
    seldom.close()
    seldom.close()
    assert caplog.messages == ["1 more like it: Ended the connection of process …"]
