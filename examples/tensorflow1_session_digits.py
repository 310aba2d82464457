"""Trains a linear classifier in a tf.compat.v1 session, as scripts for TensorFlow 1 do, on scikit-learn's digits.

horovodrun -np 2 python examples/tensorflow1_session_digits.py
"""

from __future__ import annotations

import argparse
from typing import Any

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

tf1: Any = tf.compat.v1


def load_data() -> tuple[Any, Any, Any, Any]:
    """Training and test images with their labels; the split is the same on every rank."""
    digits = load_digits()
    images, labels = (digits.data / 16.0).astype("float32"), digits.target.astype("int64")
    order = np.random.default_rng(1).permutation(len(images))
    train, test = order[360:], order[:360]
    return images[train], labels[train], images[test], labels[test]


def build(rate: float) -> dict[str, Any]:
    """The graph: placeholders, the operation that trains, and what it is measured by."""
    images = tf1.placeholder(tf.float32, [None, 64])
    labels = tf1.placeholder(tf.int64, [None])
    weights = tf1.get_variable("weights", [64, 10], initializer=tf1.glorot_uniform_initializer())
    bias = tf1.get_variable("bias", [10], initializer=tf1.zeros_initializer())
    scores = tf.matmul(images, weights) + bias
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=scores))
    optimizer = hvd.DistributedOptimizer(tf1.train.AdamOptimizer(rate))
    train = optimizer.minimize(loss, global_step=tf1.train.get_or_create_global_step())
    right = tf.reduce_mean(tf.cast(tf.equal(tf.argmax(scores, 1), labels), tf.float32))
    return {"images": images, "labels": labels, "train": train, "loss": loss, "accuracy": right}


def main() -> None:
    """Parses the arguments, trains, prints the accuracy on rank 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=400, help="of each rank")
    parser.add_argument("--batch-size", type=int, default=32, help="per rank")
    arguments = parser.parse_args()

    hvd.init()
    x, y, test_x, test_y = load_data()
    rng = np.random.default_rng(hvd.rank())
    with tf.Graph().as_default():
        graph = build(rate=5e-3 * hvd.size() ** 0.5)
        hooks = [hvd.BroadcastGlobalVariablesHook(0)]
        # Only one rank may write checkpoints: checkpoint_dir stays None on the others.
        with tf1.train.MonitoredTrainingSession(hooks=hooks) as session:
            # Every rank makes as many steps: a rank that stops earlier would leave the others waiting.
            for _ in range(arguments.steps):
                rows = rng.integers(0, len(x), arguments.batch_size)
                session.run(graph["train"], {graph["images"]: x[rows], graph["labels"]: y[rows]})
            accuracy = session.run(graph["accuracy"], {graph["images"]: test_x, graph["labels"]: test_y})
    if hvd.rank() == 0:
        print(f"test accuracy {accuracy:.2%} on {hvd.size()} rank(s)", flush=True)
    hvd.shutdown()


if __name__ == "__main__":
    main()
