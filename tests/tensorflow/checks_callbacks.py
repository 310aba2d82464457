"""Callbacks on ranks: equal starts, averaged metrics, learning rates batch by batch."""

from __future__ import annotations

import csv
import tempfile
import warnings
from pathlib import Path
from typing import Any

import horovod.tensorflow as hvd_tf
import horovod.tensorflow.keras as hvd
import keras
import numpy as np
import pytest
from horovod.common.exceptions import HorovodInternalError

from tests.tensorflow.checks_keras import assert_everywhere_the_same, data, mean_of_ranks, mine, model, weights


class _Rates(keras.callbacks.Callback):
    """What the optimizer has during each batch, and after it."""

    def __init__(self) -> None:
        super().__init__()
        self.rates: list[float] = []
        self.momenta: list[float] = []
        self.after: list[float] = []

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.rates.append(float(keras.ops.convert_to_numpy(self.model.optimizer.learning_rate)))
        self.momenta.append(self.model.optimizer.momentum)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.after.append(self.model.optimizer.momentum)


def train(callback: Any, epochs: int, steps: int = 10, optimizer: Any = None, start: int = 0, **options: Any) -> Any:
    net, watch = model(), _Rates()
    optimizer = hvd.DistributedOptimizer(optimizer or keras.optimizers.SGD(0.4))
    net.compile(optimizer=optimizer, loss="mse", **options)
    x, y = data(rows=steps)
    callbacks = [callback, *([watch] if hasattr(optimizer, "momentum") else [])]
    history = net.fit(x * 0, y * 0, batch_size=1, epochs=epochs, initial_epoch=start, verbose=0, callbacks=callbacks)
    return watch, history, net


def check_everything_is_broadcast() -> None:
    x, y = data()
    net = model(hvd.rank())
    optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(0.01 * (1 + hvd.rank())))
    net.compile(optimizer=optimizer, loss="mse")
    expected = hvd_tf.broadcast_object(weights(net), 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)  # the starts are equal: nothing to warn of
        callback = hvd.callbacks.BroadcastGlobalVariablesCallback(1)
        callback.set_model(net)
        net.fit(mine(x), mine(y), batch_size=8, epochs=1, verbose=0, callbacks=[callback])
    assert callback.broadcast_done
    assert_everywhere_the_same(*weights(net), *[v.numpy() for v in optimizer.variables])
    np.testing.assert_allclose(float(optimizer.learning_rate), 0.02)
    assert all(np.max(np.abs(a - b)) < 0.1 for a, b in zip(weights(net), expected, strict=True))


def check_a_model_without_shapes_is_broadcast_after_its_first_batch() -> None:
    keras.utils.set_random_seed(hvd.rank())
    net = keras.Sequential([keras.layers.Dense(3), keras.layers.Dense(2)])
    net.compile(optimizer=hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), loss="mse")
    x, y = data()
    net.fit(mine(x), mine(y), epochs=2, verbose=0, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])
    assert_everywhere_the_same(*weights(net))


def check_local_variables_are_left_alone() -> None:
    net = model(hvd.rank())
    net.compile(optimizer=hvd.DistributedOptimizer(keras.optimizers.SGD(0.0)), loss="mse")
    kept = net.layers[-1].kernel.numpy()
    callback = hvd.callbacks.BroadcastGlobalVariablesCallback(0, local_variables=net.layers[-1].kernel)
    x, y = data()
    with pytest.warns(RuntimeWarning, match="differ"):
        net.fit(mine(x), mine(y), epochs=1, verbose=0, callbacks=[callback])
    assert np.array_equal(net.layers[-1].kernel.numpy(), kept)
    assert_everywhere_the_same(net.layers[0].kernel.numpy())
    with pytest.raises(ValueError, match="local_variables"):
        hvd.callbacks.BroadcastGlobalVariablesCallback(0, local_variables="x")


def check_metrics_are_averaged_for_all_who_read_them() -> None:
    """Row P37."""
    seen: list[float] = []

    class Reader(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            seen.append(logs["number"])

    def number(true: Any, predicted: Any) -> Any:
        return keras.ops.cast(hvd.rank(), "float32") + 0.0 * keras.ops.mean(predicted)

    net = model()
    net.compile(optimizer=hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), loss="mse", metrics=[number])
    x, y = data()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log.csv"
        callbacks = [hvd.callbacks.MetricAverageCallback(), keras.callbacks.CSVLogger(str(path)), Reader()]
        history = net.fit(mine(x), mine(y), epochs=2, verbose=0, callbacks=callbacks)
        written = [float(row["number"]) for row in csv.DictReader(path.open())]
    assert written == seen == history.history["number"] == [(hvd.size() - 1) / 2] * 2
    assert_everywhere_the_same(history.history["loss"])


