"""What a process can say of its end."""

from __future__ import annotations

import sys

import pytest
from horovod.common import departure


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    shown: list[object] = []
    monkeypatch.setattr(departure, "_watching", False)
    monkeypatch.setattr(departure, "_reason", "")
    monkeypatch.setattr(sys, "excepthook", lambda kind, error, trace: shown.append(error))
    monkeypatch.setattr(sys, "exit", sys.exit)
    departure.watch(lambda: None)
    return shown


@pytest.mark.parametrize(
    ("status", "text"), [(3, "called sys.exit(3)"), ("no", "called sys.exit('no')"), (0, ""), (None, "")]
)
def test_exit_codes(shown: list[object], status: object, text: str) -> None:
    with pytest.raises(SystemExit) as caught:
        sys.exit(status)  # type: ignore[arg-type]
    assert caught.value.code == status
    assert departure.reason() == text


def test_who_exits_in_order_after_all(shown: list[object]) -> None:
    for status in (3, 0):
        with pytest.raises(SystemExit):
            sys.exit(status)
    assert departure.reason() == ""


def test_a_hook_that_the_program_calls_is_no_end(shown: list[object]) -> None:
    error = KeyError("x")
    sys.excepthook(KeyError, error, None)
    assert (shown, departure.reason()) == ([error], "")


def test_watching_again_forgets_the_past(shown: list[object]) -> None:
    hook = sys.excepthook
    with pytest.raises(SystemExit):
        sys.exit(3)
    departure.watch(lambda: None)
    assert departure.reason() == ""
    assert sys.excepthook is hook


def test_long_reasons_are_cut(shown: list[object]) -> None:
    with pytest.raises(SystemExit):
        sys.exit("x" * 1000)
    assert len(departure.reason()) < 310
