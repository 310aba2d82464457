"""Trains a small CNN with Keras on scikit-learn's scans of handwritten digits, one shard per rank.

horovodrun -np 2 python examples/tensorflow2_keras_digits.py
python examples/tensorflow2_keras_digits.py                    # one process, the same script
"""

from __future__ import annotations

import argparse
from typing import Any

import horovod.tensorflow.keras as hvd
import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits


def load_data() -> tuple[Any, Any, Any, Any]:
    """Training and test images with their labels; the split is the same on every rank."""
    digits = load_digits()
    images = (digits.images / 16.0).astype("float32")[..., None]
    order = np.random.default_rng(1).permutation(len(images))
    train, test = order[360:], order[:360]
    return images[train], digits.target[train], images[test], digits.target[test]


def make_model() -> Any:
    """Two convolutions and two dense layers for 8 x 8 images."""
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(16, 3, padding="same", activation="relu"),
            keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dropout(0.3),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10),
        ]
    )


def main() -> None:
    """Parses the arguments, trains, prints the accuracy on rank 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=32, help="per rank")
    arguments = parser.parse_args()

    hvd.init()
    tf.config.threading.set_intra_op_parallelism_threads(1)  # ranks share the cores
    keras.utils.set_random_seed(42 + hvd.rank())
    x, y, test_x, test_y = load_data()
    # Every rank makes as many steps: ranks whose shard is longer by one leave one image out.
    share = len(x) // hvd.size()
    x, y = x[hvd.rank() :: hvd.size()][:share], y[hvd.rank() :: hvd.size()][:share]

    # Each step sees size() times as many images: the rate grows with it, here by the square root, which suits Adam.
    rate = 2e-3 * hvd.size() ** 0.5
    model = make_model()
    model.compile(
        optimizer=hvd.DistributedOptimizer(keras.optimizers.Adam(rate)),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
        hvd.callbacks.LearningRateWarmupCallback(rate, warmup_epochs=3, momentum_correction=False),
    ]
    model.fit(
        x, y, batch_size=arguments.batch_size, epochs=arguments.epochs, callbacks=callbacks,
        verbose=2 if hvd.rank() == 0 else 0,
    )  # fmt: skip
    _, accuracy = model.evaluate(test_x, test_y, verbose=0)
    if hvd.rank() == 0:
        print(f"test accuracy {accuracy:.2%} on {hvd.size()} rank(s)")
    hvd.shutdown()


if __name__ == "__main__":
    main()
