"""How each peer does what a case asks for.  A driver is imported only in its own ranks."""

from __future__ import annotations

import argparse
import importlib
from typing import Any, Protocol, runtime_checkable

from benchmarks.cases import Case


class Task(Protocol):
    """A prepared case."""

    def check(self) -> None:
        """Raises AssertionError when a result is wrong."""
        ...

    def run(self, count: int) -> None:
        """That many repetitions."""
        ...


@runtime_checkable
class TimesItself(Protocol):
    """A task whose repetitions have something around them that is not to be timed."""

    def timed(self, count: int) -> list[float]:
        """Seconds of each of that many repetitions."""
        ...


class Idle:
    """What a rank does while another one is measured by itself."""

    def check(self) -> None:
        """Nothing can be wrong."""

    def run(self, count: int) -> None:
        """Sleeps on, as nobody needs this rank."""

    def timed(self, count: int) -> list[float]:
        """As many samples as the other rank has; the slowest rank counts."""
        return [0.0] * count


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


_MODULES = {
    "hvd": "horovod",
    "horovod": "horovod",
    "gloo": "gloo",
    "openmpi": "openmpi",
    "raw": "raw",
    "keras": "keras_hvd",
    "mirrored": "mirrored",
}


def load_driver(arguments: argparse.Namespace) -> Driver:
    """Joins the other ranks of the peer that the command line names."""
    module: Any = importlib.import_module(f"benchmarks.drivers.{_MODULES[arguments.peer]}")
    driver: Driver = module.connect(arguments)
    return driver
