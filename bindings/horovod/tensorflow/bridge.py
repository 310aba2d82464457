"""The way from tensors to arrays: directly in eager mode, through a host call inside graphs.

Nothing is compiled against TensorFlow.  In a ``tf.function`` stateful host calls run one after the other in program
order, the same on all ranks.  XLA can't call the host on a CPU, so tracing under ``jit_compile=True`` is refused.

A Python exception leaves a host call as InvalidArgumentError (ValueError) or UnknownError (anything else).  What users
catch as FailedPreconditionError therefore travels as a status, which a TensorFlow op turns into an error: it opens a
path, which for a failure lies below something that is no directory.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

from horovod.common.arrays import Array
from horovod.common.exceptions import (
    HorovodInternalError,
    MismatchError,
    NotInitializedError,
    NotWhileJoinedError,
    UsageError,
)

__all__ = [
    "HorovodAbortedError",
    "HorovodFailedPreconditionError",
    "HorovodInvalidArgumentError",
    "HorovodUnknownError",
    "array_of",
    "call_host",
    "check_status",
    "refuse_xla",
    "speaks_tensorflow",
    "status_of",
    "translated",
    "unconverted",
]

_FINE = "/dev/null"
_STATUS_BYTES = 3500  # a path holds 4096


class HorovodFailedPreconditionError(tf.errors.FailedPreconditionError, HorovodInternalError):  # type: ignore[misc]
    """Ranks disagree about a collective, or there is no job to run it in."""


class HorovodUnknownError(tf.errors.UnknownError, HorovodInternalError):  # type: ignore[misc]
    """A collective failed: a rank was lost, shut down, or did not come."""


class HorovodInvalidArgumentError(tf.errors.InvalidArgumentError, UsageError):  # type: ignore[misc]
    """This call is wrong; nothing was sent."""


class HorovodAbortedError(tf.errors.AbortedError, HorovodInternalError):  # type: ignore[misc]
    """This collective can't do what was asked for; nothing was sent."""


_PRECONDITIONS = (MismatchError, NotWhileJoinedError, NotInitializedError)


def translated(error: Exception) -> Exception:
    """The error that TensorFlow's users catch; still an instance of what Horovod's users catch."""
    if isinstance(error, _PRECONDITIONS):
        return HorovodFailedPreconditionError(None, None, str(error))
    if isinstance(error, HorovodInternalError):
        return HorovodUnknownError(None, None, str(error))
    if isinstance(error, ValueError):
        return HorovodInvalidArgumentError(None, None, str(error))
    return error


F = TypeVar("F", bound=Callable[..., Any])


def unconverted(function: F) -> F:
    """The function, left as it is by AutoGraph, which would rewrite it and all that it calls while a graph is traced."""
    return tf.autograph.experimental.do_not_convert(function)  # type: ignore[no-any-return]


def speaks_tensorflow(function: F) -> F:
    """The function, with Horovod's errors as those that TensorFlow's users catch; left as it is by AutoGraph."""

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except (HorovodInternalError, UsageError) as error:
            if isinstance(error, tf.errors.OpError):
                raise
            raise translated(error) from error

    return unconverted(wrapped)  # type: ignore[return-value]


def array_of(tensor: Any) -> Array:
    """The tensor's own memory where that can be had, else a copy; only to be read."""
    try:
        return np.asarray(memoryview(tensor))
    except (TypeError, ValueError, BufferError, RuntimeError):
        array: Array = np.asarray(tensor.numpy())
        return array


def status_of(error: Exception) -> Array:
    """What a host call hands on of an error that TensorFlow would give another class; raises the others."""
    if not isinstance(error, _PRECONDITIONS):
        raise error
    text = str(error).replace("\0", " ").replace("\n", " ").encode()[:_STATUS_BYTES]
    return np.asarray(f"{_FINE}/".encode() + text, object)


def check_status(status: Any) -> Any:
    """The operation that comes before what is used when the status is good; it raises FailedPreconditionError if not.

    Reading alone has no effect, so that a graph's optimizer would leave it out: what was read (nothing) is written.
    """
    return tf.io.write_file(_FINE, tf.io.read_file(status))


def call_host(
    function: Callable[..., Sequence[Array]], inputs: Sequence[Any], types: Sequence[Any], name: str
) -> list[Any]:
    """Tensors of what the function makes of the inputs' arrays; it may block, and raise Horovod's errors."""
    if tf.executing_eagerly():
        try:
            outputs = function(*[array_of(tensor) for tensor in inputs])
        except (HorovodInternalError, ValueError) as error:
            raise translated(error) from error
        return [tf.convert_to_tensor(output) for output in outputs]
    refuse_xla(name)
    kinds = [tf.as_dtype(kind).as_numpy_dtype for kind in types]

    def guarded(*arrays: Any) -> list[Any]:
        try:
            outputs = function(*[np.asarray(array) for array in arrays])
        except (HorovodInternalError, ValueError) as error:
            return [status_of(error), *[np.zeros((), kind) for kind in kinds]]
        return [np.asarray(_FINE.encode(), object), *outputs]

    status, *results = tf.numpy_function(guarded, list(inputs), [tf.string, *types], name=name)
    with tf.control_dependencies([check_status(status)]):
        return [tf.identity(result) for result in results]


def _compiles(frame: FrameType) -> bool:
    owner = frame.f_locals.get("self")
    return owner is not None and getattr(owner, "_jit_compile", None) is True


def refuse_xla(what: str) -> None:
    """InvalidArgumentError while a function is traced for XLA."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if "polymorphic_function" in frame.f_code.co_filename and _compiles(frame):
            raise HorovodInvalidArgumentError(
                None,
                None,
                f"{what}: a function compiled by XLA (jit_compile=True) can't hold a collective: XLA can't call the host "
                "here. In Keras, use model.compile(..., jit_compile=False); the default, 'auto', compiles where TensorFlow "
                "finds a GPU. With tf.function, leave jit_compile out, or keep the collective outside of what is compiled.",
            )
        frame = frame.f_back
