"""What a process can say of its end."""

from __future__ import annotations

import sys

import pytest
from horovod.common import departure


def uncaught(code: str) -> BaseException:
    """The exception as it looks when it has left a script."""
    with pytest.raises(BaseException) as caught:
        exec(compile(code, "train.py", "exec"), {})
    error = caught.value
    while error.__traceback__ is not None and error.__traceback__.tb_frame.f_code.co_filename != "train.py":
        error = error.with_traceback(error.__traceback__.tb_next)
    return error


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("raise KeyError('x')", "raised KeyError: 'x'"),
        ("raise ValueError", "raised ValueError"),
        ("raise ValueError('one\\ntwo')", "raised ValueError: one"),
        ("def f(): raise KeyboardInterrupt\nf()", "raised KeyboardInterrupt"),
    ],
)
def test_an_exception_that_left_the_program(monkeypatch: pytest.MonkeyPatch, code: str, text: str) -> None:
    monkeypatch.setattr(sys, "last_value", uncaught(code), raising=False)
    assert departure.reason() == text
    assert not departure.main_has_failed()


def test_an_exception_that_a_test_runner_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KeyError) as caught:
        raise KeyError("x")
    monkeypatch.setattr(sys, "last_value", caught.value, raising=False)
    assert departure.reason() == ""


@pytest.mark.parametrize("noted", [None, "text", KeyError("never raised")])
def test_nothing_is_known(monkeypatch: pytest.MonkeyPatch, noted: object) -> None:
    monkeypatch.setattr(sys, "last_value", noted, raising=False)
    assert departure.reason() == ""


def test_a_console_lives_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "last_value", uncaught("raise KeyError"), raising=False)
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    assert departure.reason() == ""


def test_long_reasons_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "last_value", uncaught("raise KeyError('x' * 1000)"), raising=False)
    assert len(departure.reason()) < 310
