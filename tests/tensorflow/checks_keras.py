"""Keras on ranks: the weights of one process, reduction before clipping and finite checks, accumulation, saving.

Each check trains on its rank's share of a batch, and compares with a plain optimizer on the whole batch.
"""

from __future__ import annotations

import pickle
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import horovod.tensorflow as hvd_tf
import horovod.tensorflow.keras as hvd
import keras
import numpy as np
import pytest
import tensorflow as tf
from horovod.common import arrays

ROWS = 12  # as many for each of two, three or four ranks


def data(seed: int = 5, rows: int = ROWS) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(rows, 6)).astype("float32"), rng.normal(size=(rows, 2)).astype("float32")


def mine(rows: Any) -> Any:
    return rows[hvd.rank() :: hvd.size()]


def mean_of_ranks() -> float:
    """The average of 1 + rank."""
    return (hvd.size() + 1) / 2


def model(seed: int = 1, **options: Any) -> Any:
    keras.utils.set_random_seed(seed)
    layers = [keras.Input((6,)), keras.layers.Dense(5, activation="tanh"), keras.layers.Dense(2)]
    return keras.Sequential(layers, **options)


def assert_everywhere_the_same(*values: Any) -> None:
    """Bit by bit."""
    digests = hvd_tf.allgather_object([np.asarray(value).tobytes() for value in values])
    assert all(digest == digests[0] for digest in digests)


def weights(trained: Any) -> list[Any]:
    return [np.asarray(w) for w in trained.get_weights()]


def assert_like(trained: Any, plain: Any, tolerance: float = 2e-6) -> None:
    assert_everywhere_the_same(*weights(trained))
    for got, expected in zip(weights(trained), weights(plain), strict=True):
        np.testing.assert_allclose(got, expected, atol=tolerance, rtol=0)


def fit(trained: Any, optimizer: Any, x: Any, y: Any, batch: int, epochs: int = 3, **options: Any) -> Any:
    trained.compile(optimizer=optimizer, loss="mse", **options)
    return trained.fit(x, y, batch_size=batch, epochs=epochs, shuffle=False, verbose=0)


def steps(net: Any, optimizer: Any, x: Any, y: Any, count: int = 3, batch: int = ROWS) -> None:
    """What ``fit`` does, eagerly: faster where little is trained, and another way to the same weights."""
    for _ in range(count):
        for start in range(0, len(x), batch):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((net(x[start : start + batch]) - y[start : start + batch]) ** 2)
            grads = tape.gradient(loss, net.trainable_variables)
            optimizer.apply(grads, net.trainable_variables)


# Sums of floats in another order; far below one step of Adam or Lion, which is 0.01.
TOLERANCE = 1e-5
OPTIMIZERS: dict[str, Callable[..., Any]] = {
    "sgd": lambda: keras.optimizers.SGD(0.1),
    "momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    "adam": lambda: keras.optimizers.Adam(0.01),
    "adamw": lambda: keras.optimizers.AdamW(0.01, weight_decay=0.1),
    "lion": lambda: keras.optimizers.Lion(0.01),
}


def check_fit_gives_the_weights_of_one_process() -> None:
    x, y = data()
    for make in OPTIMIZERS.values():
        plain, trained = model(), model()
        steps(plain, make(), x, y)
        fit(trained, hvd.DistributedOptimizer(make()), mine(x), mine(y), ROWS // hvd.size())
        assert_like(trained, plain, TOLERANCE)


def check_eager_steps_give_the_weights_of_one_process() -> None:
    x, y = data()
    for make in OPTIMIZERS.values():
        plain, trained = model(), model()
        steps(plain, make(), x, y)
        steps(trained, hvd.DistributedOptimizer(make()), mine(x), mine(y))
        assert_like(trained, plain, TOLERANCE)


class OwnStep(keras.Model):
    """Row P35: a model with its own train_step."""

    def __init__(self, inner: Any, old: bool) -> None:
        super().__init__()
        self.inner, self.old = inner, old

    def call(self, x: Any) -> Any:
        return self.inner(x)

    def train_step(self, batch: Any) -> Any:
        x, y = batch
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(x) - y) ** 2)
        grads = tape.gradient(loss, self.trainable_variables)
        if self.old:
            self.optimizer.apply_gradients(zip(grads, self.trainable_variables, strict=True))
        else:
            self.optimizer.apply(grads, self.trainable_variables)
        return {"loss": loss}


