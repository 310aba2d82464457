"""The one place that knows which backend Keras runs on, and which binding reduces its tensors."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import keras

from horovod.common.exceptions import UsageError

__all__ = ["array_of", "backend_name", "binding", "eagerly", "reducer"]

Reducer = Callable[[Sequence[Any], Sequence[str], Any, Any], list[Any]]

_BINDINGS = {"tensorflow": "horovod.tensorflow", "torch": "horovod.torch"}


def backend_name() -> str:
    """The backend; UsageError for one whose gradients can't be reduced."""
    name = str(keras.backend.backend())
    if name not in _BINDINGS:
        raise UsageError(
            f"Keras runs on the backend {name!r} here, for which Horovod can't reduce gradients: set "
            "KERAS_BACKEND=tensorflow or KERAS_BACKEND=torch before keras is imported."
        )
    return name


def binding() -> Any:
    """The binding of the backend's framework, loaded when it is first asked for."""
    return importlib.import_module(_BINDINGS[backend_name()])


def reducer() -> Reducer:
    """What reduces a list of gradients of this backend: (gradients, names, settings, groups) -> gradients."""
    if backend_name() == "tensorflow":
        reduce: Reducer = importlib.import_module("horovod.tensorflow.buckets").reduce_gradients
        return reduce
    reduce = importlib.import_module("horovod._keras.torch_gradients").reduce_gradients
    return reduce


def array_of(variable: Any) -> Any:
    """A NumPy array of a variable's value, in its dtype or a larger one; it may share the variable's memory."""
    if backend_name() == "tensorflow":
        return variable.numpy()  # Keras's own conversion warns, with NumPy 2, of how TensorFlow makes arrays
    return keras.ops.convert_to_numpy(variable)


def eagerly() -> Any:
    """A context in which values can be read and variables made, also while a graph is being traced."""
    if backend_name() == "tensorflow":
        import tensorflow as tf

        return tf.init_scope()
    import contextlib

    return contextlib.nullcontext()
