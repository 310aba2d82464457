"""How each peer does what a case asks for.  A driver is imported only in its own ranks."""

from __future__ import annotations

import argparse
import importlib
from typing import Any, Protocol

from benchmarks.cases import Case


class Task(Protocol):
    """A prepared case."""

    def check(self) -> None:
        """Raises AssertionError when a result is wrong."""
        ...

    def run(self, count: int) -> None:
        """That many repetitions."""
        ...


class Driver(Protocol):
    """One rank of one peer."""

    rank: int
    size: int

    def make(self, case: Case) -> Task:
        """Prepares a case; raises Unsupported for what the peer can't do."""
        ...

    def settle(self) -> None:
        """Called after each order: finishes what another rank may still need from this one, which will now sleep."""
        ...

    def versions(self) -> dict[str, str]:
        """What is being measured."""
        ...

    def close(self) -> None:
        """Leaves the other ranks."""
        ...


_MODULES = {"hvd": "horovod", "horovod": "horovod", "gloo": "gloo", "openmpi": "openmpi", "raw": "raw"}


def load_driver(arguments: argparse.Namespace) -> Driver:
    """Joins the other ranks of the peer that the command line names."""
    module: Any = importlib.import_module(f"benchmarks.drivers.{_MODULES[arguments.peer]}")
    driver: Driver = module.connect(arguments)
    return driver
