"""Trains a small network in a loop of its own, with hvd.DistributedGradientTape, on scikit-learn's scans of digits.

horovodrun -np 2 python examples/tensorflow2_tape_digits.py
"""

from __future__ import annotations

import argparse
from typing import Any

import horovod.tensorflow as hvd
import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits


def load_data() -> tuple[Any, Any, Any, Any]:
    """Training and test images with their labels; the split is the same on every rank."""
    digits = load_digits()
    images, labels = (digits.data / 16.0).astype("float32"), digits.target.astype("int64")
    order = np.random.default_rng(1).permutation(len(images))
    train, test = order[360:], order[:360]
    return images[train], labels[train], images[test], labels[test]


def batches(x: Any, y: Any, batch: int) -> Any:
    """This rank's part, shuffled anew in each epoch; every rank has as many batches."""
    share = len(x) // hvd.size()
    data = tf.data.Dataset.from_tensor_slices(
        (x[hvd.rank() :: hvd.size()][:share], y[hvd.rank() :: hvd.size()][:share])
    )
    return data.shuffle(share, seed=hvd.rank()).batch(batch)


def main() -> None:
    """Parses the arguments, trains, prints the accuracy on rank 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=32, help="per rank")
    arguments = parser.parse_args()

    hvd.init()
    keras.utils.set_random_seed(42)
    x, y, test_x, test_y = load_data()
    model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(64, activation="relu"), keras.layers.Dense(10)])
    optimizer = keras.optimizers.Adam(2e-3 * hvd.size() ** 0.5)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function  # type: ignore[untyped-decorator]
    def train_step(images: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(images, training=True))
        tape = hvd.DistributedGradientTape(tape)
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        return loss

    optimizer.build(model.trainable_variables)
    hvd.broadcast_variables(model.variables, root_rank=0)
    hvd.broadcast_variables(optimizer.variables, root_rank=0)
    data = batches(x, y, arguments.batch_size)
    for epoch in range(arguments.epochs):
        losses = [train_step(images, labels) for images, labels in data]
        # One collective for the epoch, not one for each batch.
        loss = hvd.allreduce(tf.reduce_mean(losses))
        if hvd.rank() == 0:
            print(f"epoch {epoch}: loss {float(loss):.4f}", flush=True)
    accuracy = np.mean(np.argmax(model(test_x), 1) == test_y)
    if hvd.rank() == 0:
        print(f"test accuracy {accuracy:.2%} on {hvd.size()} rank(s)", flush=True)
    hvd.shutdown()


if __name__ == "__main__":
    main()
