"""Keras states and callbacks in one process; the elastic scripts as programs of their own."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow", reason="TensorFlow is not installed")

import horovod.tensorflow as hvd  # noqa: E402
import horovod.tensorflow.keras as hvd_keras  # noqa: E402
import keras  # noqa: E402
from horovod.common.exceptions import (  # noqa: E402
    HorovodInternalError,
    HostsUpdatedInterrupt,
    RankLostError,
)
from horovod.tensorflow.bridge import call_host  # noqa: E402

from tests.tensorflow import elastic_scripts  # noqa: E402
from tests.tensorflow.harness import run_job  # noqa: E402

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(300)]

X = np.random.default_rng(1).normal(size=(24, 3)).astype("float32")
Y = X[:, :1]


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    """A world of size 1."""
    hvd.init()
    yield
    hvd.shutdown()


def make(optimizer: Any = None, dtype: Any = None) -> Any:
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Dense(4, dtype=dtype), keras.layers.Dropout(0.5), keras.layers.Dense(1, dtype=dtype)]
    model = keras.Sequential([keras.Input((3,)), *layers])
    # Eagerly, for what matters here does not need graphs, and tracing them takes a second each.
    model.compile(optimizer=optimizer or keras.optimizers.Adam(0.01), loss="mse", run_eagerly=True)
    return model


def content(model: Any) -> list[Any]:
    variables = [*model.variables, *model.optimizer.variables]
    return [(v.dtype, np.array(v.numpy()).tobytes()) for v in variables]


def fit(model: Any, *callbacks: Any, **options: Any) -> Any:
    return model.fit(X, Y, **{"batch_size": 4, "verbose": 0, "callbacks": list(callbacks), **options})


def test_a_model_must_be_built() -> None:
    model = keras.Sequential([keras.layers.Dense(1)])
    for state in (hvd_keras.elastic.KerasState, hvd.elastic.TensorFlowKerasState):
        with pytest.raises(ValueError, match=r"Model must be built first\. Run `model\.build\(input_shape\)`"):
            state(model)


@pytest.mark.parametrize("dtype", [None, "mixed_bfloat16", "bfloat16"])
@pytest.mark.parametrize("steps", [0, 1])
def test_restored_to_the_last_bit(dtype: Any, steps: int) -> None:
    """Seeds of dropout, too; and an optimizer that had made no step has no slots to be forgotten."""
    model = make(dtype=dtype)
    if steps:
        fit(model, batch_size=24)
    state: Any = hvd_keras.elastic.KerasState(model, items=[1])
    wanted = content(model)
    for _ in range(2):
        fit(model, batch_size=24)
        state.items.append(2)
        assert content(model) != wanted
        state.restore()
        assert content(model) == wanted
        assert state.items == [1]


def test_a_commit_that_fails_midway_changes_nothing() -> None:
    model = make()
    state: Any = hvd_keras.elastic.KerasState(model, items=[1])
    wanted = content(model)
    fit(model, batch_size=24)
    state.items.append(n for n in range(3))
    with pytest.raises(ValueError, match=r"KerasState\.items can't be copied"):
        state.commit()
    state.restore()
    assert content(model) == wanted
    assert state.items == [1]


def test_gradients_of_half_a_step_are_forgotten() -> None:
    """Of ``backward_passes_per_step=2``: those summed up since the commit, whether there were sums then or not."""

    def train(passes: int, restores: bool) -> Any:
        optimizer = hvd_keras.DistributedOptimizer(keras.optimizers.SGD(0.1), backward_passes_per_step=2)
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, kernel_initializer="ones")])
        gradients = [tf.ones(v.shape) for v in model.trainable_variables]
        state = hvd.elastic.TensorFlowKerasState(model, optimizer)
        for _ in range(passes):
            optimizer.apply(gradients, model.trainable_variables)
        state.commit() if passes > 1 else None
        if restores:
            optimizer.apply([g * 50 for g in gradients], model.trainable_variables)
            state.restore()
            passes = passes if passes > 1 else 0
        for _ in range(4 - passes):
            optimizer.apply(gradients, model.trainable_variables)
        return model.get_weights()

    for passes in (0, 1, 3):
        for got, wanted in zip(train(passes, restores=True), train(passes, restores=False), strict=True):
            np.testing.assert_array_equal(got, wanted)


def test_one_process_recovers_from_the_error_of_a_graph() -> None:
    """A failure inside a ``tf.function``, which TensorFlow raises as its own; the second one ends with advice."""
    v = tf.Variable(0.0)
    state: Any = hvd.elastic.TensorFlowState([v], step=0)
    seen: list[float] = []

    def lose() -> Any:
        raise RankLostError("Rank 1 is gone.")

    @tf.function
    def update() -> None:
        v.assign_add(1.0)
        call_host(lose, [], [tf.int32], "HorovodReducescatter")

    @hvd.elastic.run
    def train(state: Any) -> None:
        seen.append(float(v))
        update()

    with pytest.raises(HorovodInternalError, match=r"(?s)Rank 1 is gone.* failed again without a commit") as raised:
        train(state)
    assert isinstance(raised.value, tf.errors.UnknownError)
    assert seen == [0.0, 0.0]


def test_eager_errors_carry_the_advice() -> None:
    def lose() -> Any:
        raise RankLostError("Rank 1 is gone.")

    @hvd.elastic.run
    def train(state: Any) -> None:
        call_host(lose, [], [tf.int32], "HorovodJoin")

    with pytest.raises(tf.errors.UnknownError, match=r"^Rank 1 is gone\. It failed again"):
        train(hvd.elastic.TensorFlowState([], step=0))


# ---- callbacks


def small() -> Any:
    """What is trained does not matter."""
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile(optimizer=keras.optimizers.SGD(0.01), loss="mse", run_eagerly=True)
    return model


class Noting:
    """A state that notes when it is committed."""

    def __init__(self, batch: int = 0, epoch: int = 0) -> None:
        self.batch, self.epoch = batch, epoch
        self.commits: list[tuple[int, int]] = []
        self.raises = -1

    def commit(self) -> None:
        self.commits.append((self.epoch, self.batch))
        if len(self.commits) == self.raises:
            raise HostsUpdatedInterrupt


def test_commits_every_so_many_batches_and_at_the_end_of_epochs() -> None:
    for every, wanted in ((1, 14), (2, 8), (4, 5), (100, 2)):
        state: Any = Noting()
        fit(small(), hvd_keras.elastic.CommitStateCallback(state, batches_per_commit=every), epochs=2)
        assert len(state.commits) == wanted
    for wrong in (0, -1, 1.5, "2", True):
        with pytest.raises(ValueError, match="batches_per_commit must be an integer > 0"):
            hvd_keras.elastic.CommitStateCallback(Noting(), batches_per_commit=wrong)


@pytest.mark.parametrize("commits_first", [True, False])
def test_the_batch_that_is_committed_is_the_one_that_was_trained(commits_first: bool) -> None:
    state: Any = Noting()
    callbacks = [hvd_keras.elastic.CommitStateCallback(state), hvd_keras.elastic.UpdateBatchStateCallback(state)]
    fit(small(), *(callbacks if commits_first else callbacks[::-1]), epochs=1)
    assert [batch for _, batch in state.commits[:6]] == [0, 1, 2, 3, 4, 5]
    assert state.batch == 0


class Batches(keras.callbacks.Callback):  # type: ignore[misc]
    """Counts the batches of each epoch, and stops when it is told to."""

    def __init__(self, stop_after: int = -1) -> None:
        super().__init__()
        self.epochs: list[int] = []
        self.steps: list[int] = []
        self.stop_after = stop_after

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.epochs.append(0)
        self.steps.append(self.params["steps"])

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.epochs[-1] += 1

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if len(self.epochs) == self.stop_after:
            self.model.stop_training = True


@pytest.mark.parametrize(
    ("batch", "wanted", "validates"),
    [
        (0, [6, 6], True),
        (2, [4, 6], True),
        (5, [1, 6], False),
        (6, [6, 6], False),
        (100, [6, 6], False),
        (-1, [6, 6], False),
    ],
)
def test_an_epoch_that_was_begun_is_shortened(batch: int, wanted: list[int], validates: bool) -> None:
    """What Keras 3 does not do for a changed number of steps."""
    state: Any = Noting(batch=batch)
    counting = Batches()
    options = {"validation_data": (X, Y)} if validates else {}
    callbacks = [hvd_keras.elastic.UpdateBatchStateCallback(state), counting]
    fit(small(), *callbacks, epochs=2, **options)
    assert counting.epochs == counting.steps == wanted
    assert state.batch == 0


def test_other_reasons_to_stop_are_heard() -> None:
    for order in (1, -1):
        counting = Batches(stop_after=1)
        fit(small(), *[hvd_keras.elastic.UpdateBatchStateCallback(Noting(batch=3)), counting][::order], epochs=3)
        assert counting.epochs == [3]


def test_an_interrupt_leaves_fit_and_the_next_one_goes_on() -> None:
    state: Any = Noting()
    state.raises = 9
    model, counting = small(), Batches()
    elastic = hvd_keras.elastic
    callbacks = [
        elastic.CommitStateCallback(state), elastic.UpdateBatchStateCallback(state),
        elastic.UpdateEpochStateCallback(state), counting,
    ]  # fmt: skip
    with pytest.raises(HostsUpdatedInterrupt):
        fit(model, *callbacks, epochs=3)
    assert (state.epoch, state.batch) == (1, 1)
    state.raises = -1
    fit(model, *callbacks, epochs=3 - state.epoch)
    assert counting.epochs == [6, 1, 5, 6]
    assert (state.epoch, state.batch) == (3, 0)


@pytest.mark.parametrize("counts_on", [False, True])
def test_epochs_are_counted_over_all_fits(counts_on: bool) -> None:
    """Upstream counts twice where ``fit`` is given ``initial_epoch``."""
    state: Any = Noting()
    update = hvd_keras.elastic.UpdateEpochStateCallback(state)
    for until in (2, 3, 3, 5):
        if counts_on:
            fit(small(), update, initial_epoch=state.epoch, epochs=until)
        else:
            fit(small(), update, epochs=until - state.epoch)
        assert state.epoch == until


# ---- programs


@pytest.mark.slow  # the same scripts run in the job of test_ranks.py
@pytest.mark.parametrize(
    ("name", "backend", "wanted"),
    [
        ("TF2", "tensorflow", "2 30 True 1"),
        ("KERAS", "tensorflow", "2 3 0 True True"),
        ("KERAS", "torch", "2 3 0 True True"),
    ],
)
def test_the_tutorials_run_verbatim(tmp_path: Path, name: str, backend: str, wanted: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(getattr(elastic_scripts, name))
    text = run_job(2, [str(script)], KERAS_BACKEND=backend)
    assert re.findall(r"RESULT (.*)", text) == [wanted] * 2, text[-3000:]
