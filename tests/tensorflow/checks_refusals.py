"""Calls that are wrong, and what users catch: the classes of TensorFlow's errors, with texts that name the cause."""

from __future__ import annotations

from typing import Any

import horovod.tensorflow as hvd
import pytest
import tensorflow as tf


def works() -> None:
    """Row P16: the engine goes on after an error."""
    assert float(hvd.allreduce(tf.constant(1.0), op=hvd.Sum)) == hvd.size()


def refused(kind: type[Exception], text: str, call: Any, *inputs: Any) -> None:
    """The same class eagerly, inside of a function, and in a session."""
    with pytest.raises(kind, match=text) as eager:
        call(*inputs)
    assert isinstance(eager.value, (hvd.HorovodInternalError, ValueError))
    with pytest.raises(kind, match=text):
        tf.function(call)(*inputs)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session, pytest.raises(kind, match=text):
        session.run(call(*[tf.constant(value.numpy()) for value in inputs]))
    works()


def check_mismatches() -> None:
    """Rows P16 and S18."""
    me, failed = hvd.rank(), tf.errors.FailedPreconditionError
    refused(failed, r"Mismatched ALLREDUCE tensor shapes", lambda x: hvd.allreduce(x, name="shape"), tf.ones(2 + me))
    wide = tf.float32 if me else tf.float64
    refused(failed, r"Mismatched data types: .*float64.*float32|float32.*float64",
            lambda x: hvd.allreduce(x, name="dtype"), tf.cast(1.0, wide))  # fmt: skip
    op = hvd.Sum if me else hvd.Max
    refused(failed, r"Mismatched reduction operation", lambda x: hvd.allreduce(x, op=op, name="op"), tf.ones(2))
    refused(failed, r"Mismatched BROADCAST root ranks", lambda x: hvd.broadcast(x, min(me, 1), name="root"), tf.ones(2))
    refused(failed, r"Mismatched ALLGATHER", lambda x: hvd.allgather(x, name="gather"), tf.ones((1, 2 + me)))
    factor = 1.0 + me
    refused(failed, r"Mismatched prescale", lambda x: hvd.allreduce(x, prescale_factor=factor, name="f"), tf.ones(2))


def check_scalars_that_have_no_rows() -> None:
    failed = tf.errors.FailedPreconditionError
    refused(failed, "without dimensions", hvd.allgather, tf.constant(1.0))
    refused(failed, "without dimensions", hvd.alltoall, tf.constant(1.0))
    refused(tf.errors.InvalidArgumentError, "without dimensions", hvd.reducescatter, tf.constant(1.0))


def check_arguments() -> None:
    invalid = tf.errors.InvalidArgumentError
    refused(invalid, "root rank 99 is not in the process set", lambda x: hvd.broadcast(x, 99), tf.ones(1))
    refused(invalid, "splits", lambda x: hvd.alltoall(x, [1] * (hvd.size() + 1)), tf.ones(4))
    refused(invalid, "don't fit", lambda x: hvd.alltoall(x, [9] * hvd.size()), tf.ones(4))
    refused(invalid, "none of Average", lambda x: hvd.allreduce(x, op=17), tf.ones(4))
    refused(invalid, "booleans have no average", hvd.allreduce, tf.constant([True]))
    refused(invalid, "must be numbers", lambda x: hvd.allreduce(x, prescale_factor=None), tf.ones(1))
    refused(invalid, "must be finite", lambda x: hvd.allreduce(x, prescale_factor=float("inf")), tf.constant([1]))
    refused(invalid, "complex64 can't be sent", hvd.allreduce, tf.ones(1, tf.complex64))
    refused(tf.errors.AbortedError, "only Average and Sum", lambda x: hvd.reducescatter(x, op=hvd.Max), tf.ones(4))
    with pytest.raises(ValueError, match="is no compressor"):
        hvd.allreduce(tf.ones(1), compression="fp16")
    with pytest.raises(TypeError, match="not registered"):
        hvd.allreduce(tf.ones(1), process_set=hvd.ProcessSet([0]))
    with pytest.raises(TypeError, match="takes a list"):
        hvd.grouped_allreduce(tf.ones(1))
    works()


def check_xla_is_refused_when_traced() -> None:
    """Row P36: one clear error that says what to set."""

    @tf.function(jit_compile=True)
    def compiled(x: Any) -> Any:
        return hvd.allreduce(x)

    with pytest.raises(tf.errors.InvalidArgumentError, match=r"jit_compile=True.*jit_compile=False"):
        compiled(tf.ones(2))
    works()


def check_contradicting_settings() -> None:
    tape = tf.GradientTape()
    for options, text in [
        ({"op": hvd.Sum, "gradient_predivide_factor": 2.0}, "predivide"),
        ({"gradient_predivide_factor": 0}, "above 0"),
        ({"groups": 0}, "groups"),
        ({"groups": "x"}, "groups"),
        ({"groups": [["x"]]}, "lists of variables"),
        ({"compression": "fp16"}, "no compressor"),
    ]:
        with pytest.raises(ValueError, match=text):
            hvd.DistributedGradientTape(tape, **options)
        with pytest.raises(ValueError, match=text):
            hvd.DistributedOptimizer(tf.keras.optimizers.SGD(), **options)
    with pytest.raises(ValueError, match="already"):
        hvd.DistributedGradientTape(hvd.DistributedGradientTape(tape))
    wrapped = hvd.DistributedOptimizer(tf.keras.optimizers.SGD())
    with pytest.raises(ValueError, match="already"):
        hvd.DistributedOptimizer(wrapped)
    with pytest.raises(ValueError, match="not str"):
        hvd.DistributedOptimizer("sgd")
    for passes in (0, 1.5, True):
        with pytest.raises(ValueError, match="backward_passes_per_step"):
            hvd.DistributedOptimizer(tf.keras.optimizers.SGD(), backward_passes_per_step=passes)
    with pytest.raises(ValueError, match="only op=Average and op=Sum"):
        hvd.DistributedOptimizer(tf.keras.optimizers.SGD(), op=hvd.Adasum)


def check_session_only_calls_say_so() -> None:
    with pytest.raises(RuntimeError, match="does not support eager execution"):
        hvd.broadcast_global_variables(0)