def check_own_train_steps() -> None:
    x, y = data()
    for old in (True, False):
        plain, trained = model(), model()
        steps(plain, keras.optimizers.SGD(0.1), x, y)
        fit(OwnStep(trained, old), hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), mine(x), mine(y), ROWS)
        assert_like(trained, plain)
    single = model()
    single.compile(optimizer=hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), loss="mse")
    reference = model()
    single.train_on_batch(mine(x), mine(y))
    steps(reference, keras.optimizers.SGD(0.1), x, y, 1)
    assert_like(single, reference)


def one_step(optimizer: Any, grad: Any, start: Any = (0.0, 0.0)) -> Any:
    w = keras.Variable(np.asarray(start, "float32"), name="w")
    optimizer.apply([tf.constant(grad, tf.float32)], [w])
    return w.numpy()


def stepper(optimizer: Any, variable: Any, graph: bool) -> Any:
    """A function of a gradient that applies it."""

    def step(grad: Any) -> None:
        optimizer.apply([grad], [variable])

    return tf.function(step) if graph else step


def check_clipping_comes_after_averaging() -> None:
    """Row S37."""
    grad = [3.0, 0.0] if hvd.rank() == 0 else [0.0, 3.0]
    mean = np.array([3.0, 3.0 * (hvd.size() - 1)]) / hvd.size()
    for option in ("clipnorm", "global_clipnorm"):
        got = one_step(hvd.DistributedOptimizer(keras.optimizers.SGD(1.0, **{option: 1.0})), grad)
        np.testing.assert_allclose(got, -mean / np.linalg.norm(mean), rtol=1e-6)
    got = one_step(hvd.DistributedOptimizer(keras.optimizers.SGD(1.0, clipvalue=1.0)), [4.0 * hvd.rank(), 0.0])
    np.testing.assert_allclose(got, [-1.0, 0.0])


def check_sum_predivide_and_compression() -> None:
    grad, mean = [1.0 + hvd.rank(), 2.0], np.array([-mean_of_ranks(), -2.0])
    sgd = lambda: keras.optimizers.SGD(1.0)  # noqa: E731
    for options, expected in [
        ({"op": hvd.Sum}, mean * hvd.size()), ({"gradient_predivide_factor": 2.0}, mean),
        ({"compression": hvd.Compression.fp16}, mean), ({"groups": 1}, mean),
    ]:  # fmt: skip
        np.testing.assert_allclose(one_step(hvd.DistributedOptimizer(sgd(), **options), grad), expected, rtol=1e-6)
    with pytest.warns(DeprecationWarning, match="num_groups"):
        hvd.DistributedOptimizer(sgd(), num_groups=1)


def check_passes_are_summed() -> None:
    """Rows S26 and S27."""
    total = 3.0 + 2.0 * (hvd.size() - 1)
    for average, expected in ((False, total), (True, total / 2)):
        for graph in (False, True):
            optimizer = hvd.DistributedOptimizer(
                keras.optimizers.SGD(1.0), backward_passes_per_step=2, average_aggregated_gradients=average
            )
            w = keras.Variable(np.zeros(1, "float32"), name="w")
            step = stepper(optimizer, w, graph)
            for grad in ([1.0 + 2.0 * hvd.rank()], [2.0 + 2.0 * hvd.rank()]):
                assert w.numpy().tolist() == [0.0]
                step(tf.constant(grad))
            np.testing.assert_allclose(w.numpy(), [-expected])
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), backward_passes_per_step=3)
    w = keras.Variable(np.zeros(1, "float32"), name="w")
    seen = []
    for number in range(6):
        optimizer.apply([tf.constant([np.inf if number == 1 else 1.0])], [w])
        seen.append(float(w.numpy()[0]))
        if number == 2:
            w.assign([0.0])
    assert seen == [0.0, 0.0, -np.inf, 0.0, 0.0, -3.0]
    assert int(optimizer.iterations) == 2


