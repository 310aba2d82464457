"""IndexedSlices: equal to dense gradients, added up before they travel, told when ranks differ."""

from __future__ import annotations

from typing import Any

import horovod.tensorflow as hvd
import horovod.tensorflow.keras as hvd_keras
import keras
import numpy as np
import pytest
import tensorflow as tf
from horovod.tensorflow.gradient_aggregation_eager import LocalGradientAggregationHelperEager

v1 = tf.compat.v1
ROWS = 9


def ranks() -> range:
    return range(hvd.size())


def slices(indices: Any, factor: float = 1.0, dtype: Any = tf.float32) -> Any:
    values = tf.cast(tf.fill((len(indices), 2), factor), dtype)
    return tf.IndexedSlices(values, tf.constant(indices, tf.int64), dense_shape=(ROWS, 2))


def dense(indices: Any, factor: float = 1.0) -> Any:
    whole = np.zeros((ROWS, 2))
    np.add.at(whole, np.asarray(indices, np.int64), factor)
    return whole


def same(got: Any, expected: Any) -> None:
    assert isinstance(got, tf.IndexedSlices)
    np.testing.assert_allclose(tf.convert_to_tensor(got).numpy().astype(np.float64), expected, rtol=1e-3)


def check_equal_rows_travel_once() -> None:
    """Row P65: 10,000 look-ups of three rows are three rows from each rank."""
    indices = np.random.default_rng(hvd.rank()).integers(1, 4, 10_000)
    got = hvd.allreduce(slices(indices), op=hvd.Sum)
    assert got.values.shape[0] == 3 * hvd.size()
    everybody = [np.random.default_rng(r).integers(1, 4, 10_000) for r in ranks()]
    same(got, sum(dense(entry) for entry in everybody))


def check_dtypes_and_empty_slices() -> None:
    for dtype in (tf.float16, tf.bfloat16, tf.float64, tf.int32):
        for wrap in (lambda f: f, tf.function):
            mine = [hvd.rank(), 5, 5] if hvd.rank() else []
            got = wrap(lambda d=dtype, m=mine: hvd.allreduce(slices(m, 12.0, d)))()
            assert got.values.dtype == dtype
            same(got, sum(dense([r, 5, 5], 12.0) for r in ranks() if r) / hvd.size())
    packed = hvd.allreduce(slices([1]), op=hvd.Sum, compression=hvd.Compression.fp16)
    assert packed.values.dtype == tf.float32


def check_several_at_once() -> None:
    me = hvd.rank()
    given = [slices([me]), tf.ones(3), slices([1, 1], 2.0, tf.float64)]
    for wrap in (lambda f: f, tf.function):
        got = wrap(lambda: hvd.grouped_allreduce(given, op=hvd.Sum))()
        same(got[0], sum(dense([r]) for r in ranks()))
        assert got[1].numpy().tolist() == [hvd.size()] * 3
        same(got[2], dense([1, 1], 2.0) * hvd.size())


def two_tables() -> tuple[Any, Any, Any]:
    return (
        tf.Variable(np.ones((ROWS, 2), np.float32), name="first"),
        tf.Variable(np.ones((ROWS, 2), np.float32), name="second"),
        tf.Variable([1.0], name="bias"),
    )


def expected_of_tables() -> list[Any]:
    """The averaged gradients of the loss in the next function."""
    size = hvd.size()
    return [
        sum(dense([r, r, 3], r + 1.0) for r in ranks()) / size, sum(dense([7], 2.0 * (r + 1)) for r in ranks()) / size,
        [sum(r + 1.0 for r in ranks()) / size],
    ]  # fmt: skip


def loss_of_tables(first: Any, second: Any, bias: Any) -> Any:
    me = hvd.rank()
    looked_up = tf.reduce_sum(tf.gather(first, [me, me, 3])) + 2.0 * tf.reduce_sum(tf.gather(second, [7]))
    return (looked_up + tf.reduce_sum(bias)) * (me + 1.0)


