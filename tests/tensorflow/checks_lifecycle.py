"""Shut down and start again, a rank that leaves while another waits, calls from several threads."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

import horovod.tensorflow as hvd
import pytest
import tensorflow as tf

v1 = tf.compat.v1


def restart() -> None:
    hvd.shutdown()
    hvd.init()


def in_session(call: Callable[[], Any]) -> Any:
    with tf.Graph().as_default(), v1.Session() as session:
        return session.run(call())


WAYS: dict[str, Callable[[Callable[[], Any]], Any]] = {
    "eager": lambda call: call(),
    "function": lambda call: tf.function(call)(),
    "session": in_session,
}


def check_a_rank_that_shuts_down_is_an_unknown_error_for_the_others() -> None:
    for way, run in WAYS.items():
        if hvd.rank() == 0:
            with pytest.raises(tf.errors.UnknownError, match="Horovod has been shut down") as raised:
                run(lambda w=way: hvd.allreduce(tf.ones(3), name=f"nobody comes {w}"))
            assert way != "eager" or isinstance(raised.value, hvd.HorovodInternalError)
        restart()


def check_gradients_of_a_job_that_is_over() -> None:
    variable = tf.Variable([1.0])

    def step() -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(variable) * (hvd.rank() + 1.0)
        return hvd.DistributedGradientTape(tape).gradient(loss, [variable])[0]

    traced = tf.function(step)
    expected = [sum(r + 1.0 for r in range(hvd.size())) / hvd.size()]
    assert traced().numpy().tolist() == expected
    for run in (step, traced):
        if hvd.rank() == 0:
            with pytest.raises(tf.errors.UnknownError, match="Horovod has been shut down"):
                run()
        restart()
        assert run().numpy().tolist() == expected  # what was traced before works in the new epoch


def check_calls_between_two_jobs() -> None:
    """Row S46."""
    traced = tf.function(lambda: hvd.allreduce(tf.ones(2), op=hvd.Sum))
    assert traced().numpy().tolist() == [hvd.size()] * 2
    hvd.shutdown()
    for run in (*WAYS.values(), lambda _: traced()):
        with pytest.raises((tf.errors.FailedPreconditionError, ValueError), match="not been initialized"):
            run(lambda: hvd.allreduce(tf.ones(2), op=hvd.Sum))
    hvd.init()
    hvd.init()
    assert traced().numpy().tolist() == [hvd.size()] * 2


def check_five_cycles() -> None:
    """Row S46."""
    restart()
    before = threading.active_count()
    for _ in range(5):
        restart()
        assert float(hvd.allreduce(tf.constant(1.0), op=hvd.Sum)) == hvd.size()
        assert int(tf.function(hvd.join)()) in range(hvd.size())
    assert threading.active_count() <= before


def check_a_name_that_is_in_flight_is_told_at_once() -> None:
    """The second call of the name fails before anybody else has come; the first one is not disturbed."""
    if hvd.rank() == 0:
        outcomes: queue.Queue[Any] = queue.Queue()

        def call() -> None:
            try:
                outcomes.put(hvd.allreduce(tf.constant(1.0), op=hvd.Sum, name="twice"))
            except Exception as error:
                outcomes.put(error)

        threads = [threading.Thread(target=call) for _ in range(2)]
        for thread in threads:
            thread.start()
        error = outcomes.get(timeout=60)
        assert isinstance(error, tf.errors.InvalidArgumentError), error
        assert "in flight" in str(error)
        assert isinstance(error, ValueError)
        hvd.broadcast_object("go on", 0)
        assert float(outcomes.get(timeout=60)) == hvd.size()
        for thread in threads:
            thread.join()
    else:
        hvd.broadcast_object(None, 0)
        hvd.allreduce(tf.constant(1.0), op=hvd.Sum, name="twice")
