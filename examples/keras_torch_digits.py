"""Trains a small network with Keras on the torch backend; TensorFlow is not needed.

horovodrun -np 2 python examples/keras_torch_digits.py
"""

from __future__ import annotations

import argparse
import os
from typing import Any

# Before Keras is imported.
os.environ["KERAS_BACKEND"] = "torch"

import horovod.keras as hvd
import keras
import numpy as np
import torch
from sklearn.datasets import load_digits


def load_data() -> tuple[Any, Any, Any, Any]:
    """Training and test images with their labels; the split is the same on every rank."""
    digits = load_digits()
    images, labels = (digits.data / 16.0).astype("float32"), digits.target.astype("int64")
    order = np.random.default_rng(1).permutation(len(images))
    train, test = order[360:], order[:360]
    return images[train], labels[train], images[test], labels[test]


def main() -> None:
    """Parses the arguments, trains, prints the accuracy on rank 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=32, help="per rank")
    arguments = parser.parse_args()

    hvd.init()
    torch.set_num_threads(1)  # ranks share the cores
    keras.utils.set_random_seed(42 + hvd.rank())
    x, y, test_x, test_y = load_data()
    # Every rank makes as many steps.
    share = len(x) // hvd.size()
    x, y = x[hvd.rank() :: hvd.size()][:share], y[hvd.rank() :: hvd.size()][:share]
    model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(64, activation="relu"), keras.layers.Dense(10)])
    model.compile(
        optimizer=hvd.DistributedOptimizer(keras.optimizers.Adam(2e-3 * hvd.size() ** 0.5)),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    model.fit(
        x, y, batch_size=arguments.batch_size, epochs=arguments.epochs, verbose=2 if hvd.rank() == 0 else 0,
        callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback()],
    )  # fmt: skip
    _, accuracy = model.evaluate(test_x, test_y, verbose=0)
    if hvd.rank() == 0:
        print(f"test accuracy {accuracy:.2%} on {hvd.size()} rank(s)", flush=True)
    hvd.shutdown()


if __name__ == "__main__":
    main()
