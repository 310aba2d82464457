"""KerasState and the elastic callbacks on the torch backend."""

from __future__ import annotations

import contextlib
import io
from typing import Any

import horovod.keras as hvd
import keras
import numpy as np
from horovod.common.exceptions import HostsUpdatedInterrupt

from tests.tensorflow import elastic_scripts


def check_the_tutorial_of_keras() -> None:
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        exec(compile(elastic_scripts.KERAS, "train.py", "exec"), {"__name__": "__main__"})
    assert shown.getvalue() == f"RESULT {hvd.size()} 3 0 True True\n"


def check_restored_to_the_last_bit() -> None:
    """Saved arrays are copies: on this backend arrays of a variable share its memory."""
    assert keras.backend.backend() == "torch"
    keras.utils.set_random_seed(hvd.rank())
    model = keras.Sequential(
        [keras.Input((3,)), keras.layers.Dense(4), keras.layers.Dropout(0.5), keras.layers.Dense(1)]
    )
    model.compile(optimizer=hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)), loss="mse")
    x = np.ones((8, 3), "float32")
    state: Any = hvd.elastic.KerasState(model, epoch=0)
    state.sync()

    def content() -> list[bytes]:
        variables = [*model.variables, *model.optimizer.variables]
        return [np.array(keras.ops.convert_to_numpy(v)).tobytes() for v in variables]

    before = content()
    attempts: list[int] = []

    @hvd.elastic.run
    def train(state: Any) -> None:
        attempts.append(state.epoch)
        model.fit(x, x[:, :1], batch_size=4, epochs=1, verbose=0)
        state.epoch += 1
        if state.epoch == 1:
            raise HostsUpdatedInterrupt

    train(state)
    assert attempts == [0, 1]
    after = content()
    assert after != before
    state.commit()
    model.fit(x, x[:, :1], batch_size=4, epochs=1, verbose=0)
    assert content() != after
    state.restore()
    assert content() == after