def check_metrics_of_one_rank_are_told() -> None:
    callback = hvd.callbacks.MetricAverageCallback()
    logs = {"loss": 1.0} if hvd.rank() else {"loss": 1.0, "val_loss": 2.0}
    with pytest.raises(
        HorovodInternalError, match=r"rank 0 has the metrics \['loss', 'val_loss'\], rank 1 has \['loss'\]"
    ):
        callback.on_epoch_end(0, logs)


def check_unequal_numbers_of_batches_are_told() -> None:
    """Row P38: both counts, before the first step."""
    net = model()
    net.compile(optimizer=hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), loss="mse")
    x, y = data(rows=5 + hvd.rank())
    callback = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    with pytest.raises(HorovodInternalError, match=r"rank 0 has 5, rank 1 has 6.* to 5 batches"):
        net.fit(x, y, batch_size=1, epochs=3, verbose=0, callbacks=[callback])
    net.fit(x[:5], y[:5], batch_size=1, epochs=3, verbose=0, callbacks=[callback])
    assert_everywhere_the_same(*weights(net))


def check_warm_up() -> None:
    """Row S42."""
    expected = lambda epochs: 0.4 / hvd.size() * (epochs * (hvd.size() - 1) / 5 + 1)  # noqa: E731
    watch, history, _ = train(hvd.callbacks.LearningRateWarmupCallback(0.4, 5, verbose=1), 6)
    np.testing.assert_allclose([watch.rates[0], watch.rates[49], watch.rates[59]], [expected(0.1), 0.4, 0.4], rtol=1e-6)
    np.testing.assert_allclose(history.history["lr"][4], 0.4, rtol=1e-6)
    resumed, _, _ = train(hvd.callbacks.LearningRateWarmupCallback(0.4, 5), 3, start=2)
    np.testing.assert_allclose(resumed.rates[0], expected(2.1), rtol=1e-6)


def check_schedules() -> None:
    """Row S42."""
    watch, _, _ = train(hvd.callbacks.LearningRateScheduleCallback(0.4, 0.1, start_epoch=3), 5, steps=2)
    np.testing.assert_allclose(watch.rates[::2], [0.4, 0.4, 0.4, 0.4, 0.04], rtol=1e-6)
    smooth = hvd.callbacks.LearningRateScheduleCallback(1.0, lambda e: 1 + e, end_epoch=1, staircase=False)
    watch, _, _ = train(smooth, 2, steps=2)
    np.testing.assert_allclose(watch.rates, [1.0, 1.5, 1.5, 1.5], rtol=1e-6)
    with pytest.raises(ValueError, match="initial_lr"):
        hvd.callbacks.LearningRateScheduleCallback(None, 1.0)
    decay = keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5)
    with pytest.raises(ValueError, match="has a ExponentialDecay"):
        train(hvd.callbacks.LearningRateScheduleCallback(1.0, 1.0), 1, optimizer=keras.optimizers.SGD(decay))


def check_momentum_is_corrected_for_one_batch() -> None:
    """Row S42."""
    schedule = lambda: hvd.callbacks.LearningRateScheduleCallback(0.4, 0.5)  # noqa: E731
    sgd = lambda: keras.optimizers.SGD(0.4, momentum=0.8)  # noqa: E731
    watch, _, _ = train(schedule(), 2, 2, sgd(), run_eagerly=True)
    np.testing.assert_allclose(watch.momenta, [0.8, 0.8, 0.4, 0.8], rtol=1e-6)
    np.testing.assert_allclose(watch.after, [0.8] * 4)
    with pytest.warns(RuntimeWarning, match="momentum_correction=False"):
        train(schedule(), 2, 2, sgd())


def check_best_model_checkpoint() -> None:
    callback = hvd.callbacks.BestModelCheckpoint(monitor="loss")
    assert callback.filepath is None
    assert callback.save_best_only
    with tempfile.TemporaryDirectory() as folder:
        callback.filepath = str(Path(folder) / "best.keras")
        _, _, net = train(callback, 1)
        assert np.array_equal(weights(keras.models.load_model(callback.filepath))[0], weights(net)[0])


def check_values() -> None:
    me, size = hvd.rank(), hvd.size()
    assert float(hvd.allreduce(1.0 + me)) == mean_of_ranks()
    assert float(hvd.allreduce(1.0 + me, op=hvd.Sum)) == mean_of_ranks() * size
    assert np.asarray(hvd.allgather(np.array([me]))).tolist() == list(range(size))
    assert np.asarray(hvd.broadcast([me, 7], 1)).tolist() == [1, 7]
    assert np.asarray(hvd.reducescatter(np.ones((size, 2), "float32"), op=hvd.Sum)).tolist() == [[size, size]]
    with pytest.raises(RuntimeError, match="eager"):
        hvd.broadcast_global_variables(0)
