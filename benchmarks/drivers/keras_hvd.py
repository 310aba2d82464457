"""Ranks that use ``horovod.tensorflow.keras``."""

from __future__ import annotations

import argparse
from typing import Any

import horovod.tensorflow.keras as hvd
import keras
import tensorflow as tf

from benchmarks.cases import Case
from benchmarks.drivers import Idle, Task
from benchmarks.drivers.fit import FitTask, batches, build_model, limit_threads, make_optimizer

API: Any = hvd


class KerasDriver:
    """One rank."""

    def __init__(self) -> None:
        API.init()
        self.rank: int = API.rank()
        self.size: int = API.size()

    def make(self, case: Case) -> Task:
        """Prepares a case."""
        if case.kind == "fit-single" and self.rank:
            return Idle()
        model, optimizer = build_model(case), make_optimizer()
        model.compile(optimizer=API.DistributedOptimizer(optimizer) if case.kind == "fit" else optimizer, loss="mse")
        return FitTask(model, batches(case, self.rank, case.batch))

    def settle(self) -> None:
        """Nothing to do: nobody needs a rank whose operations are over."""

    def versions(self) -> dict[str, str]:
        """Of the frameworks."""
        return {"tensorflow": tf.__version__, "keras": keras.__version__}

    def close(self) -> None:
        """Leaves the job."""
        API.shutdown()


def connect(arguments: argparse.Namespace) -> KerasDriver:
    """Joins the job; the launcher has said which."""
    # A rank by itself would otherwise take the cores of those that it is compared with.
    limit_threads(arguments.threads, operations=arguments.threads)
    return KerasDriver()
