"""DistributedGradientTape: the plain tape's structures, averaged values, groups, local sources."""

from __future__ import annotations

import sys
from typing import Any

import horovod.tensorflow as hvd
import numpy as np
import pytest
import tensorflow as tf


def losses(*variables: Any) -> Any:
    return tf.add_n([tf.reduce_sum(v * v) * (hvd.rank() + 1.0) for v in variables])


def mean_factor() -> float:
    return sum(r + 1 for r in range(hvd.size())) / hvd.size()


def averaged(v: Any) -> Any:
    return 2 * v.numpy() * mean_factor()


def check_structures_are_those_of_the_plain_tape() -> None:
    """Row S36."""
    a, b, unused = tf.Variable([1.0, 2.0]), tf.Variable([[3.0]]), tf.Variable([4.0])
    for sources in (a, [a, b], {"x": a, "y": [b, (a,)]}, (a, [b])):
        with tf.GradientTape() as plain:
            loss = losses(a, b)
        expected = plain.gradient(loss, sources)
        with tf.GradientTape() as tape:
            loss = losses(a, b)
        got = hvd.DistributedGradientTape(tape).gradient(loss, sources)
        tf.nest.assert_same_structure(got, expected)
        for grad, v in zip(tf.nest.flatten(got), tf.nest.flatten(sources), strict=True):
            np.testing.assert_allclose(grad.numpy(), averaged(v), rtol=1e-6)
    with tf.GradientTape(persistent=True) as tape:
        loss = losses(a)
    tape = hvd.DistributedGradientTape(tape)
    assert tape.gradient(loss, [a, unused])[1] is None
    zeros = tape.gradient(loss, [a, unused], unconnected_gradients=tf.UnconnectedGradients.ZERO)
    assert zeros[1].numpy().tolist() == [0.0]
    twice = tape.gradient(loss, a, output_gradients=tf.constant(2.0))
    np.testing.assert_allclose(twice.numpy(), 2 * averaged(a), rtol=1e-6)


def check_the_tape_can_record_itself() -> None:
    w = tf.Variable([1.0, 2.0])
    with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
        loss = losses(w)
    assert isinstance(tape, tf.GradientTape)
    np.testing.assert_allclose(tape.gradient(loss, [w])[0].numpy(), averaged(w), rtol=1e-6)


def check_groups_keep_gradients_apart() -> None:
    """Row S33."""
    variables = [tf.Variable([1.0, 1.0]) for _ in range(6)]
    for groups in (None, 1, 2, 4, 6, 9, [variables[:2], [variables[5], variables[3]]]):
        for wrap in (lambda f: f, tf.function):

            def step(groups: Any = groups) -> Any:
                with tf.GradientTape() as tape:
                    loss = tf.add_n([tf.reduce_sum(v) * i for i, v in enumerate(variables)])
                return hvd.DistributedGradientTape(tape, groups=groups).gradient(loss, variables)

            assert [grad.numpy().tolist() for grad in wrap(step)()] == [[i, i] for i in range(6)]


def check_autograph_leaves_our_code_alone() -> None:
    """Rewriting it would take longer than all else when a function is traced: only what the user has written is rewritten."""
    variable, weight = tf.Variable([1.0, 2.0]), tf.keras.Variable([1.0, 2.0])
    optimizer = hvd.DistributedOptimizer(tf.keras.optimizers.SGD(0.0))
    rewritten = lambda: sum(name.startswith("__autograph_generated") for name in sys.modules)  # noqa: E731

    def step() -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(variable) * (hvd.rank() + hvd.size())
        tape = hvd.DistributedGradientTape(tape)
        tape.register_local_source(weight)
        grads = tape.gradient(loss, [variable])
        optimizer.apply(grads, [weight])
        gathered = hvd.broadcast(hvd.allgather(hvd.allreduce(grads[0])), 0)
        return hvd.alltoall(gathered), hvd.reducescatter(gathered), hvd.grouped_allreduce([gathered]), hvd.size_op()

    before = rewritten()
    tf.function(step)()
    assert rewritten() == before + 1


def check_many_dtypes_sizes_and_settings() -> None:
    variables = [
        tf.Variable(tf.cast(tf.fill(shape, 2.0), dtype))
        for shape in [(), (3,), (700, 700), (0,)]
        for dtype in (tf.float32, tf.float64, tf.float16)
    ]

    def step(**options: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.add_n([tf.cast(tf.reduce_sum(v), tf.float64) * (hvd.rank() + 1.0) for v in variables])
        return hvd.DistributedGradientTape(tape, **options).gradient(loss, variables)

    for options in (
        {}, {"compression": hvd.Compression.fp16}, {"compression": hvd.Compression.bf16},
        {"gradient_predivide_factor": 2.0}, {"op": hvd.Sum},
    ):  # fmt: skip
        factor = mean_factor() * (hvd.size() if "op" in options else 1)
        for grads in (step(**options), tf.function(step)(**options)):
            for grad, v in zip(grads, variables, strict=True):
                assert grad.dtype == v.dtype
                assert grad.shape == v.shape
                np.testing.assert_allclose(grad.numpy().astype(np.float64), factor, rtol=1e-2 if options else 1e-6)


def check_local_sources() -> None:
    a, b = tf.Variable([1.0]), tf.Variable([2.0])
    for scale in (True, False):
        with tf.GradientTape(persistent=True) as tape:
            loss = losses(a, b)
        tape = hvd.DistributedGradientTape(tape, scale_local_gradients=scale)
        tape.register_local_source(b)
        got = tape.gradient(loss, [a, b])
        local = 4.0 * (hvd.rank() + 1) / (hvd.size() if scale else 1)
        np.testing.assert_allclose([float(g[0]) for g in got], [2 * mean_factor(), local], rtol=1e-6)
        mine, shared = tape.get_local_and_global_gradients(loss, [a, b])
        assert mine[0][0] is b
        assert shared[0][0] is a


def check_partial_tape() -> None:
    tf.keras.utils.set_random_seed(3)
    layers = [tf.keras.layers.Dense(2), tf.keras.layers.Dense(1)]
    x = tf.ones((1, 2)) * (hvd.rank() + 1)
    model = tf.keras.Sequential(layers)
    model(x)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model(x))
    tape = hvd.PartialDistributedGradientTape(tape, local_layers=layers[1])
    grads = tape.gradient(loss, model.trainable_variables)
    everybody = hvd.allgather_object([grad.numpy().tolist() for grad in grads])
    assert all(entry[:2] == everybody[0][:2] for entry in everybody)
    assert everybody[0][2] != everybody[1][2]
    with pytest.raises(ValueError, match=r"must be of tf\.keras.layers.Layer type"):
        hvd.PartialDistributedGradientTape(tf.GradientTape(), local_layers=["x"])


