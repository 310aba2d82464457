"""Parts of Horovod that this release does not have: importing one says so, asking for one finds nothing.

``import horovod.mxnet`` raises ModuleNotFoundError as for any module that is not there, with a text that helps.
``importlib.util.find_spec`` and ``hasattr`` answer as for any module and attribute that is not there.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import FrameType, ModuleType

__all__ = ["missing_attribute", "watch_imports"]

_ROADMAP = "See docs/roadmap.md for what comes when."
_MODULES = {
    "horovod.mxnet": "MXNet is not supported",
    "horovod.spark": "Spark is not supported yet",
    "horovod.ray": "Ray is not supported yet",
    "horovod.runner.elastic": "elastic jobs are not supported yet",
}


class _Finder(importlib.abc.MetaPathFinder):
    """Asked last, so a module that is there after all is found before."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """None, unless this is an import of one of the missing modules."""
        reason = _MODULES.get(fullname)
        if reason is not None and not _is_a_question(sys._getframe(1)):
            raise ModuleNotFoundError(
                f"No module named {fullname!r}: {reason} in this release. {_ROADMAP}", name=fullname
            )
        return None


def _is_a_question(frame: FrameType | None) -> bool:
    """Whether ``importlib.util.find_spec`` asks, beyond the import system's own frame."""
    asker = frame.f_back if frame is not None else None
    return asker is not None and asker.f_globals.get("__name__") == "importlib.util"


def watch_imports() -> None:
    """From now on, importing a missing part says more; calling it again changes nothing."""
    if not any(type(finder).__module__ == __name__ for finder in sys.meta_path):
        sys.meta_path.append(_Finder())


def missing_attribute(module: str, name: str) -> AttributeError:
    """The error for an attribute that a module does not have."""
    return AttributeError(f"module {module!r} has no attribute {name!r}", name=name)
