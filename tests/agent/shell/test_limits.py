"""Limits of the machine are told apart from mistakes of ours."""

from __future__ import annotations

import errno

from horovod.agent.limits import shortage


def test_limits_say_what_to_raise() -> None:
    assert "open files (ulimit -n) is too low" in shortage(OSError(errno.EMFILE, "Too many open files"))
    assert shortage(MemoryError()) == "There is not enough memory."


def test_causes_count_and_other_errors_do_not() -> None:
    error = RuntimeError("no loop")
    error.__cause__ = OSError(errno.EMFILE, "Too many open files")
    assert "ulimit -n" in shortage(error)
    assert shortage(ValueError("x")) == shortage(OSError(errno.EPERM, "x")) == ""