def check_keras_accumulation() -> None:
    x, y = data(rows=4 * hvd.size())
    for make, eager in ((lambda: keras.optimizers.SGD(0.1, gradient_accumulation_steps=2, clipnorm=0.1), False),
                        (lambda: keras.optimizers.Adam(0.01, gradient_accumulation_steps=2), True)):  # fmt: skip
        plain, trained = model(), model()
        steps(plain, make(), x, y, batch=2 * hvd.size())
        fit(trained, hvd.DistributedOptimizer(make()), mine(x), mine(y), 2, run_eagerly=eager)
        assert_like(trained, plain, 1e-5)


def check_ema() -> None:
    x, y = data()
    make = lambda: keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=2)  # noqa: E731
    plain, trained = model(), model()
    fit(plain, make(), x, y, ROWS, run_eagerly=True)
    fit(trained, hvd.DistributedOptimizer(make()), mine(x), mine(y), ROWS)
    assert_like(trained, plain)


def check_loss_scaling_decides_after_the_reduction() -> None:
    """Row S40: both wrap orders, an infinite gradient on one rank only."""
    scale = keras.optimizers.LossScaleOptimizer
    inner_first = lambda: scale(hvd.DistributedOptimizer(keras.optimizers.SGD(1.0)), initial_scale=4.0)  # noqa: E731
    outer_last = lambda: hvd.DistributedOptimizer(scale(keras.optimizers.SGD(1.0), initial_scale=4.0))  # noqa: E731
    mean = mean_of_ranks()
    for make in (inner_first, outer_last):
        for graph in (False, True):
            optimizer = make()
            w = keras.Variable(np.zeros(1, "float32"), name="w")
            step = stepper(optimizer, w, graph)
            step(tf.constant([4.0 * (1 + hvd.rank())]))
            assert w.numpy().tolist() == [-mean]
            step(tf.constant([np.inf if hvd.rank() == 1 else 4.0]))
            assert w.numpy().tolist() == [-mean]
            assert float(optimizer.dynamic_scale) == 2.0
            step(tf.constant([2.0]))
            assert w.numpy().tolist() == [-mean - 1.0]


def check_mixed_precision() -> None:
    x, y = data()
    trained = model()
    keras.config.set_dtype_policy("mixed_float16")
    try:
        trained = model()
        trained.compile(optimizer=hvd.DistributedOptimizer(keras.optimizers.SGD(0.05)), loss="mse")
    finally:
        keras.config.set_dtype_policy("float32")
    assert isinstance(trained.optimizer, keras.optimizers.LossScaleOptimizer)
    before = weights(trained)
    trained.fit(mine(x), mine(y), batch_size=ROWS, epochs=2, verbose=0)
    assert_everywhere_the_same(*weights(trained))
    assert any(np.any(a != b) for a, b in zip(before, weights(trained), strict=True))


def check_fit_twice_and_last_partial_batches() -> None:
    x, y = data(rows=5 * hvd.size())
    plain, trained = model(), model()
    sgd = keras.optimizers.SGD(0.1, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1, momentum=0.9))
    trained.compile(optimizer=optimizer, loss="mse")
    for _ in range(2):
        steps(plain, sgd, x, y, 2, 2 * hvd.size())
        trained.fit(mine(x), mine(y), batch_size=2, epochs=2, shuffle=False, verbose=0)
    assert_like(trained, plain)


