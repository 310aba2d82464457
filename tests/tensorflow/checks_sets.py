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
    check_outsiders_step_alone(first)
    np.testing.assert_allclose(hvd.allreduce(tf.constant(1.0)).numpy(), 1.0)
    HorovodBasics().shutdown()
    hvd.init()


def check_outsiders_step_alone(group: hvd.ProcessSet | None = None) -> None:
    if group is None:
        return
    w = tf.Variable([1.0])
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(w * (hvd.rank() + 1))
    tape = hvd.DistributedGradientTape(tape, process_set=group)
    assert tape.gradient(loss, [w])[0].numpy().tolist() == [hvd.rank() + 1]


hvd_size = hvd.size()
