"""What users do with models around ``fit``: built late, given other weights, several in turns, saved; large gradients."""

from __future__ import annotations

import tempfile
import zipfile
from pathlib import Path
from typing import Any

import horovod.tensorflow as hvd_tf
import horovod.tensorflow.keras as hvd
import keras
import numpy as np
import tensorflow as tf

from tests.tensorflow.checks_keras import ROWS, TOLERANCE, assert_like, data, fit, mean_of_ranks, mine, model, weights


def late_model() -> Any:
    """A model whose variables come with its first batch."""
    keras.utils.set_random_seed(2)
    return keras.Sequential([keras.layers.Dense(5, activation="tanh"), keras.layers.Dense(2)])


def adam() -> Any:
    return keras.optimizers.Adam(0.01)


def check_variables_that_come_after_wrapping() -> None:
    x, y = data()
    optimizer = hvd.DistributedOptimizer(adam())
    plain, trained = late_model(), late_model()
    assert not trained.built
    fit(plain, adam(), x, y, ROWS, run_eagerly=True)
    fit(trained, optimizer, mine(x), mine(y), ROWS)
    assert_like(trained, plain, TOLERANCE)


def check_weights_that_are_set_between_two_fits() -> None:
    x, y = data()
    nets = model(), model()
    for net, optimizer, part in ((nets[0], adam(), lambda a: a), (nets[1], hvd.DistributedOptimizer(adam()), mine)):
        fit(net, optimizer, part(x), part(y), ROWS, run_eagerly=part is not mine)
        net.set_weights([np.full_like(w, 0.25) for w in net.get_weights()])
        net.fit(part(x), part(y), batch_size=ROWS, epochs=3, shuffle=False, verbose=0)
    assert_like(nets[1], nets[0], TOLERANCE)


def check_several_models_in_turns() -> None:
    """Two distributed models of one shape, and on one rank a third that is nobody else's business."""
    x, y = data()
    sgd = lambda: keras.optimizers.SGD(0.1, momentum=0.9)  # noqa: E731
    pairs = [(model(seed), model(seed)) for seed in (3, 4)]
    for plain, trained in pairs:
        plain.compile(optimizer=sgd(), loss="mse", run_eagerly=True)
        trained.compile(optimizer=hvd.DistributedOptimizer(sgd()), loss="mse")
    for turn in range(2):
        if hvd.rank() == 0:
            fit(model(9), sgd(), x, y, ROWS, epochs=1, run_eagerly=bool(turn))
        for plain, trained in pairs:
            plain.fit(x, y, batch_size=ROWS, epochs=2, shuffle=False, verbose=0)
            trained.fit(mine(x), mine(y), batch_size=ROWS, epochs=2, shuffle=False, verbose=0)
    for plain, trained in pairs:
        assert_like(trained, plain, TOLERANCE)


def check_half_precision_gives_nearly_the_weights_of_one_process() -> None:
    x, y = data()
    keras.config.set_dtype_policy("mixed_float16")
    try:
        plain, trained = model(), model()
        fit(plain, keras.optimizers.SGD(0.05), x, y, ROWS)
        fit(trained, hvd.DistributedOptimizer(keras.optimizers.SGD(0.05)), mine(x), mine(y), ROWS)
    finally:
        keras.config.set_dtype_policy("float32")
    moved = max(float(np.max(np.abs(a - b))) for a, b in zip(weights(model()), weights(plain), strict=True))
    # Three steps whose gradients have float16's eleven bits.
    assert moved > 0.05
    assert_like(trained, plain, 2e-3)


def check_a_saved_model_names_nothing_of_ours() -> None:
    """Row S43: it can be loaded where there is no Horovod."""
    x, y = data()
    trained = model()
    fit(trained, hvd.DistributedOptimizer(adam()), mine(x), mine(y), ROWS, run_eagerly=True)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.keras"
        trained.save(path)
        with zipfile.ZipFile(path) as archive:
            content = b"".join(archive.read(name) for name in archive.namelist()).lower()
    assert b"adam" in content
    assert b"horovod" not in content
    assert b"hvd" not in content


SHAPES = [(65537,), (3,), (300, 300), (), (70000,), (5, 7)]


def _step(variables: Any, factor: Any) -> Any:
    with tf.GradientTape() as tape:
        loss = tf.add_n([tf.cast(tf.reduce_sum(v), tf.float32) * (i + 1.0) for i, v in enumerate(variables)]) * factor
    return hvd_tf.DistributedGradientTape(tape).gradient(loss, variables)


def check_large_gradients_lie_apart_and_stay() -> None:
    """Large and small ones of odd sizes in one bucket; nothing writes to a gradient that somebody still holds."""
    for dtype in (tf.float32, tf.float16):
        variables = [tf.Variable(tf.ones(shape, dtype)) for shape in SHAPES]
        for wrap in (lambda f: f, tf.function):
            step = wrap(_step)
            kept = [step(variables, tf.constant((1.0 + hvd.rank()) * (turn + 1))) for turn in range(4)]
            for turn, grads in enumerate(kept):
                for number, (grad, shape) in enumerate(zip(grads, SHAPES, strict=True)):
                    assert grad.shape == shape
                    expected = (number + 1.0) * mean_of_ranks() * (turn + 1)
                    np.testing.assert_allclose(grad.numpy().astype("float64"), expected, rtol=1e-3)
