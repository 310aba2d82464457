"""Replays every scenario file; ``--rewrite-scenarios`` writes them anew."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.coordinator.scenario import files, replay


@pytest.mark.parametrize("path", files(), ids=lambda path: path.stem)
def test_scenario(path: Path, request: pytest.FixtureRequest) -> None:
    written = path.read_text()
    said = replay(written)
    if request.config.getoption("--rewrite-scenarios", default=False):
        path.write_text(said)
    else:
        assert said == written


def test_there_are_scenarios() -> None:
    assert len(files()) > 15


def test_replay_notices_a_wrong_log() -> None:
    text = "agent a alpha 2\n    a: Registered incarnation=2\n"
    assert replay(text) == "agent a alpha 2\n    a: Registered incarnation=1\n"
