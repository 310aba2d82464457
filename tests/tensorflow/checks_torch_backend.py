"""Keras on the torch backend: the same numbers, and TensorFlow is never imported."""

from __future__ import annotations

import sys
from typing import Any

import horovod.keras as hvd
import horovod.torch as hvd_torch
import keras
import numpy as np
import pytest

# Keras itself may load TensorFlow later on, where it is installed: to seed it.
LOADED_BY_US = "tensorflow" in sys.modules


def data() -> tuple[Any, Any]:
    rng = np.random.default_rng(5)
    return rng.normal(size=(12, 6)).astype("float32"), rng.normal(size=(12, 2)).astype("float32")


def mine(rows: Any) -> Any:
    return rows[hvd.rank() :: hvd.size()]


def model(seed: int = 1) -> Any:
    keras.utils.set_random_seed(seed)
    return keras.Sequential([keras.Input((6,)), keras.layers.Dense(5, activation="tanh"), keras.layers.Dense(2)])


def fit(net: Any, optimizer: Any, x: Any, y: Any, **options: Any) -> Any:
    net.compile(optimizer=optimizer, loss="mse")
    return net.fit(x, y, batch_size=12, epochs=3, shuffle=False, verbose=0, **options)


def assert_like(trained: Any, plain: Any, tolerance: float) -> None:
    everybody = hvd_torch.allgather_object([w.tobytes() for w in trained.get_weights()])
    assert everybody[0] == everybody[-1]
    for got, expected in zip(trained.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(got, expected, atol=tolerance, rtol=0)


def check_fit_gives_the_weights_of_one_process() -> None:
    assert keras.backend.backend() == "torch"
    x, y = data()
    for make in (
        lambda: keras.optimizers.SGD(0.1, momentum=0.9, clipnorm=0.5), lambda: keras.optimizers.Adam(0.01),
        lambda: keras.optimizers.AdamW(0.01, weight_decay=0.1),
        lambda: keras.optimizers.SGD(0.1, gradient_accumulation_steps=2),
    ):  # fmt: skip
        plain, trained = model(), model()
        fit(plain, make(), x, y)
        fit(trained, hvd.DistributedOptimizer(make()), mine(x), mine(y))
        assert_like(trained, plain, 1e-5)


def check_loss_scaling() -> None:
    x, y = data()
    make = lambda: keras.optimizers.SGD(0.1)  # noqa: E731
    scale = keras.optimizers.LossScaleOptimizer
    plain, trained, other = model(), model(), model()
    fit(plain, scale(make()), x, y)
    fit(trained, hvd.DistributedOptimizer(scale(make())), mine(x), mine(y))
    fit(other, scale(hvd.DistributedOptimizer(make())), mine(x), mine(y))
    assert_like(trained, plain, 1e-5)
    assert_like(other, plain, 1e-5)


def check_callbacks() -> None:
    x, y = data()
    net = model(hvd.rank())
    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback(),
        hvd.callbacks.LearningRateWarmupCallback(0.1, 2),
    ]  # fmt: skip
    history = fit(net, hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), mine(x), mine(y), callbacks=callbacks)
    assert_like(net, net, 0.0)
    losses = hvd_torch.allgather_object(history.history["loss"])
    assert losses[0] == losses[1]


def check_values() -> None:
    assert float(hvd.allreduce(1.0 + hvd.rank())) == (hvd.size() + 1) / 2
    assert np.asarray(hvd.allgather(np.array([hvd.rank()]))).tolist() == list(range(hvd.size()))
    assert hvd.Compression is hvd_torch.Compression
    with pytest.raises(RuntimeError, match="BroadcastGlobalVariablesCallback"):
        hvd.broadcast_global_variables(0)


def check_tensorflow_was_not_imported() -> None:
    assert not LOADED_BY_US
    assert not [name for name in sys.modules if name.startswith("horovod.tensorflow")]