def check_the_tape() -> None:
    """Row S28, too: tables of equal shape are never taken for each other."""
    variables = two_tables()

    def step(as_dense: bool) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of_tables(*variables)
        return hvd.DistributedGradientTape(tape, sparse_as_dense=as_dense).gradient(loss, variables)

    for wrap in (lambda f: f, tf.function):
        for as_dense in (False, True):
            grads = wrap(step)(as_dense)
            assert isinstance(grads[0], tf.IndexedSlices) != as_dense
            for got, expected in zip(grads, expected_of_tables(), strict=True):
                np.testing.assert_allclose(tf.convert_to_tensor(got).numpy(), expected, rtol=1e-6)


def check_a_session() -> None:
    for as_dense in (False, True):
        with tf.Graph().as_default():
            tables = [v1.get_variable(name, initializer=np.ones((ROWS, 2), np.float32)) for name in ("first", "second")]
            bias = v1.get_variable("bias", initializer=[1.0])
            optimizer = hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(1.0), sparse_as_dense=as_dense)
            update = optimizer.minimize(loss_of_tables(*tables, bias))
            with v1.Session() as session:
                session.run(v1.global_variables_initializer())
                session.run(update)
                got = session.run([*tables, bias])
        for value, expected in zip(got, expected_of_tables(), strict=True):
            np.testing.assert_allclose(value, 1.0 - np.asarray(expected), rtol=1e-5)


def check_passes_of_sparse_gradients_in_a_session() -> None:
    def build(as_dense: bool) -> Any:
        table = v1.get_variable("table", initializer=np.ones((ROWS, 2), np.float32), use_resource=True)
        optimizer = hvd.DistributedOptimizer(
            v1.train.GradientDescentOptimizer(1.0), sparse_as_dense=as_dense, backward_passes_per_step=2
        )
        return table, optimizer.minimize(tf.reduce_sum(tf.gather(table, [hvd.rank(), 3])))

    with tf.Graph().as_default():
        table, update = build(True)
        with v1.Session() as session:
            session.run([v1.global_variables_initializer(), v1.local_variables_initializer()])
            for _ in range(2):
                session.run(update)
            value = session.run(table)
    np.testing.assert_allclose(value, 1.0 - 2 * sum(dense([r, 3]) for r in ranks()) / hvd.size(), rtol=1e-5)
    with tf.Graph().as_default(), pytest.raises(ValueError, match="sparse_as_dense"):
        build(False)


def check_a_gradient_that_is_sparse_on_one_rank_is_told() -> None:
    """Row S28: nobody waits, whatever the others have."""
    table, bias = tf.Variable(np.ones((ROWS, 2), np.float32), name="table"), tf.Variable([1.0], name="bias")
    tape = lambda: hvd.DistributedGradientTape(tf.GradientTape())  # noqa: E731
    sparse, whole = slices([1]), tf.ones((ROWS, 2))
    for mine in ([sparse, None], [sparse, whole], [None, sparse]):
        given = mine[0] if hvd.rank() == 0 else mine[1]
        with pytest.raises(tf.errors.FailedPreconditionError, match=r"'table' \(.*on rank [01]"):
            hvd_reduce(tape(), [given, tf.ones(1)], [table, bias])
        with pytest.raises(tf.errors.FailedPreconditionError, match=r"'table' \(.*none on rank|none.*'table' \("):
            hvd_reduce(tape(), [sparse if hvd.rank() else None], [table])
    assert float(hvd.allreduce(tf.constant(1.0), op=hvd.Sum)) == hvd.size()


def hvd_reduce(tape: Any, grads: Any, variables: Any) -> Any:
    """What the tape makes of these gradients, with the errors that its users get."""
    from horovod.tensorflow.bridge import speaks_tensorflow

    return speaks_tensorflow(tape._hvd_reduce)(grads, variables)


