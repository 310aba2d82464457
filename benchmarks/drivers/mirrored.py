"""Ranks that use ``tf.distribute.MultiWorkerMirroredStrategy`` with its ring over gRPC.

``fit`` of Keras 3.15 can't start with several workers: it reduces a batch, and then numbers without dimensions, by calls
that refuse them.  The model here leaves out these two, and is otherwise what ``fit`` makes of it.
"""

from __future__ import annotations

import argparse
import json
import os
from typing import Any

import keras
import tensorflow as tf

from benchmarks.cases import Case
from benchmarks.drivers import Task
from benchmarks.drivers.fit import FitTask, batches, build_model, limit_threads, make_optimizer


class Mended(keras.Sequential):  # type: ignore[misc]
    """``fit`` without its two calls that fail."""

    train_function: Any

    def _maybe_symbolic_build(self, iterator: Any = None, data_batch: Any = None) -> None:
        with self.distribute_strategy.scope():
            self._symbolic_build(
                data_batch=(tf.zeros((1, *self.input_shape[1:])), tf.zeros((1, *self.output_shape[1:])))
            )

    def make_train_function(self, force: bool = False) -> None:
        """A step of this worker, whose metrics are its own, as they are with Horovod."""
        if self.train_function is not None and not force:
            return
        strategy = self.distribute_strategy

        @tf.function  # type: ignore[untyped-decorator]
        def step(data: Any) -> Any:
            logs = strategy.run(self.train_step, args=(data,))
            return {name: strategy.experimental_local_results(value)[0] for name, value in logs.items()}

        self.train_function = lambda iterator: step(next(iterator))


class MirroredDriver:
    """One worker."""

    def __init__(self, rank: int, size: int) -> None:
        distribute = tf.distribute.experimental
        ring = distribute.CommunicationOptions(implementation=distribute.CommunicationImplementation.RING)
        self.rank, self.size = rank, size
        self._strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=ring)

    def make(self, case: Case) -> Task:
        """Prepares a case; the strategy cuts every batch into the workers' parts."""
        with self._strategy.scope():
            model = build_model(case, Mended)
            model.compile(optimizer=make_optimizer(), loss="mse")
        return FitTask(model, batches(case, self.rank, case.batch * self.size))

    def settle(self) -> None:
        """Nothing to do: the strategy's threads go on by themselves."""

    def versions(self) -> dict[str, str]:
        """Of the frameworks."""
        return {"tensorflow": tf.__version__, "keras": keras.__version__}

    def close(self) -> None:
        """Nothing to do: a worker leaves by ending."""


def connect(arguments: argparse.Namespace) -> MirroredDriver:
    """Joins the workers whose addresses the parent has chosen."""
    limit_threads(arguments.threads)
    addresses = json.loads(os.environ["TF_CONFIG"])["cluster"]["worker"][: arguments.size]
    task = {"type": "worker", "index": arguments.rank}
    os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": addresses}, "task": task})
    return MirroredDriver(arguments.rank, arguments.size)
