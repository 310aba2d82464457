"""The state of a Keras model on any backend, and the callbacks that keep it up to date during ``fit``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import keras
import numpy as np

from horovod._keras.backends import array_of, binding, eagerly
from horovod._keras.optimizer import passes_variables
from horovod._keras.values import broadcast_state
from horovod.common.elastic import ObjectState, State
from horovod.common.exceptions import UsageError

__all__ = [
    "CommitStateCallback",
    "KerasState",
    "TensorFlowKerasState",
    "UpdateBatchStateCallback",
    "UpdateEpochStateCallback",
    "run",
]

F = TypeVar("F", bound=Callable[..., Any])

# What ends an epoch early, and not the training; told from what other callbacks set by being this very object.
_END_OF_EPOCH = "the rest of this epoch was trained before"


def run(func: F) -> F:
    """Makes a function of a state one that goes on when the ranks of the job change, see the backend's ``run``."""
    wrapped: F = binding().elastic.run(func)
    return wrapped


# ---- state


class TensorFlowKerasState(ObjectState):
    """A Keras model and its optimizer, and plain objects as attributes, see ``ObjectState``.

    ``optimizer``: the model's, unless another one is given.  Saved are weights, random seeds and the optimizer's
    variables; synchronised are weights and the optimizer's variables.  ``backend`` is accepted and not used.  ValueError
    for a model that is not built.
    """

    def __init__(self, model: Any, optimizer: Any = None, backend: Any = None, **kwargs: Any) -> None:
        if not getattr(model, "built", False):
            raise UsageError("Model must be built first. Run `model.build(input_shape)`.")
        self.model = model
        self.optimizer = getattr(model, "optimizer", None) if optimizer is None else optimizer
        self.backend = backend
        hvd = binding()
        super().__init__(bcast_object=hvd.broadcast_object, get_rank=hvd.rank, **kwargs)
        self._saved_arrays = self._read()

    def save(self) -> None:
        """Copies variables and attributes; both stay what they were when one can't be copied."""
        arrays = self._read()
        super().save()
        self._saved_arrays = arrays

    def restore(self) -> None:
        """Assigns what was saved; gradients that were summed up since then are forgotten."""
        saved = {id(variable) for variable, _ in self._saved_arrays}
        with eagerly():
            for variable, array in self._saved_arrays:
                variable.assign(array)
            for variable in passes_variables(self.optimizer):
                if id(variable) not in saved:
                    variable.assign(keras.ops.zeros_like(variable))
        super().restore()

    def sync(self) -> None:
        """Makes weights, optimizer and attributes rank 0's, as they are now, and saves them."""
        self._build_optimizer()
        with eagerly():
            broadcast_state(_numbers(self.model.weights), 0, "elastic.model")
            if self.optimizer is not None:
                broadcast_state(_numbers(self.optimizer.variables), 0, "elastic.optimizer")
        super().sync()

    def _build_optimizer(self) -> None:
        """Slots that come with the first step would be missing in what was saved before, and on ranks that come later."""
        if self.optimizer is None:
            self.optimizer = getattr(self.model, "optimizer", None)
        if self.optimizer is not None and not self.optimizer.built:
            with eagerly():
                self.optimizer.build(self.model.trainable_variables)

    def _read(self) -> list[tuple[Any, Any]]:
        self._build_optimizer()
        variables = [*self.model.variables]
        if self.optimizer is not None:
            variables += [*self.optimizer.variables, *passes_variables(self.optimizer)]
        with eagerly():
            return [(variable, np.array(array_of(variable))) for variable in variables]


class KerasState(TensorFlowKerasState):
    """A Keras model, its optimizer and plain objects, on any backend; see ``TensorFlowKerasState``."""

    def __init__(self, model: Any, optimizer: Any = None, **kwargs: Any) -> None:
        super().__init__(model, optimizer=optimizer, **kwargs)


def _numbers(variables: Sequence[Any]) -> list[Any]:
    return [variable for variable in variables if "string" not in str(variable.dtype)]


# ---- callbacks


class CommitStateCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Commits the state after every ``batches_per_commit`` batches and at the end of each epoch.

    Fewer commits cost less; after a failure more batches are trained again.
    """

    def __init__(self, state: State, batches_per_commit: int = 1) -> None:
        super().__init__()
        if isinstance(batches_per_commit, bool) or not isinstance(batches_per_commit, int) or batches_per_commit < 1:
            raise UsageError(f"batches_per_commit must be an integer > 0, not {batches_per_commit!r}.")
        self.state = state
        self.batches_per_commit = batches_per_commit
        self.batches_remaining = batches_per_commit

    def on_train_begin(self, logs: Any = None) -> None:
        """Counts from the start."""
        self.batches_remaining = self.batches_per_commit

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Commits when it is time."""
        self.batches_remaining -= 1
        if self.batches_remaining == 0:
            self.batches_remaining = self.batches_per_commit
            self.state.commit()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Commits."""
        self.state.commit()


class UpdateBatchStateCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Keeps ``state.batch``: the batch of this epoch that was trained last, 0 between epochs.

    The first epoch of a ``fit`` goes on from there: it is shorter by so many batches, where the number of batches in an
    epoch is known and larger.
    """

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state = state
        self.steps_per_epoch: int | None = None
        self._offset = 0
        self._is_first = False

    def on_train_begin(self, logs: Any = None) -> None:
        """Finds out how much of an epoch is left."""
        self.steps_per_epoch = (self.params or {}).get("steps")
        self._offset = 0
        self._is_first = True

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Shortens the first epoch, if it was begun before."""
        steps, done = self.steps_per_epoch, int(self.state.batch)
        self._offset = done if self._is_first and steps and 0 < done < steps else 0
        self._is_first = False
        if steps:
            self.params["steps"] = steps - self._offset

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Already now, so that a callback that commits this batch may come first."""
        self.state.batch = self._offset + batch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Counts the batch, and ends an epoch of which the rest was trained before."""
        self.state.batch = self._offset + batch
        if self._offset and self.steps_per_epoch and self.state.batch + 1 >= self.steps_per_epoch:
            self.model.stop_training = self.model.stop_training or _END_OF_EPOCH

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Begins to count anew; training goes on unless something else has ended it."""
        self.state.batch = 0
        if self.model.stop_training is _END_OF_EPOCH:
            self.model.stop_training = False


class UpdateEpochStateCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Keeps ``state.epoch``: how many epochs were trained, over all calls of ``fit``.

    It does not matter whether ``fit`` counts from 0 again or from ``initial_epoch=state.epoch``.
    """

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state = state
        self.initial_epoch = 0
        self._first: int | None = None

    def on_train_begin(self, logs: Any = None) -> None:
        """Goes on from the state's number."""
        self.initial_epoch = self.state.epoch
        self._first = None

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Remembers where this ``fit`` begins to count."""
        if self._first is None:
            self._first = epoch

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Counts the epoch."""
        self.state.epoch = self.initial_epoch + epoch - (self._first or 0) + 1
