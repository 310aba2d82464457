"""What elastic training needs of TensorFlow: ``hvd.elastic.run``, ``TensorFlowKerasState`` and ``TensorFlowState``."""

from __future__ import annotations

import functools
import importlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import tensorflow as tf

from horovod.common.arrays import Array, broadcast_arrays
from horovod.common.calls import set_id_of
from horovod.common.elastic import ObjectState, reset, run_fn
from horovod.common.exceptions import HorovodInternalError
from horovod.common.gradients import plain_name
from horovod.common.missing import missing_attribute
from horovod.common.process_sets import global_process_set
from horovod.tensorflow.bridge import (
    HorovodFailedPreconditionError,
    HorovodUnknownError,
    speaks_tensorflow,
)
from horovod.tensorflow.functions import broadcast_object, broadcast_variables
from horovod.tensorflow.mpi_ops import rank

__all__ = ["TensorFlowKerasState", "TensorFlowState", "run"]  # noqa: F822

F = TypeVar("F", bound=Callable[..., Any])


# ---- run


def run(func: F) -> F:
    """Makes a function of a state one that goes on when the ranks of the job change: use it as a decorator.

    All ranks begin with rank 0's state.  After a failed collective (HorovodInternalError, in a graph the error of
    TensorFlow that carries one) the state is restored to the last ``commit``; when hosts have changed
    (HostsUpdatedInterrupt, from ``commit`` or ``check_host_updates``) it stays.  Then all ranks meet again, the state's reset
    callbacks are called, and the function runs again.  In a job whose ranks are fixed HorovodInternalError is raised at
    once, with advice.
    """

    @functools.wraps(func)
    def recognising(*args: Any, **kwargs: Any) -> Any:
        try:
            return func(*args, **kwargs)
        except tf.errors.OpError as error:
            ours = _as_horovods(error)
            if ours is None or ours is error:
                raise
            raise ours from error

    return run_fn(recognising, reset)  # type: ignore[return-value]


def _as_horovods(error: Any) -> Any:
    """The error as one of Horovod's, if a collective has raised it; None for what TensorFlow or others have raised.

    Out of a graph comes TensorFlow's own class.  Its text tells: UnknownError begins with the name of the class that the
    host call raised; FailedPreconditionError names the path that a bad status is opened at.
    """
    if isinstance(error, HorovodInternalError):
        return error
    text = str(error.message)
    if isinstance(error, tf.errors.UnknownError) and _begins_with_ours(text):
        return HorovodUnknownError(error.node_def, error.op, text)
    status = re.search(r"/dev/null/(.*); Not a directory", text, re.DOTALL)
    if isinstance(error, tf.errors.FailedPreconditionError) and status:
        return HorovodFailedPreconditionError(error.node_def, error.op, status[1])
    return None


def _begins_with_ours(text: str) -> bool:
    """TensorFlow puts the function's name or the place in the graph before it, and the traceback behind."""
    names = "|".join(sorted(kind.__name__ for kind in _with_subclasses(HorovodInternalError)))
    head = text.partition("\nTraceback (most recent call last)")[0]
    return re.search(rf"(?:^|}}}} |\n\n)(?:{names}): ", head) is not None


def _with_subclasses(kind: type[Exception]) -> Iterator[type[Exception]]:
    yield kind
    for subclass in kind.__subclasses__():
        yield from _with_subclasses(subclass)


# ---- states


class TensorFlowState(ObjectState):
    """Variables, in eager mode or of a session, and plain objects as attributes, see ``ObjectState``.

    ``variables``: those of a model and its optimizer; a session's global variables are taken where none are given.
    ``session``: the session that holds their values, or the default one.  No operation is added to its graph.
    """

    def __init__(self, variables: Iterable[Any] | None = None, session: Any = None, **kwargs: Any) -> None:
        self.variables = list(tf.compat.v1.global_variables() if variables is None else variables)
        self.session = session or (None if tf.executing_eagerly() else tf.compat.v1.get_default_session())
        super().__init__(bcast_object=broadcast_object, get_rank=rank, **kwargs)
        self._saved_arrays = self._read()

    def save(self) -> None:
        """Copies variables and attributes; both stay what they were when one can't be copied."""
        arrays = self._read()
        super().save()
        self._saved_arrays = arrays

    def restore(self) -> None:
        """Assigns what was saved."""
        self._write(self._saved_arrays)
        super().restore()

    def sync(self) -> None:
        """Makes variables and attributes rank 0's, as they are now, and saves them."""
        if self.session is None:
            broadcast_variables(self.variables, root_rank=0)
        else:
            self._sync_session()
        super().sync()

    def _read(self) -> list[tuple[Any, Any]]:
        if self.session is None:
            return [(variable, np.array(variable.numpy(), copy=True)) for variable in self.variables]
        return list(zip(self.variables, self.session.run(self.variables), strict=True))

    def _write(self, arrays: Sequence[tuple[Any, Any]]) -> None:
        if self.session is None:
            for variable, array in arrays:
                variable.assign(array)
            return
        # A variable's initializer, fed with a value: a graph that is finalized takes no new operation.
        feeds = {variable.initializer.inputs[1]: array for variable, array in arrays}
        self.session.run([variable.initializer for variable, _ in arrays], feeds)

    @speaks_tensorflow
    def _sync_session(self) -> None:
        numbers = [(variable, array) for variable, array in self._read() if variable.dtype.base_dtype != tf.string]
        if not numbers:
            return
        names = tuple(plain_name(variable.name) for variable, _ in numbers)
        arrays: list[Array] = [np.ascontiguousarray(array).reshape(array.shape) for _, array in numbers]
        received = broadcast_arrays(arrays, 0, "elastic.variables", set_id_of(global_process_set), names)
        self._write([(variable, value) for (variable, _), value in zip(numbers, received, strict=True)])


if not TYPE_CHECKING:  # checkers find what is missing themselves

    def __getattr__(name: str) -> object:
        if name == "TensorFlowKerasState":  # needs Keras, which is loaded when it is first asked for
            return importlib.import_module("horovod._keras.elastic").TensorFlowKerasState
        raise missing_attribute(__name__, name)