def check_sparse_gradients() -> None:
    table = tf.Variable(np.arange(12, dtype=np.float32).reshape(4, 3))
    dense = np.zeros((4, 3))
    for r in range(hvd.size()):
        dense[[r, 3]] += (r + 1) / hvd.size()

    def step(sparse_as_dense: bool) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(table, [hvd.rank(), 3])) * (hvd.rank() + 1.0)
        return hvd.DistributedGradientTape(tape, sparse_as_dense=sparse_as_dense).gradient(loss, [table])[0]

    for wrap in (lambda f: f, tf.function):
        got = wrap(step)(False)
        assert isinstance(got, tf.IndexedSlices)
        np.testing.assert_allclose(tf.convert_to_tensor(got).numpy(), dense, rtol=1e-6)
        np.testing.assert_allclose(tf.convert_to_tensor(wrap(step)(True)).numpy(), dense, rtol=1e-6)


def check_a_layer_more_on_one_rank() -> None:
    """Row S17: names that Keras counts differ, and training works."""
    if hvd.rank() == 1:
        tf.keras.layers.Dense(3).build((None, 3))
    tf.keras.utils.set_random_seed(1)
    model = tf.keras.Sequential([tf.keras.layers.Dense(2), tf.keras.layers.Dense(1)])
    x = tf.ones((1, 2)) * (hvd.rank() + 1)
    model(x)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model(x))
    grads = hvd.DistributedGradientTape(tape).gradient(loss, model.trainable_variables)
    assert len(set(hvd.allgather_object(str([grad.numpy().tolist() for grad in grads])))) == 1


def check_other_variables_are_never_mixed_up() -> None:
    """Variables of equal shape under other names: told, with both names."""
    w = tf.Variable([1.0], name="one" if hvd.rank() else "other")
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(w)
    text = r"number 0 is 'other' \(float32 \(1,\)\) on rank 0, 'one' \(float32 \(1,\)\) on rank 1"
    with pytest.raises(tf.errors.FailedPreconditionError, match=text):
        hvd.DistributedGradientTape(tape).gradient(loss, [w])


def check_memory_of_a_loop() -> None:
    """Row P60, in small: classes and functions are not made anew for each step."""
    w = tf.Variable([1.0])
    kinds = set()
    for _ in range(5):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(w)
        tape = hvd.DistributedGradientTape(tape)
        kinds.add(type(tape))
        tape.gradient(loss, [w])
    assert len(kinds) == 1


def check_synchronized_normalization() -> None:
    """Row S49: batches of 2 and 6, three layers behind each other, eagerly and in graphs."""
    rng = np.random.default_rng(3)
    for shape, options in [((8, 4), {}), ((8, 3, 5, 4), {}), ((8, 4, 3), {"axis": 1})]:
        whole = (rng.normal(size=shape) * 5 + 100).astype("float32")
        weight = rng.normal(size=shape).astype("float32")
        share = 6 // (hvd.size() - 1)  # rank 0 has 2 rows, the others share the rest
        part = slice(0, 2) if hvd.rank() == 0 else slice(2 + share * (hvd.rank() - 1), 2 + share * hvd.rank())
        plain = [tf.keras.layers.BatchNormalization(**options) for _ in range(3)]
        ours = [hvd.SyncBatchNormalization(**options) for _ in range(3)]
        expected = _normalized(plain, tf.constant(whole), tf.constant(weight))
        for wrap in (lambda f: f, tf.function):
            layers = ours if wrap is not tf.function else [hvd.SyncBatchNormalization(**options) for _ in range(3)]
            for layer in layers:
                layer.build((None, *shape[1:]))
            got = wrap(_normalized)(layers, tf.constant(whole[part]), tf.constant(weight[part]))
            np.testing.assert_allclose(got[0].numpy(), expected[0].numpy()[part], atol=2e-5)
            np.testing.assert_allclose(got[1].numpy(), expected[1].numpy()[part], atol=2e-5)
            for mine, theirs in zip(layers, plain, strict=True):
                np.testing.assert_allclose(mine.moving_mean.numpy(), theirs.moving_mean.numpy(), rtol=1e-5)
                np.testing.assert_allclose(mine.moving_variance.numpy(), theirs.moving_variance.numpy(), rtol=1e-4)
        assert np.array_equal(ours[0](whole).numpy(), ours[0](whole, training=False).numpy())


def _normalized(layers: Any, x: Any, weight: Any) -> Any:
    """The output of the layers behind each other, and the gradient of a weighted sum of it."""
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = x
        for layer in layers:
            y = layer(y, training=True) + 0.1 * y
        loss = tf.reduce_sum(y * weight)
    return y, tape.gradient(loss, x)
