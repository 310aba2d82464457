"""Why this process ends before its time: an exception of the main thread that nobody caught, or ``sys.exit`` with a code.

Owns the two hooks that know it, both put in front of what was there: ``sys.excepthook`` and ``sys.exit``.  An exception counts
only when the interpreter itself reports it: programs that call ``sys.excepthook`` by hand, and consoles, live on.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, NoReturn

__all__ = ["reason", "watch"]

_GRACE_S = 1.0  # the usual end of a process takes less; then atexit handlers come first, the program's own among them
_LONGEST_TEXT = 300

_reason = ""
_watching = False


def reason() -> str:
    """What this process died of, as others are told it; empty when nothing is known to be wrong."""
    return _reason


def watch(main_has_failed: Callable[[], None]) -> None:
    """Looks out from now on.  ``main_has_failed`` is called when the main thread is over and others keep the process alive."""
    global _watching, _reason
    _reason = ""
    if _watching:
        return
    _watching = True
    show, leave = sys.excepthook, sys.exit

    def excepthook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if _is_the_end(sys._getframe()):
            _note(f"raised {_describe(error)}")
            threading.Thread(target=_after_main, args=(main_has_failed,), name="hvd-farewell", daemon=True).start()
        show(kind, error, trace)

    def exit(status: Any = None, /) -> NoReturn:
        if threading.current_thread() is threading.main_thread():
            _note(f"called sys.exit({status!r})" if status else "")
        leave(status)

    sys.excepthook, sys.exit = excepthook, exit


def _note(text: str) -> None:
    global _reason
    _reason = text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]} …"


def _describe(error: BaseException) -> str:
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _is_the_end(frame: FrameType | None) -> bool:
    """Whether nothing of the program is on the stack any more, and no console waits for the next line."""
    if threading.current_thread() is not threading.main_thread() or sys.flags.interactive or hasattr(sys, "ps1"):
        return False
    while frame is not None:
        if frame.f_code.co_name == "<module>":
            return False
        frame = frame.f_back
    return True


def _after_main(main_has_failed: Callable[[], None]) -> None:
    threading.main_thread().join()
    threading.Event().wait(_GRACE_S)
    main_has_failed()
