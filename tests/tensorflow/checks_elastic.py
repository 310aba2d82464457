"""TensorFlowState, TensorFlowKerasState and ``run`` on real ranks; and the elastic scripts, on the ranks of this job."""

from __future__ import annotations

import contextlib
import io
from typing import Any

import horovod.tensorflow as hvd
import keras
import numpy as np
import pytest
import tensorflow as tf
from horovod.common.elastic import HostUpdateResult, notification_manager
from horovod.common.exceptions import HostsUpdatedInterrupt
from horovod.tensorflow.keras import elastic

from tests.tensorflow import elastic_scripts


def run_here(script: str) -> str:
    """What the script prints on this rank."""
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        exec(compile(script, "train.py", "exec"), {"__name__": "__main__"})
    return shown.getvalue()


def assert_same(value: Any) -> None:
    values = hvd.allgather_object(value)
    assert all(other == values[0] for other in values)


def check_the_tutorial_of_tensorflow_2() -> None:
    assert run_here(elastic_scripts.TF2) == f"RESULT {hvd.size()} 30 True 1\n"


def check_the_tutorial_of_keras() -> None:
    assert run_here(elastic_scripts.KERAS) == f"RESULT {hvd.size()} 3 0 True True\n"


def check_variables_are_really_broadcast() -> None:
    """Upstream's state of variables sends nothing in TensorFlow 2 when it is synchronised."""
    rank = hvd.rank()
    variables = [
        tf.Variable([1.0 + rank, 2.0]), tf.Variable(rank, dtype=tf.int64), tf.Variable(f"text {rank}"),
        keras.Variable(np.full((2, 1), rank, "float32")), tf.Variable(tf.zeros([0, 3])),
    ]  # fmt: skip
    state: Any = hvd.elastic.TensorFlowState(variables, step=rank, table={"rows": [rank]})
    assert variables[0].numpy().tolist() == [1.0 + rank, 2.0]  # nothing is sent before run
    state.table["rows"].append(rank)
    state.sync()
    assert variables[0].numpy().tolist() == [1.0, 2.0]
    assert (int(variables[1]), variables[3].numpy().tolist()) == (0, [[0.0], [0.0]])
    assert variables[2].numpy().decode() == f"text {rank}"
    assert (state.step, state.table) == (0, {"rows": [0, 0]})
    variables[0].assign([5.0, 5.0])
    state.step = 4
    state.restore()
    assert (variables[0].numpy().tolist(), state.step) == ([1.0, 2.0], 0)


def check_variables_of_a_session() -> None:
    """No operation is added to the graph, which may be final."""
    with tf.Graph().as_default():
        v = tf.compat.v1.get_variable("elastic_v", initializer=tf.constant([1.0, 2.0]) * (1 + hvd.rank()))
        n = tf.compat.v1.get_variable("elastic_n", initializer=hvd.rank(), dtype=tf.int32, use_resource=True)
        add = v.assign_add([1.0, 1.0])
        initialize = tf.compat.v1.global_variables_initializer()
        tf.compat.v1.get_default_graph().finalize()
        with tf.compat.v1.Session() as session:
            session.run(initialize)
            state: Any = hvd.elastic.TensorFlowState(session=session, step=hvd.rank())
            for _ in range(3):
                state.sync()
            assert session.run([v, n])[0].tolist() == [1.0, 2.0]
            assert int(session.run(n)) == state.step == 0
            session.run(add)
            state.commit()
            session.run(add)
            state.restore()
            assert session.run(v).tolist() == [2.0, 3.0]


def net(dropout: float = 0.0) -> Any:
    keras.utils.set_random_seed(hvd.rank())
    layers = [keras.layers.Dense(4, activation="tanh"), keras.layers.Dropout(dropout), keras.layers.Dense(1)]
    return keras.Sequential([keras.Input((3,)), *layers])


def content(model: Any, optimizer: Any) -> list[Any]:
    values = [*model.weights, *optimizer.variables]
    return [(str(v.dtype), np.asarray(v.numpy()).tobytes()) for v in values]