def check_local_tables() -> None:
    """A table that stays on its rank keeps sparse gradients, divided by the number of ranks."""
    table, bias = tf.Variable(np.ones((ROWS, 2), np.float32)), tf.Variable([1.0])
    for scale in (True, False):
        with tf.GradientTape() as tape:
            loss = (tf.reduce_sum(tf.gather(table, [hvd.rank()])) + tf.reduce_sum(bias)) * (hvd.rank() + 1.0)
        tape = hvd.DistributedGradientTape(tape, scale_local_gradients=scale)
        tape.register_local_source(table)
        got = tape.gradient(loss, [table, bias])
        same(got[0], dense([hvd.rank()], (hvd.rank() + 1.0) / (hvd.size() if scale else 1)))
        np.testing.assert_allclose(got[1].numpy(), np.mean([r + 1.0 for r in ranks()]))


def check_local_tables_of_keras() -> None:
    keras.utils.set_random_seed(1)
    table = keras.layers.Embedding(ROWS, 2)
    net = keras.Sequential([keras.Input((1,)), table, keras.layers.Flatten(), keras.layers.Dense(1)])
    before = table.embeddings.numpy()
    import horovod.keras as hvd_plain

    optimizer = hvd_plain.PartialDistributedOptimizer(keras.optimizers.SGD(0.1), local_layers=table)
    net.compile(optimizer=optimizer, loss="mse")
    net.fit(np.array([[hvd.rank()]]), np.array([[9.0]]), epochs=1, verbose=0)
    changed = np.flatnonzero(np.any(table.embeddings.numpy() != before, axis=1)).tolist()
    assert changed == [hvd.rank()]
    kernels = hvd.allgather_object(net.layers[-1].kernel.numpy().tobytes())
    assert len(set(kernels)) == 1


def check_passes_of_sparse_gradients() -> None:
    """Keras sums them up as dense ones; the helper for optimizers of your own wants to be told to."""
    net = keras.Sequential([keras.Input((1,)), keras.layers.Embedding(ROWS, 2, embeddings_initializer="ones")])
    optimizer = hvd_keras.DistributedOptimizer(keras.optimizers.SGD(1.0), backward_passes_per_step=2)
    net.compile(optimizer=optimizer, loss=lambda y, p: keras.ops.sum(p))
    net.fit(np.array([[hvd.rank()], [3]]), np.zeros((2, 1)), batch_size=1, epochs=1, shuffle=False, verbose=0)
    wanted = 1.0 - sum(dense([r, 3]) for r in ranks()) / hvd.size()
    np.testing.assert_allclose(net.layers[-1].embeddings.numpy(), wanted, rtol=1e-6)
    reduce = lambda grads, variables: grads  # noqa: E731
    helper = LocalGradientAggregationHelperEager(2, reduce, False, False)
    with pytest.raises(ValueError, match="sparse_as_dense"):
        helper.compute_gradients([slices([1])], [tf.Variable(np.ones((ROWS, 2), np.float32))])


def check_members_alone() -> None:
    """Row S48: the average is over the set."""
    if hvd.size() < 3:
        return
    hvd.shutdown()
    pair = hvd.ProcessSet([0, 2])
    hvd.init(process_sets=[pair])
    if pair.included():
        got = hvd.allreduce(slices([hvd.rank()], 4.0), process_set=pair)
        same(got, dense([0, 2], 2.0))
    hvd.allreduce(tf.constant(1.0))
    hvd.shutdown()
    hvd.init()


def check_join_refuses_to_gather() -> None:
    """Row S29: a gather needs everybody's rows; by default that is said, and both return from join."""
    if hvd.rank() == 0:
        with pytest.raises(tf.errors.FailedPreconditionError, match="not supported while ranks have joined"):
            hvd.allreduce(slices([1]), name="after join")
    hvd.join()
    assert float(hvd.allreduce(tf.constant(1.0), op=hvd.Sum)) == hvd.size()
