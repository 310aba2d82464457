"""Memory of long loops, eagerly, where nothing is traced once and used again."""

from __future__ import annotations

import gc
from collections.abc import Callable

import horovod.tensorflow as hvd
import psutil
import tensorflow as tf

STEPS = 1500
GROWN_BYTES = 20 << 20


def growth(step: Callable[[int], None]) -> int:
    """Bytes that this process has more after all steps than after the first 200."""
    for number in range(200):
        step(number)
    gc.collect()
    before = psutil.Process().memory_info().rss
    for number in range(200, STEPS):
        step(number)
    gc.collect()
    return int(psutil.Process().memory_info().rss) - before


def check_steps_of_a_tape() -> None:
    """Row P60."""
    variables = [tf.Variable(tf.zeros(1000)), tf.Variable(tf.zeros((100, 10)))]

    def step(number: int) -> None:
        with tf.GradientTape() as tape:
            loss = tf.add_n([tf.reduce_sum(v * float(number)) for v in variables])
        hvd.DistributedGradientTape(tape).gradient(loss, variables)

    assert growth(step) < GROWN_BYTES


def check_gathers_of_changing_shapes() -> None:
    """Row P60."""

    def step(number: int) -> None:
        rows = number % 97 + hvd.rank()
        hvd.allgather(tf.zeros((rows, 3)))
        hvd.allreduce(tf.IndexedSlices(tf.ones((rows, 2)), tf.range(rows), tf.constant([200, 2])))

    assert growth(step) < GROWN_BYTES
