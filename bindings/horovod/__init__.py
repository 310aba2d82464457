"""Distributed training: ``import horovod.torch as hvd`` and start the program with ``horovodrun -np N``.

``horovod.run`` runs a function on several ranks; the launcher behind it is loaded when it is first asked for, so that a
training process never loads it.
"""

from __future__ import annotations

import importlib

from horovod.common.missing import missing_attribute, watch_imports

__all__ = ["__version__", "run"]

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    if name == "run":
        return importlib.import_module("horovod.runner").run
    raise missing_attribute(__name__, name)


watch_imports()
