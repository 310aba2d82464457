"""How long a process waits that was started by hand."""

from __future__ import annotations

import logging

import pytest
from horovod.common.config import read_settings
from horovod.common.exceptions import StartError
from horovod.common.patience import Patience


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_word_every_half_minute_and_an_end_at_the_limit(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    patience = Patience(70, clock)
    patience.text = "1 of 2 ranks have come."
    said = []
    with caplog.at_level(logging.WARNING, "horovod"):
        while clock.now < 169.9:
            step = patience.look()
            assert 0 < step <= 1
            clock.now += step
        said = caplog.messages[:]
        clock.now = 170.0
        with pytest.raises(StartError, match=r"waited for 70 s\. 1 of 2 ranks have come\. The start timeout of 70 s"):
            patience.look()
    assert said == [f"hvd.init() has waited for {seconds} s. 1 of 2 ranks have come." for seconds in (30, 60)]


def test_without_a_limit_it_waits_for_ever_but_not_for_an_agent() -> None:
    clock = Clock()
    patience = Patience(0, clock)
    assert not patience.is_over_for_agent
    clock.now += 1e6
    assert patience.look() == 1
    assert patience.is_over_for_agent


def settings(monkeypatch: pytest.MonkeyPatch, **variables: str) -> tuple[int, int, bool, float]:
    for name in ("HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_AGENT", "HVD_SLOT_NONCE", "HOROVOD_START_TIMEOUT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    found = read_settings()
    return found.rank, found.size, found.is_guest, found.start_timeout_s


def test_a_process_with_an_agent_alone_does_not_know_its_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    assert settings(monkeypatch) == (0, 1, False, 0)
    assert settings(monkeypatch, HOROVOD_AGENT="unix:/x") == (-1, 0, True, 0)
    assert settings(monkeypatch, HOROVOD_AGENT="unix:/x", HOROVOD_RANK="3", HOROVOD_START_TIMEOUT="2.5") == (
        3,
        0,
        True,
        2.5,
    )
    assert settings(monkeypatch, HOROVOD_AGENT="unix:/x", HVD_SLOT_NONCE="n") == (0, 1, False, 0)


@pytest.mark.parametrize(
    "variables",
    [
        {"HOROVOD_RANK": "2", "HOROVOD_SIZE": "2"},
        {"HOROVOD_RANK": "-1"},
        {"HOROVOD_RANK": "-2"},
        {"HOROVOD_START_TIMEOUT": "soon"},
    ],
)
def test_values_that_make_no_sense_are_refused(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]) -> None:
    with pytest.raises(StartError, match=next(iter(variables))):
        settings(monkeypatch, HOROVOD_AGENT="unix:/x", **variables)