def check_two_optimizers_in_turns() -> None:
    """A GAN in small: two models of one shape, two optimizers, steps in turns, one traced function."""
    x, _ = data()
    nets = [(model(1), model(2)), (model(1), model(2))]
    makes = [lambda: keras.optimizers.SGD(0.1), lambda: hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))]
    for (first, second), make, inputs in zip(nets, makes, (x, mine(x)), strict=True):
        optimizers = make(), make()

        @tf.function
        def turn(batch: Any, first: Any = first, second: Any = second, optimizers: Any = optimizers) -> None:
            for net, other, sign, optimizer in [(first, second, 1, optimizers[0]), (second, first, -1, optimizers[1])]:
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean((net(batch) - sign * other(batch)) ** 2)
                optimizer.apply(tape.gradient(loss, net.trainable_variables), net.trainable_variables)

        for _ in range(3):
            turn(tf.constant(inputs))
    assert_like(nets[1][0], nets[0][0])
    assert_like(nets[1][1], nets[0][1])


def check_xla_is_refused_and_auto_works() -> None:
    """Row P36."""
    x, y = data()
    trained = model()
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"jit_compile=True.*jit_compile=False"):
        fit(trained, hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), mine(x), mine(y), ROWS, jit_compile=True)
    for choice in ("auto", False):
        fit(model(), hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), mine(x), mine(y), ROWS, jit_compile=choice)


def check_schedules_and_configs() -> None:
    """Row S41."""
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5)
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(schedule))
    for _ in range(3):
        one_step(optimizer, [0.0, 0.0]) if not optimizer.built else optimizer.apply([tf.zeros(2)])
    np.testing.assert_allclose(float(optimizer.learning_rate), 0.0125)
    copy = type(optimizer).from_config(optimizer.get_config())
    np.testing.assert_allclose(one_step(copy, [1.0 + hvd.rank(), 0.0]), [-0.1 * mean_of_ranks(), 0.0], rtol=1e-6)


@keras.saving.register_keras_serializable(package="checks")
class OwnSgd(keras.optimizers.SGD):
    """A user's optimizer."""


def check_saved_models_need_nothing_of_us() -> None:
    """Row S43: the file names Keras's classes; ours are put over them when a model is loaded here."""
    x, y = data()
    for make in (lambda: keras.optimizers.Adam(0.01), lambda: OwnSgd(0.1, momentum=0.9)):
        plain, trained, other = model(), model(), make()
        steps(plain, other, x, y)
        fit(trained, hvd.DistributedOptimizer(make()), mine(x), mine(y), ROWS, run_eagerly=True)
        with tempfile.TemporaryDirectory() as folder:
            path = str(Path(folder) / "model.keras")
            trained.save(path)
            loaded = keras.models.load_model(path)
            assert type(loaded.optimizer) is type(other)
            wrapped = hvd.load_model(path, custom_optimizers=[OwnSgd])
        assert type(pickle.loads(pickle.dumps(trained)).optimizer) is type(other)
        state = zip(wrapped.optimizer.variables, trained.optimizer.variables, strict=True)
        assert all(np.array_equal(a, b) for a, b in state)
        wrapped.fit(mine(x), mine(y), batch_size=ROWS, epochs=1, shuffle=False, verbose=0)
        with pytest.raises(ValueError, match="already"):
            hvd.DistributedOptimizer(wrapped.optimizer)
        steps(plain, other, x, y, 1)
        assert_like(wrapped, plain, 1e-5)


def check_wrapping_a_built_optimizer_keeps_its_state() -> None:
    x, y = data()
    plain, trained, other = model(), model(), keras.optimizers.Adam(0.01)
    kept = keras.optimizers.Adam(0.01)
    steps(plain, other, x, y)
    steps(trained, kept, x, y)
    assert hvd.DistributedOptimizer(kept) is kept
    assert isinstance(kept, keras.optimizers.Adam)
    steps(plain, other, x, y, 1)
    trained.compile(optimizer=kept, loss="mse")
    trained.fit(mine(x), mine(y), batch_size=ROWS, epochs=1, shuffle=False, verbose=0)
    assert_like(trained, plain, 1e-5)


