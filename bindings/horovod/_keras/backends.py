"""The one place that knows which backend Keras runs on, and which binding reduces its tensors."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import keras

from horovod.common.exceptions import UsageError

__all__ = ["array_of", "backend_name", "binding", "dense", "divided", "eagerly", "reducer", "unconverted"]

F = TypeVar("F", bound=Callable[..., Any])
Reducer = Callable[[Sequence[Any], Sequence[str], Any, Any], list[Any]]

_BINDINGS = {"tensorflow": "horovod.tensorflow", "torch": "horovod.torch", "jax": "horovod._keras.jax_binding"}
_REDUCERS = {
    "tensorflow": "horovod.tensorflow.buckets",
    "torch": "horovod._keras.torch_gradients",
    "jax": "horovod._keras.jax_gradients",
}


def backend_name() -> str:
    """The backend; UsageError for one whose gradients can't be reduced."""
    name = str(keras.backend.backend())
    if name not in _BINDINGS:
        raise UsageError(
            f"Keras runs on the backend {name!r} here, for which Horovod can't reduce gradients: set KERAS_BACKEND to "
            "tensorflow, torch or jax before keras is imported."
        )
    return name


def binding() -> Any:
    """The binding of the backend's framework, loaded when it is first asked for."""
    return importlib.import_module(_BINDINGS[backend_name()])


def reducer() -> Reducer:
    """What reduces a list of gradients of this backend: (gradients, names, settings, groups) -> gradients."""
    reduce: Reducer = importlib.import_module(_REDUCERS[backend_name()]).reduce_gradients
    return reduce


def array_of(variable: Any) -> Any:
    """A NumPy array of a variable's value, in its dtype or a larger one; it may share the variable's memory."""
    if backend_name() == "tensorflow":
        return variable.numpy()  # Keras's own conversion warns, with NumPy 2, of how TensorFlow makes arrays
    return keras.ops.convert_to_numpy(variable)


def dense(grad: Any) -> Any:
    """The gradient as a dense tensor: TensorFlow's come as IndexedSlices where few rows are meant."""
    if backend_name() != "tensorflow":
        return grad
    import tensorflow as tf

    return tf.convert_to_tensor(grad)


def divided(grad: Any, number: int) -> Any:
    """The gradient divided by this number; None stays None."""
    if backend_name() == "tensorflow":
        return importlib.import_module("horovod.tensorflow.settings").divided(grad, number)
    return grad if grad is None or number == 1 else grad / number


def unconverted(function: F) -> F:
    """The function, left as it is by TensorFlow's AutoGraph."""
    if keras.backend.backend() != "tensorflow":
        return function
    return importlib.import_module("horovod.tensorflow.bridge").unconverted(function)  # type: ignore[no-any-return]


def eagerly() -> Any:
    """A context in which values can be read and variables made, also while a graph is being traced."""
    if backend_name() == "tensorflow":
        import tensorflow as tf

        return tf.init_scope()
    import contextlib

    return contextlib.nullcontext()