def check_optimizers_without_slots_on_some_ranks() -> None:
    """P19: what running ranks have and a rank that comes later has not."""
    model = net()
    optimizer = keras.optimizers.Adam(0.1 * (1 + hvd.rank()))
    if hvd.rank() == 0:
        optimizer.apply([tf.ones(v.shape) for v in model.trainable_variables], model.trainable_variables)
    state: Any = hvd.elastic.TensorFlowKerasState(model, optimizer, epoch=hvd.rank())
    state.sync()
    assert_same(content(model, optimizer))
    assert int(optimizer.iterations) == 1
    assert state.epoch == 0


def check_new_hosts_during_fit() -> None:
    """The ranks meet again; batches that were trained are not trained again, and the epoch goes on where it was."""
    model = net(dropout=0.2)
    model.compile(optimizer=hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)), loss="mse")
    rng = np.random.default_rng(hvd.rank())
    x, y = rng.normal(size=(24, 3)).astype("float32"), rng.normal(size=(24, 1)).astype("float32")
    state: Any = elastic.KerasState(model, epoch=0, batch=0)
    seen: list[tuple[int, int]] = []
    attempts: list[int] = []

    class Watch(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            seen.append((state.epoch, state.batch))
            if len(seen) == 9 and hvd.rank() == 0:
                notification_manager.handle_hosts_updated(100.0, HostUpdateResult.added)

    @elastic.run
    def train(state: Any) -> None:
        attempts.append(state.epoch)
        callbacks = [
            elastic.UpdateBatchStateCallback(state), elastic.UpdateEpochStateCallback(state), Watch(),
            elastic.CommitStateCallback(state),
        ]  # fmt: skip
        model.fit(x, y, batch_size=4, epochs=3, initial_epoch=state.epoch, callbacks=callbacks, verbose=0)

    train(state)
    assert attempts == [0, 1]
    first = [(0, batch) for batch in range(6)] + [(1, 0), (1, 1), (1, 2)]
    # The batch that was trained last is trained once more.
    assert seen == first + [(1, batch) for batch in range(2, 6)] + [(2, batch) for batch in range(6)]
    assert (state.epoch, state.batch) == (3, 0)
    assert int(model.optimizer.iterations) == len(seen)
    assert_same(content(model, model.optimizer))


def check_errors_of_graphs_are_recognised() -> None:
    """Of every operation; upstream knows three of them.  Ranks that disagree end at once, with advice."""
    calls = {
        "allreduce": lambda x: hvd.allreduce(x, name="e"),
        "allgather": lambda x: hvd.allgather(x[None], name="e"),
        "alltoall": lambda x: hvd.alltoall(x, splits=[1, 1] + [0] * (hvd.size() - 2), name="e"),
        "reducescatter": lambda x: hvd.reducescatter(x, name="e"),
        "broadcast": lambda x: hvd.broadcast(x, 0, name="e"),
        "grouped": lambda x: hvd.grouped_allreduce([x], name="e")[0],
    }
    for what, call in calls.items():
        dtype = tf.float32 if hvd.rank() == 0 else tf.float64
        attempts: list[int] = []

        @hvd.elastic.run
        def train(state: Any, call: Any = call, dtype: Any = dtype, attempts: list[int] = attempts) -> None:
            attempts.append(1)
            tf.function(call)(tf.ones([2], dtype))

        with pytest.raises(hvd.HorovodInternalError, match="ranks of this job are fixed") as raised:
            train(hvd.elastic.TensorFlowState([], step=0))
        assert isinstance(raised.value, tf.errors.FailedPreconditionError), what
        assert attempts == [1]


def check_errors_of_others_are_theirs() -> None:
    """Upstream swallows an UnknownError that is not Horovod's, and returns None."""

    def fail() -> None:
        raise RuntimeError("the disk is full, RankLostError: or so")

    @hvd.elastic.run
    def train(state: Any) -> None:
        tf.function(lambda: tf.numpy_function(fail, [], tf.int32))()

    with pytest.raises(tf.errors.UnknownError, match="the disk is full") as raised:
        train(hvd.elastic.TensorFlowState([], step=0))
    assert not isinstance(raised.value, hvd.HorovodInternalError)

    @hvd.elastic.run
    def interrupted(state: Any) -> int:
        state.step += 1
        if state.step == 1:
            raise HostsUpdatedInterrupt
        return int(hvd.allreduce(tf.constant(1), op=hvd.Sum, name="after"))

    assert interrupted(hvd.elastic.TensorFlowState([], step=0)) == hvd.size()