def check_different_starts_are_told() -> None:
    """Once, with what to do; equal starts are not."""
    x, y = data()
    for seed, told in ((hvd.rank(), 1), (1, 0)):
        net, optimizer = model(seed), hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            fit(net, optimizer, mine(x), mine(y), ROWS, run_eagerly=not told)
            net.fit(mine(x), mine(y), batch_size=ROWS, verbose=0)
        texts = [str(w.message) for w in caught if "weights differ before the first update" in str(w.message)]
        assert len(texts) == told
        assert all("BroadcastGlobalVariablesCallback(0)" in text for text in texts)


def check_local_variables_stay_local() -> None:
    a, b = keras.Variable(np.zeros(1, "float32"), name="a"), keras.Variable(np.zeros(1, "float32"), name="b")
    for scale in (True, False):
        optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), scale_local_gradients=scale)
        optimizer.register_local_var(b.value)
        a.assign([0.0])
        b.assign([0.0])
        optimizer.apply([tf.constant([1.0 + hvd.rank()])] * 2, [a, b])
        expected = -(1.0 + hvd.rank()) / (hvd.size() if scale else 1)
        np.testing.assert_allclose([a.numpy()[0], b.numpy()[0]], [-mean_of_ranks(), expected], rtol=1e-6)


def check_partial_optimizer() -> None:
    import horovod.keras as hvd_keras

    trained = model()
    optimizer = hvd_keras.PartialDistributedOptimizer(keras.optimizers.SGD(0.1), local_layers=trained.layers[-1])
    x, y = data()
    fit(trained, optimizer, mine(x), mine(y), ROWS)
    everybody = hvd_tf.allgather_object(weights(trained))
    assert np.array_equal(everybody[0][0], everybody[1][0])
    assert not np.array_equal(everybody[0][2], everybody[1][2])
    with pytest.raises(ValueError, match=r"must be of keras\.layers\.Layer type"):
        hvd_keras.PartialDistributedOptimizer(keras.optimizers.SGD(0.1), local_layers=["x"])


def check_embeddings() -> None:
    rows = np.arange(ROWS).reshape(ROWS, 1) % 5
    _, y = data()
    nets = []
    for dense in (None, False, True):
        keras.utils.set_random_seed(1)
        net = keras.Sequential([keras.Input((1,)), keras.layers.Embedding(5, 2), keras.layers.Flatten()])
        optimizer = keras.optimizers.SGD(0.1)
        if dense is None:
            fit(net, optimizer, rows, y, ROWS, run_eagerly=True)
        else:
            fit(net, hvd.DistributedOptimizer(optimizer, sparse_as_dense=dense), mine(rows), mine(y), ROWS)
        nets.append(net)
    assert_like(nets[1], nets[0])
    assert_like(nets[2], nets[0])


def check_the_first_bucket_leaves_early() -> None:
    """With 20 layers of 4 MB, a bucket is on its way before the last gradient has been computed."""
    times: list[tuple[str, float]] = []
    import time

    class Watched(keras.layers.Layer):
        @tf.custom_gradient
        def _watch(self, x: Any) -> Any:
            def backward(grad: Any) -> Any:
                def note(value: Any) -> Any:
                    times.append(("last gradient", time.monotonic()))
                    return value

                result = tf.numpy_function(note, [grad], tf.float32, stateful=False)
                result.set_shape(grad.shape)
                return result

            return x, backward

        def call(self, x: Any) -> Any:
            return self._watch(x)

    real = arrays.start_bucket
    from horovod.tensorflow import buckets

    def timed(*args: Any) -> Any:
        times.append(("submit", time.monotonic()))
        return real(*args)

    keras.utils.set_random_seed(1)
    layers = [keras.layers.Dense(1024) for _ in range(20)]
    net = keras.Sequential([keras.Input((1024,)), layers[0], Watched(), *layers[1:]])
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1e-6))
    buckets.start_bucket = timed
    try:
        net.compile(optimizer=optimizer, loss="mse")
        net.fit(np.ones((128, 1024), "float32"), np.ones((128, 1024), "float32"), batch_size=128, verbose=0)
    finally:
        buckets.start_bucket = real
    submits = [when for what, when in times if what == "submit"]
    (last,) = [when for what, when in times if what == "last gradient"]
    assert len(submits) >= 5
    assert submits[0] < last
