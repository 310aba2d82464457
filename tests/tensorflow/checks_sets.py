"""Process sets: members, outsiders, and averages over the set's own size."""

from __future__ import annotations

import horovod.tensorflow as hvd
import numpy as np
import pytest
import tensorflow as tf
from horovod.common.basics import HorovodBasics


def check_sets() -> None:
    """Row S48."""
    HorovodBasics().shutdown()
    first = hvd.ProcessSet([0])
    last_two = hvd.ProcessSet([hvd_size - 1, hvd_size - 2])
    sets = [first] if hvd_size == 2 else [first, last_two]
    hvd.init(process_sets=sets)
    me = hvd.rank()
    if len(sets) > 1 and me in (hvd_size - 1, hvd_size - 2):
        got = hvd.allreduce(tf.constant(2.0 * me), process_set=last_two, name="same name")
        assert float(got) == float(2 * hvd_size - 3)
        assert hvd.allgather(tf.constant([me]), process_set=last_two).numpy().tolist() == [hvd_size - 2, hvd_size - 1]
        assert int(hvd.broadcast(tf.constant(me), hvd_size - 1, process_set=last_two)) == hvd_size - 1
    if me == 0:
        assert (
            float(tf.function(lambda x: hvd.allreduce(x, process_set=first, name="same name"))(tf.constant(3.0))) == 3
        )
        assert int(hvd.size_op(first.process_set_id)) == 1
    else:
        with pytest.raises(tf.errors.InvalidArgumentError, match=rf"rank {me} is not a member"):
            hvd.allreduce(tf.constant(3.0), process_set=first)
        assert int(hvd.process_set_included_op(first.process_set_id)) == 0
    outsiders_step_alone(first)
    optimizers_of_a_set(last_two, {hvd_size - 1, hvd_size - 2} if len(sets) > 1 else None)
    np.testing.assert_allclose(hvd.allreduce(tf.constant(1.0)).numpy(), 1.0)
    HorovodBasics().shutdown()
    hvd.init()


def outsiders_step_alone(group: hvd.ProcessSet) -> None:
    w = tf.Variable([1.0])
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(w * (hvd.rank() + 1))
    tape = hvd.DistributedGradientTape(tape, process_set=group)
    assert tape.gradient(loss, [w])[0].numpy().tolist() == [hvd.rank() + 1]


def optimizers_of_a_set(group: hvd.ProcessSet, members: set[int] | None) -> None:
    """Members get their set's average, others keep their own gradients: with Keras, in a session, and with local ones."""
    if members is None:
        return
    mine = hvd.rank() + 1.0
    average = float(np.mean([r + 1.0 for r in members])) if hvd.rank() in members else mine
    local = mine / len(members) if hvd.rank() in members else mine
    a, b = tf.keras.Variable([0.0]), tf.keras.Variable([0.0])
    optimizer = hvd.DistributedOptimizer(tf.keras.optimizers.SGD(1.0), process_set=group)
    optimizer.register_local_var(b)
    optimizer.apply([tf.constant([mine])] * 2, [a, b])
    np.testing.assert_allclose([a.numpy()[0], b.numpy()[0]], [-average, -local], rtol=1e-6)
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        v, u = v1.get_variable("v", initializer=[0.0]), v1.get_variable("u", initializer=[0.0])
        wrapped = hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(1.0), process_set=group)
        wrapped.register_local_var(u)
        update = wrapped.minimize((tf.reduce_sum(v) + tf.reduce_sum(u)) * mine)
        session.run(v1.global_variables_initializer())
        session.run(update)
        np.testing.assert_allclose([value[0] for value in session.run([v, u])], [-average, -local], rtol=1e-6)


hvd_size = hvd.size()
