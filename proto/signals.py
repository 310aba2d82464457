"""Heeds SIGINT, SIGTERM and SIGHUP from the first line of a program to its last.

A program's ``__main__`` imports this and nothing heavy, then calls ``run_program``: it takes over the signals before it loads
what takes time.  One handler stays installed until the process is gone; what it does changes.  Nobody listens yet, or any more:
the process ends at once, with a line.  A loop listens: it is called there.  So there is no moment in which a signal meets
Python's default, which is a traceback, or the system's, which is death without a word.
A signal that is ignored when the program starts (``nohup``, a job in the background of a script) stays ignored.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import socket
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio

__all__ = ["HEEDED", "heard_in_loop", "run_program"]

HEEDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_Listener = Callable[[signal.Signals], None]
_listener: _Listener | None = None


def _handle(number: int, frame: FrameType | None) -> None:
    if _listener is not None:
        _listener(signal.Signals(number))


def _take_over() -> dict[signal.Signals, object]:
    """Installs the handler where the signal is not ignored; what was there before."""
    before = {number: signal.getsignal(number) for number in HEEDED}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, _handle)
    return dict(before)


def run_program(name: str, module: str, code: Callable[[int], int]) -> int:
    """Calls ``run_commandline`` of the module, which is loaded with the signals heeded; the exit code.

    ``code(number)`` is the exit code after a signal that comes while nobody listens.
    """
    global _listener

    def end(number: signal.Signals) -> None:
        line = f"{name}: ended by {number.name}.\n".encode()
        with contextlib.suppress(OSError):
            os.write(2, line)
        os._exit(code(number))

    _listener = end
    _take_over()
    try:
        return int(importlib.import_module(module).run_commandline())
    finally:
        # What is left is the interpreter's own end, which would put the system's defaults back.
        for number in HEEDED:
            signal.signal(number, signal.SIG_IGN)


@contextlib.contextmanager
def heard_in_loop(loop: asyncio.AbstractEventLoop, hear: _Listener) -> Iterator[None]:
    """Inside, signals are heard by ``hear(number)``, in the loop.  For the main thread."""
    global _listener
    before = _take_over()
    wake, waker = socket.socketpair()
    wake.setblocking(False)
    waker.setblocking(False)
    loop.add_reader(wake, _drain, wake)
    outer_wakeup = signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
    outer, _listener = _listener, lambda number: _call(loop, hear, number)
    try:
        yield
    finally:
        _listener = outer
        signal.set_wakeup_fd(outer_wakeup)
        loop.remove_reader(wake)
        wake.close()
        waker.close()
        for number, handler in before.items():
            if handler not in (_handle, signal.SIG_IGN):
                signal.signal(number, handler)  # type: ignore[arg-type]


def _drain(wake: socket.socket) -> None:
    """The bytes only wake the loop up, so that Python comes to call the handler."""
    with contextlib.suppress(BlockingIOError):
        wake.recv(4096)


def _call(loop: asyncio.AbstractEventLoop, hear: _Listener, number: signal.Signals) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(hear, number)
