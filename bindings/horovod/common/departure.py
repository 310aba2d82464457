"""Whether this process ends because of an exception of its main thread that nobody caught.

The interpreter notes such an exception before it reports it, so no hook of the program is touched.  Exit codes are for
the agent to see.
"""

from __future__ import annotations

import sys
import threading

__all__ = ["main_has_failed", "reason"]

_LONGEST_TEXT = 300
_OUTERMOST = ("<module>", "_run_module_as_main")


def reason() -> str:
    """``raised KeyError: 'x'``, as others are told; empty when nothing is known to be wrong."""
    error = getattr(sys, "last_value", None)
    if not isinstance(error, BaseException) or not _left_the_program(error):
        return ""
    lines = str(error).splitlines()
    text = f"raised {type(error).__name__}{f': {lines[0]}' if lines else ''}"
    return text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]} …"


def main_has_failed() -> bool:
    """Whether the main thread is over, by an exception, and other threads keep the process alive."""
    return not threading.main_thread().is_alive() and bool(reason())


def _left_the_program(error: BaseException) -> bool:
    """Consoles and test runners note exceptions, too, and live on: theirs were caught further in."""
    if sys.flags.interactive or hasattr(sys, "ps1") or error.__traceback__ is None:
        return False
    return error.__traceback__.tb_frame.f_code.co_name in _OUTERMOST
