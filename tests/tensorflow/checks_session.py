"""Graphs of tf.compat.v1 sessions: operations, the hook, the optimizer wrapper."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import horovod.tensorflow as hvd
import numpy as np
import pytest
import tensorflow as tf

v1 = tf.compat.v1


def in_graph(build: Callable[[], Any]) -> Any:
    """What a session gives for what is built in a new graph."""
    with tf.Graph().as_default():
        fetches = build()
        with v1.Session() as session:
            session.run([v1.global_variables_initializer(), v1.local_variables_initializer()])
            return session.run(fetches)


def check_operations() -> None:
    me, size = hvd.rank(), hvd.size()

    def build() -> Any:
        x = tf.constant([1.0 + me, 2.0])
        reduced = hvd.allreduce(x, op=hvd.Sum)
        again = hvd.allreduce(x, op=hvd.Max)
        return reduced, again, hvd.allgather(x), hvd.broadcast(x, 1, name="from one"), v1.gradients(reduced, x)[0]

    reduced, again, gathered, sent, grad = in_graph(build)
    assert reduced.tolist() == [size * (size + 1) / 2, 2.0 * size]
    assert again.tolist() == [size, 2.0]
    assert gathered.tolist() == [value for r in range(size) for value in (1.0 + r, 2.0)]
    assert sent.tolist() == [2.0, 2.0]
    assert grad.tolist() == [size, size]


def check_names_follow_the_graph() -> None:
    """Unnamed operations of equal shapes are told apart by the tensors they reduce, whatever runs first."""

    def build() -> Any:
        tensors = [tf.constant(10.0 * i + hvd.rank(), name=f"t{i}") for i in range(4)]
        results = [hvd.allreduce(tensor, op=hvd.Sum) for tensor in tensors]
        with v1.name_scope(f"scope_{hvd.rank()}"):
            results.append(hvd.allreduce(tf.constant(1.0), name="scoped", op=hvd.Sum, ignore_name_scope=True))
        return results

    size = hvd.size()
    assert in_graph(build) == [*[10.0 * i * size + size * (size - 1) / 2 for i in range(4)], size]


def check_errors() -> None:
    def build() -> Any:
        return hvd.allreduce(tf.ones(2 + hvd.rank()), name="shapes")

    with pytest.raises(tf.errors.FailedPreconditionError, match="Mismatched ALLREDUCE tensor shapes"):
        in_graph(build)


def check_broadcast_of_global_variables() -> None:
    def build() -> Any:
        v = v1.get_variable("v", initializer=[1.0 + hvd.rank()])
        w = v1.get_variable("w", initializer=[[5.0 * hvd.rank()]], use_resource=True)
        with tf.control_dependencies([hvd.broadcast_global_variables(1)]):
            return v.read_value(), w.read_value()

    v, w = in_graph(build)
    assert v.tolist() == [2.0]
    assert w.tolist() == [[5.0]]


def check_the_hook() -> None:
    with tf.Graph().as_default():
        v = v1.get_variable("v", initializer=[1.0 + hvd.rank()])
        v1.train.create_global_step()
        with v1.train.MonitoredTrainingSession(hooks=[hvd.BroadcastGlobalVariablesHook(1)]) as session:
            assert session.run(v).tolist() == [2.0]


def trained(optimizer: Any, factor: float, steps: int = 3) -> Any:
    with tf.Graph().as_default():
        w = v1.get_variable("w", initializer=[1.0, 2.0])
        b = v1.get_variable("b", initializer=0.5)
        loss = factor * (tf.reduce_sum(w * w) + b * 3.0)
        step = v1.train.get_or_create_global_step()
        update = optimizer().minimize(loss, global_step=step)
        with v1.Session() as session:
            session.run([v1.global_variables_initializer(), v1.local_variables_initializer()])
            for _ in range(steps):
                session.run(update)
            return [np.asarray(value) for value in session.run([w, b, step])]


def check_optimizers() -> None:
    for make in (
        lambda: v1.train.GradientDescentOptimizer(0.1), lambda: v1.train.MomentumOptimizer(0.1, 0.9),
        lambda: v1.train.AdamOptimizer(0.1),
    ):  # fmt: skip
        got = trained(lambda make=make: hvd.DistributedOptimizer(make()), 1.0 + hvd.rank())
        for value, expected in zip(got, trained(make, (hvd.size() + 1) / 2), strict=True):
            np.testing.assert_allclose(value, expected, rtol=1e-5)


def check_passes_are_summed() -> None:
    """Rows S26 and S27."""
    sgd = lambda: v1.train.GradientDescentOptimizer(0.1)  # noqa: E731
    for average in (False, True):
        wrapped = lambda a=average: hvd.DistributedOptimizer(  # noqa: E731
            sgd(), backward_passes_per_step=2, average_aggregated_gradients=a
        )
        assert trained(wrapped, 1.0 + hvd.rank(), 1)[1] == 0.5
        got = trained(wrapped, 1.0 + hvd.rank(), 4)
        expected = trained(sgd, (hvd.size() + 1) / 2 * (1 if average else 2), 2)
        for value, wanted in zip(got, expected, strict=True):
            np.testing.assert_allclose(value, wanted, rtol=1e-5)


def check_the_wrapper_is_like_the_optimizer() -> None:
    wrapped = hvd.DistributedOptimizer(v1.train.MomentumOptimizer(0.1, 0.9))
    assert wrapped.get_name() == "DistributedMomentumOptimizer"
    assert wrapped.get_slot_names() == []
    with pytest.raises(ValueError, match="already"):
        hvd.DistributedOptimizer(wrapped)


def check_options_of_the_optimizer() -> None:
    """Every way to reduce, and a variable that stays local, over one pass and over two."""
    mine, mean = hvd.rank() + 1.0, sum(r + 1.0 for r in range(hvd.size())) / hvd.size()
    cases: list[tuple[dict[str, Any], float, float]] = [
        ({}, mean, mine / hvd.size()), ({"op": hvd.Sum}, mean * hvd.size(), mine / hvd.size()),
        ({"compression": hvd.Compression.fp16}, mean, mine / hvd.size()), ({"groups": 1}, mean, mine / hvd.size()),
        ({"gradient_predivide_factor": 2.0}, mean, mine / hvd.size()), ({"scale_local_gradients": False}, mean, mine),
    ]  # fmt: skip
    for passes in (1, 2):
        for options, shared, local in cases:

            def build(options: dict[str, Any] = options, passes: int = passes) -> Any:
                variables = [v1.get_variable(name, initializer=[0.0], use_resource=True) for name in "abc"]
                optimizer = hvd.DistributedOptimizer(
                    v1.train.GradientDescentOptimizer(1.0), backward_passes_per_step=passes, **options
                )
                optimizer.register_local_var(variables[2])
                return variables, optimizer.minimize(tf.add_n([tf.reduce_sum(v) for v in variables]) * mine)

            with tf.Graph().as_default(), v1.Session() as session:
                variables, update = build()
                session.run([v1.global_variables_initializer(), v1.local_variables_initializer()])
                for _ in range(passes):
                    session.run(update)
                got = [float(value[0]) for value in session.run(variables)]
            np.testing.assert_allclose(got, [-passes * shared, -passes * shared, -passes * local], rtol=1e-3)


def check_the_counter_of_passes() -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        v = v1.get_variable("v", initializer=[0.0], use_resource=True)
        optimizer = hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(1.0), backward_passes_per_step=3)
        update = optimizer.minimize(tf.reduce_sum(v))
        session.run([v1.global_variables_initializer(), v1.local_variables_initializer()])
        session.run(update)
        assert int(session.run(optimizer._agg_helper.counter)) == 1
        assert [w.name.split("/")[0] for w in v1.local_variables()] == [
            f"aggregation_variables_DistributedGradientDescentOptimizer{hvd.rank()}"
        ] * 2


def check_two_optimizers_of_one_class_keep_their_sums_apart() -> None:
    mean = sum(r + 1.0 for r in range(hvd.size())) / hvd.size()
    with tf.Graph().as_default(), v1.Session() as session:
        a, b = (v1.get_variable(name, initializer=[0.0], use_resource=True) for name in "ab")
        updates = [
            hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(1.0), backward_passes_per_step=2).minimize(
                tf.reduce_sum(variable) * factor * (hvd.rank() + 1.0), var_list=[variable]
            )
            for variable, factor in ((a, 1.0), (b, 10.0))
        ]
        session.run([v1.global_variables_initializer(), v1.local_variables_initializer()])
        for update in (*updates, *updates):
            session.run(update)
        np.testing.assert_allclose(session.run([a, b]), [[-2 * mean], [-20 * mean]], rtol=1e-6)
