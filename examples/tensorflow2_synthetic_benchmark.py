"""Images per second of a training loop on random data, with the flags of Horovod's script of this name.

horovodrun -np 2 python examples/tensorflow2_synthetic_benchmark.py --model MobileNetV2 --batch-size 8
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import horovod.tensorflow as hvd
import keras
import numpy as np
import tensorflow as tf


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--fp16-allreduce", action="store_true", help="send gradients as float16")
    parser.add_argument("--model", default="ResNet50", help="a name in keras.applications")
    parser.add_argument("--batch-size", type=int, default=32, help="images per rank and step")
    parser.add_argument("--image-size", type=int, default=224, help="height and width")
    parser.add_argument("--num-warmup-batches", type=int, default=10, help="steps that are not timed")
    parser.add_argument("--num-batches-per-iter", type=int, default=10, help="steps of each measurement")
    parser.add_argument("--num-iters", type=int, default=10, help="measurements")
    parser.add_argument("--no-cuda", action="store_true", help="stay on the CPU")
    return parser.parse_args()


def make_step(arguments: argparse.Namespace) -> Any:
    """A function that trains on one batch."""
    size = arguments.image_size
    model = getattr(keras.applications, arguments.model)(weights=None, input_shape=(size, size, 3))
    optimizer = keras.optimizers.SGD(0.01)
    compression = hvd.Compression.fp16 if arguments.fp16_allreduce else hvd.Compression.none
    loss_of = keras.losses.SparseCategoricalCrossentropy()
    images = tf.random.uniform([arguments.batch_size, size, size, 3])
    labels = tf.random.uniform([arguments.batch_size], maxval=1000, dtype=tf.int64)

    @tf.function  # type: ignore[untyped-decorator]
    def step() -> None:
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(images, training=True))
        tape = hvd.DistributedGradientTape(tape, compression=compression)
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)

    optimizer.build(model.trainable_variables)
    hvd.broadcast_variables([*model.variables, *optimizer.variables], root_rank=0)
    return step


def say(text: str) -> None:
    """Prints on rank 0."""
    if hvd.rank() == 0:
        print(text, flush=True)


def main() -> None:
    """Measures, and prints the mean of this rank and of all."""
    arguments = parse()
    if arguments.no_cuda:
        tf.config.set_visible_devices([], "GPU")
    hvd.init()
    say(f"Model: {arguments.model}\nBatch size: {arguments.batch_size}\nNumber of ranks: {hvd.size()}")
    step = make_step(arguments)
    for _ in range(arguments.num_warmup_batches):
        step()
    speeds = []
    for number in range(arguments.num_iters):
        start = time.perf_counter()
        for _ in range(arguments.num_batches_per_iter):
            step()
        speeds.append(arguments.batch_size * arguments.num_batches_per_iter / (time.perf_counter() - start))
        say(f"Iter #{number}: {speeds[-1]:.1f} img/sec per rank")
    mean, spread = np.mean(speeds), 1.96 * np.std(speeds)
    say(f"Img/sec per rank: {mean:.1f} +-{spread:.1f}")
    say(f"Total img/sec on {hvd.size()} rank(s): {hvd.size() * mean:.1f} +-{hvd.size() * spread:.1f}")
    hvd.shutdown()


if __name__ == "__main__":
    main()
