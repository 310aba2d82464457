"""What every operation needs before it is run: a clean name, tensors, numbers that all ranks compare."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from horovod.common.arrays import Factors
from horovod.common.calls import set_id_of
from horovod.common.checks import check_factor, check_op
from horovod.common.exceptions import UsageError
from horovod.common.process_sets import ProcessSet
from horovod.common.types import ReduceOp
from horovod.tensorflow.dtypes import engine_dtype, is_floating

__all__ = [
    "check_reduction",
    "clean_name",
    "clean_set",
    "in_session_graph",
    "is_sparse",
    "label",
    "to_tensor",
    "to_tensors",
]


def in_session_graph() -> bool:
    """Whether a graph for a ``tf.compat.v1`` session is being built: its operations run in no fixed order."""
    return not tf.executing_eagerly() and not getattr(tf.compat.v1.get_default_graph(), "building_function", False)


def clean_name(name: Any, word: str, tensor: Any, ignore_name_scope: bool) -> str | None:
    """The name under which ranks meet, None for order of calls: only a session's graph needs names of its own."""
    if name is not None and type(name) is not str:
        name = str(name)
    if not in_session_graph():
        return name or None
    graph = tf.compat.v1.get_default_graph()
    base = name or f"Horovod{word.capitalize()}_{re.sub('[^A-Za-z0-9_]', '_', getattr(tensor, 'name', 'tensor'))}"
    scope = graph.get_name_scope()
    full = base if ignore_name_scope or not scope else f"{scope}/{base}"
    return full if name else str(graph.unique_name(full, mark_as_used=True))


def label(word: str, name: str | None) -> str:
    """What messages call the operation."""
    return f"{word}.{name or 'noname'}"


def is_sparse(tensor: Any) -> bool:
    """Whether it holds some rows of a larger tensor."""
    return isinstance(tensor, tf.IndexedSlices)


def to_tensor(value: Any, what: str) -> Any:
    """A dense tensor of what was given; TypeError or ValueError for what is none, InvalidArgumentError by its dtype."""
    if is_sparse(value):
        raise UsageError(f"{what}: IndexedSlices can only be given to allreduce.")
    tensor = tf.convert_to_tensor(value)
    engine_dtype(tensor.dtype, what)
    return tensor


def to_tensors(values: Any, what: str) -> list[Any]:
    """The tensors of a group."""
    if not isinstance(values, Iterable) or isinstance(values, (str, bytes, tf.Tensor, tf.Variable)):
        raise TypeError(f"{what} takes a list of tensors, got {type(values).__name__}.")
    return [to_tensor(value, what) for value in values]


def clean_set(process_set: ProcessSet) -> int:
    """The id of a registered process set."""
    return set_id_of(process_set)


def check_reduction(
    op: Any, factors: tuple[Any, Any], dtypes: Iterable[Any], process_set: ProcessSet, what: str
) -> tuple[int, Factors]:
    """Reduction and factors as they are compared; raises where they make no sense for tensors of these dtypes."""
    chosen = check_op(op, what)
    numbers = check_factor(factors[0], what), check_factor(factors[1], what)
    for dtype in map(tf.as_dtype, dtypes):
        if not is_floating(dtype) and not all(map(math.isfinite, numbers)):
            raise UsageError(
                f"{what}: prescale_factor and postscale_factor must be finite for tensors of {dtype.name}, not {factors}."
            )
        if dtype == tf.bool and chosen == ReduceOp.AVERAGE:
            raise UsageError(
                f"{what}: booleans have no average; use op=Sum or op=Max (any) or op=Product or op=Min (all)."
            )
        if chosen == ReduceOp.ADASUM:
            _check_adasum(dtype, process_set, what)
    return chosen, numbers


def _check_adasum(dtype: Any, process_set: ProcessSet, what: str) -> None:
    if process_set.process_set_id != 0:
        raise NotImplementedError(f"{what}: Adasum works on the global process set only.")
    if not is_floating(dtype):
        raise UsageError(f"{what}: Adasum works on floating point tensors only.")
