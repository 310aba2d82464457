"""What the drivers that use Keras have in common: a model and its data, and ``model.fit`` timed batch by batch."""

from __future__ import annotations

import time
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from benchmarks.cases import SEED, Case, Unsupported

BATCHES = 8  # different ones, over and over


def limit_threads(threads: int, operations: int = 0) -> None:
    """So many threads for one operation, and so many operations at a time; 0 is TensorFlow's default, the cores."""
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(operations)


def build_model(case: Case, kind: Any = keras.Sequential) -> Any:
    """Fully connected layers as the shapes say, behind a normalization without centers: one vector more.

    Returns a model of that class, not compiled.
    """
    if case.kind not in ("fit", "fit-alone", "fit-single"):
        raise Unsupported(f"Keras has no {case.kind} here")
    keras.utils.set_random_seed(SEED)
    weights = [shape for shape in case.shapes if len(shape) == 2]
    layers = [keras.layers.Dense(columns) for _, columns in weights]
    return kind([keras.Input((weights[0][0],)), keras.layers.LayerNormalization(center=False), *layers])


def make_optimizer() -> Any:
    """The same as with torch."""
    return keras.optimizers.SGD(1e-4)


def batches(case: Case, rank: int, rows: int) -> Any:
    """Batches of that many rows without an end; every rank has its own."""
    rng = np.random.default_rng(SEED + rank)
    inputs, outputs = case.shapes[0][0], case.shapes[-2][1]
    x = rng.normal(size=(BATCHES * rows, inputs)).astype("float32")
    y = rng.normal(size=(BATCHES * rows, outputs)).astype("float32")
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(rows).cache().repeat().with_options(options)


class _Clock(keras.callbacks.Callback):  # type: ignore[misc]
    """Seconds of each batch, from its end to the end of the one before it."""

    def __init__(self) -> None:
        super().__init__()
        self.ends: list[float] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.ends.append(time.perf_counter())


class FitTask:
    """``model.fit`` of a compiled model."""

    def __init__(self, model: Any, data: Any) -> None:
        self.model, self.data = model, data

    def check(self) -> None:
        """A step gives finite numbers."""
        self.run(1)
        assert all(bool(np.isfinite(weights).all()) for weights in self.model.get_weights())

    def run(self, count: int) -> None:
        """That many steps, in one epoch."""
        self._fit(count, [])

    def timed(self, count: int) -> list[float]:
        """Seconds of that many steps of one epoch, whose first step is not counted: no start of an epoch is in them."""
        clock = _Clock()
        self._fit(count + 1, [clock])
        return [end - start for start, end in zip(clock.ends, clock.ends[1:], strict=False)]

    def _fit(self, count: int, callbacks: list[Any]) -> None:
        self.model.fit(self.data, steps_per_epoch=count, epochs=1, shuffle=False, verbose=0, callbacks=callbacks)
