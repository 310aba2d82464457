"""Adasum against NumPy, for any number of ranks, on one host and between hosts; the optimizer that combines changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import horovod.tensorflow as hvd
import numpy as np
import pytest
import tensorflow as tf

from tests.torch.adasum import combine

v1 = tf.compat.v1


def ranks() -> range:
    return range(hvd.size())


def of_rank(rank: int, count: int, turn: int = 0) -> Any:
    return np.random.default_rng(100 * turn + rank).standard_normal(count)


def expect(got: Any, vectors: list[Any], tolerance: float) -> None:
    wanted = combine([np.array(v, np.float64).reshape(-1) for v in vectors]).reshape(got.shape)
    np.testing.assert_allclose(np.asarray(got, np.float64), wanted, rtol=tolerance, atol=tolerance)
    everywhere = hvd.allgather_object(np.asarray(got).tobytes())
    assert all(entry == everywhere[0] for entry in everywhere)


def ways(call: Callable[..., Any]) -> list[Callable[..., Any]]:
    """The call eagerly, in a tf.function, and in a session."""

    def in_session(*arrays: Any) -> Any:
        with tf.Graph().as_default(), v1.Session() as session:
            return session.run(call(*[tf.constant(array) for array in arrays]))

    def eager(*arrays: Any) -> Any:
        return tf.nest.map_structure(lambda t: t.numpy(), call(*[tf.constant(array) for array in arrays]))

    def traced(*arrays: Any) -> Any:
        return tf.nest.map_structure(lambda t: t.numpy(), tf.function(call)(*[tf.constant(a) for a in arrays]))

    return [eager, traced, in_session]


def check_vectors() -> None:
    """Half precision, and sizes on both sides of what goes through the arena."""
    for dtype, tolerance in [
        (tf.float64, 1e-12), (tf.float32, 1e-5), (tf.float16, 5e-3), (tf.bfloat16, 5e-2),
    ]:  # fmt: skip
        for count in (1, 7, 20001):
            everybody = [tf.cast(of_rank(r, count), dtype).numpy() for r in ranks()]
            for run in ways(lambda x: hvd.allreduce(x, op=hvd.Adasum)):
                expect(run(everybody[hvd.rank()]), everybody, tolerance)


def check_properties() -> None:
    """Row S53: equal vectors stay, orthogonal ones add up, zeros change nothing and make no NaN."""
    adasum = lambda *values: hvd.allreduce(tf.constant(values), op=hvd.Adasum).numpy().tolist()  # noqa: E731
    assert adasum(1.0, 2.0, 4.0) == [1.0, 2.0, 4.0]
    mine = [hvd.rank() + 1.0 if r == hvd.rank() else 0.0 for r in ranks()]
    assert adasum(*mine) == [r + 1.0 for r in ranks()]
    assert adasum(1.0 * (hvd.rank() == 0), 1.0 * (hvd.rank() == 0)) == [1.0, 1.0]
    assert adasum(0.0, 0.0) == [0.0, 0.0]
    assert hvd.allreduce(tf.zeros(0), op=hvd.Adasum).shape == (0,)


def check_tensors_of_a_group_are_combined_one_by_one() -> None:
    counts = [3, 50, 1, 7]
    everybody = [[of_rank(r, count, turn) for turn, count in enumerate(counts)] for r in ranks()]
    for run in ways(lambda *x: hvd.grouped_allreduce(list(x), op=hvd.Adasum)):
        for index, got in enumerate(run(*everybody[hvd.rank()])):
            expect(got, [vectors[index] for vectors in everybody], 1e-12)
    named = hvd.grouped_allreduce([tf.constant(v) for v in everybody[hvd.rank()]], op=hvd.Adasum, name="group")
    expect(named[2].numpy(), [vectors[2] for vectors in everybody], 1e-12)
    scaled = hvd.allreduce(tf.constant(everybody[hvd.rank()][0]), op=hvd.Adasum, postscale_factor=2.0)
    expect(scaled.numpy() / 2, [vectors[0] for vectors in everybody], 1e-12)


def check_what_adasum_can_not_do() -> None:
    with pytest.raises(tf.errors.InvalidArgumentError, match="floating point tensors only"):
        hvd.allreduce(tf.constant([1, 2]), op=hvd.Adasum)
    other = hvd.ProcessSet([0])
    other.process_set_id = 7
    with pytest.raises(NotImplementedError, match="global process set only"):
        hvd.allreduce(tf.constant([1.0]), op=hvd.Adasum, process_set=other)
    with pytest.raises(NotImplementedError, match="non-global process sets"):
        hvd.DistributedGradientTape(tf.GradientTape(), op=hvd.Adasum, process_set=other)
    sgd = v1.train.GradientDescentOptimizer(0.1)
    with pytest.raises(ValueError, match="average_aggregated_gradients"):
        hvd.DistributedOptimizer(sgd, op=hvd.Adasum, average_aggregated_gradients=True)
    with pytest.raises(ValueError, match="predivide"):
        hvd.DistributedOptimizer(sgd, op=hvd.Adasum, gradient_predivide_factor=2.0)
    with pytest.raises(ValueError, match=r"only op=Average and op=Sum.*DistributedGradientTape"):
        hvd.DistributedOptimizer(tf.keras.optimizers.SGD(0.1), op=hvd.Adasum)
    slices = tf.IndexedSlices(tf.ones((1, 2)), tf.constant([0]), dense_shape=(3, 2))
    with pytest.raises(NotImplementedError, match="Sum and Average"):
        hvd.allreduce(slices, op=hvd.Adasum)


def check_the_tape() -> None:
    a, b = tf.Variable(of_rank(50, 5)), tf.Variable(of_rank(51, 3))
    factors = [of_rank(r, 5, 60) for r in ranks()]

    def step() -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(a * factors[hvd.rank()]) + tf.reduce_sum(b * factors[hvd.rank()][:3])
        return hvd.DistributedGradientTape(tape, op=hvd.Adasum).gradient(loss, [a, b])

    for wrap in (lambda f: f, tf.function):
        got = wrap(step)()
        expect(got[0].numpy(), factors, 1e-12)
        expect(got[1].numpy(), [factor[:3] for factor in factors], 1e-12)


# ---- the optimizer for sessions


def slope(rank: int, step: int, count: int) -> Any:
    return of_rank(rank, count, 1000 + step)


def momentum_steps(size: int, count: int, steps: int, passes: int) -> Any:
    """What all ranks end with: SGD with momentum on each, their changes combined after some passes."""
    shared, velocities, here = np.zeros(count), [np.zeros(count)] * size, [np.zeros(count)] * size
    for step in range(steps):
        velocities = [0.9 * velocity + slope(r, step, count) for r, velocity in enumerate(velocities)]
        here = [w - 0.1 * velocity for w, velocity in zip(here, velocities, strict=True)]
        if (step + 1) % passes == 0:
            shared = shared + combine([w - shared for w in here])
            here = [shared] * size
    return here


def in_session(passes: int, steps: int, count: int = 6) -> Any:
    with tf.Graph().as_default():
        w = v1.get_variable("w", initializer=np.zeros(count), use_resource=passes > 1)
        mine = v1.get_variable("mine", initializer=np.zeros(2))
        slopes = v1.placeholder(tf.float64, [count])
        optimizer = hvd.DistributedOptimizer(
            v1.train.MomentumOptimizer(0.1, 0.9), op=hvd.Adasum, backward_passes_per_step=passes
        )
        optimizer.register_local_var(mine)
        assert optimizer.get_name() == "DistributedDeltaMomentumOptimizer"
        step = v1.train.get_or_create_global_step()
        loss = tf.reduce_sum(w * slopes) + (1.0 + hvd.rank()) * tf.reduce_sum(mine)
        update = optimizer.minimize(loss, global_step=step)
        assert set(optimizer.get_slot_names()) == {"momentum", "delta_start"}
        assert optimizer.get_slot(w, "delta_start") in optimizer.variables()
        assert optimizer.get_slot(w, "momentum") in optimizer.variables()
        with v1.Session() as session:
            session.run([v1.global_variables_initializer(), v1.local_variables_initializer()])
            for number in range(steps):
                session.run(update, {slopes: slope(hvd.rank(), number, count)})
            return session.run([w, mine, step])


def check_changes_are_combined() -> None:
    """Momentum is applied on each rank before its change is combined; a rank's own variable is left alone.

    TensorFlow holds the learning rate in fp32, so more digits can't agree.
    """
    for passes, steps in ((1, 3), (2, 5)):
        w, mine, step = in_session(passes, steps)
        np.testing.assert_allclose(w, momentum_steps(hvd.size(), 6, steps, passes)[hvd.rank()], rtol=1e-6)
        assert step == steps
        wanted = in_one_process(1.0 + hvd.rank(), steps)
        np.testing.assert_allclose(mine, [wanted, wanted], rtol=1e-6)


def in_one_process(grad: float, steps: int) -> float:
    value = velocity = 0.0
    for _ in range(steps):
        velocity = 0.9 * velocity + grad
        value -= 0.1 * velocity
    return value


def check_changes_are_combined_eagerly() -> None:
    w = tf.Variable(np.zeros(4))
    for compression in (hvd.Compression.none, hvd.Compression.fp16):
        w.assign(np.zeros(4))
        optimizer = hvd.DistributedOptimizer(
            v1.train.GradientDescentOptimizer(0.1), op=hvd.Adasum, compression=compression
        )
        optimizer.apply_gradients([(tf.constant(slope(hvd.rank(), 0, 4)), w)])
        wanted = combine([-0.1 * slope(r, 0, 4) for r in ranks()])
        np.testing.assert_allclose(w.numpy(), wanted, rtol=1e-2 if compression is hvd.Compression.fp16 else 1e-6)
