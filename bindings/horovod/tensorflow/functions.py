"""State that all ranks shall share: variables and objects; questions that a graph asks when it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import tensorflow as tf

from horovod.common.array_signatures import require_client
from horovod.common.arrays import Array
from horovod.common.arrays import barrier as wait_for_all
from horovod.common.exceptions import NotInitializedError, UsageError
from horovod.common.objects import allgather_pickled, broadcast_pickled
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.tensorflow.bridge import call_host, speaks_tensorflow, unconverted
from horovod.tensorflow.calls import clean_set
from horovod.tensorflow.gather_ops import broadcast_

__all__ = [
    "allgather_object",
    "barrier",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
    "join",
    "local_rank_op",
    "local_size_op",
    "process_set_included_op",
    "rank_op",
    "size_op",
]

# ---- variables


def _listed(variables: Any) -> list[Any]:
    if not isinstance(variables, Iterable) or isinstance(variables, (str, bytes, tf.Tensor, tf.Variable)):
        raise UsageError(f"broadcast_variables takes a list of variables, got {type(variables).__name__}.")
    listed = list(variables)
    for index, variable in enumerate(listed):
        if not hasattr(variable, "assign"):
            raise UsageError(
                f"broadcast_variables: entry {index} is a {type(variable).__name__}, which can't be assigned to."
            )
    return [variable for variable in listed if variable.dtype != tf.string and variable.dtype != "string"]


@speaks_tensorflow
def broadcast_variables(
    variables: Any, root_rank: int, process_set: ProcessSet = global_process_set, inplace: bool = False
) -> Any:
    """Copies the root's values into the variables, on all ranks; the lists must be alike.

    In a graph the result is the operation that does it.  ``inplace`` is accepted: values always go straight in.
    """
    with tf.init_scope() if tf.executing_eagerly() else tf.name_scope("broadcast_variables"):
        values = broadcast_(_listed(variables), root_rank, "variables", process_set)
    return None if tf.executing_eagerly() else tf.group(*values)


@speaks_tensorflow
def broadcast_global_variables(root_rank: int) -> Any:
    """The operation that copies the root's values into all global variables of a session's graph.

    Raises RuntimeError in eager mode, which has no such collection.
    """
    if tf.executing_eagerly():
        raise RuntimeError(
            "hvd.broadcast_global_variables() does not support eager execution. Please use "
            "`hvd.broadcast_variables(<model/optimizer variables>)` instead."
        )
    return broadcast_variables(tf.compat.v1.global_variables(), root_rank)


# ---- objects


@speaks_tensorflow
def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """The root's object, on all ranks of the set; it must be picklable (by cloudpickle).  No session is needed."""
    return broadcast_pickled(require_client(), obj, root_rank, name, process_set)


def broadcast_object_fn(
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Callable[[Any], Any]:
    """A function of an object that broadcasts it; nothing is added to a graph."""

    def send(obj: Any) -> Any:
        return broadcast_object(obj, root_rank, session, name, process_set)

    return send


@speaks_tensorflow
def allgather_object(
    obj: Any, session: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """Every rank's object, in the order of ranks; they must be picklable (by cloudpickle)."""
    return allgather_pickled(require_client(), obj, name, process_set)


# ---- everybody


def _number(ask: Callable[[], int], name: str) -> Any:
    """An int32 scalar that is asked for when it is needed, not when the graph is made."""

    def run() -> list[Array]:
        return [np.asarray(ask(), np.int32)]

    (result,) = call_host(run, [], [tf.int32], name)
    if not tf.executing_eagerly():
        result.set_shape([])
    return result


@speaks_tensorflow
def join() -> Any:
    """This rank has no more data: it contributes zeros to allreduces until all ranks have joined.

    Returns the rank that joined last, the same everywhere, as an int32 scalar.
    """

    def ask() -> int:
        return require_client().join()

    return _number(ask, "HorovodJoin")


@speaks_tensorflow
def barrier(process_set: ProcessSet = global_process_set) -> Any:
    """Returns when all ranks of the set have called it; in a graph, the operation that does."""
    set_id = clean_set(process_set)

    def ask() -> int:
        wait_for_all(set_id)
        return 0

    done = _number(ask, "HorovodBarrier")
    return None if tf.executing_eagerly() else done.op


@unconverted
def size_op(process_set_id: int = 0, name: str | None = None) -> Any:
    """The number of ranks in the set, as an int32 scalar, at the time when it is evaluated."""

    def ask() -> int:
        ranks = require_client().process_sets().get(process_set_id)
        if ranks is None:
            raise UsageError(f"There is no process set with id {process_set_id}.")
        return len(ranks)

    return _number(ask, name or "HorovodSize")


@unconverted
def process_set_included_op(process_set_id: int = 0, name: str | None = None) -> Any:
    """1 if this rank is in the set, 0 if not, -1 before init, -3 for a set that is not known; int32 scalar."""

    def ask() -> int:
        try:
            client = require_client()
        except NotInitializedError:
            return -1
        ranks = client.process_sets().get(process_set_id)
        return -3 if ranks is None else int(client.rank in ranks)

    return _number(ask, name or "HorovodProcessSetIncluded")


@unconverted
def rank_op(name: str | None = None) -> Any:
    """This rank, as an int32 scalar, at the time when it is evaluated."""
    return _number(lambda: require_client().rank, name or "HorovodRank")


@unconverted
def local_rank_op(name: str | None = None) -> Any:
    """This rank's number on its host, as an int32 scalar, at the time when it is evaluated."""
    return _number(lambda: require_client().local_rank, name or "HorovodLocalRank")


@unconverted
def local_size_op(name: str | None = None) -> Any:
    """The number of ranks on this host, as an int32 scalar, at the time when it is evaluated."""
    return _number(lambda: require_client().local_size, name or "HorovodLocalSize")
