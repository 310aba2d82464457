"""Starts jobs: ``horovodrun`` on the command line, ``horovod.run`` in a program.

``run`` is loaded when it is first asked for: ranks import this package too, and must not load a coordinator.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from horovod.runner.api import run

__all__ = ["run"]


def __getattr__(name: str) -> object:
    if name == "run":
        from horovod.runner.api import run

        return run
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
