"""Gradients of Keras on the jax backend: a jitted step calls the host once, which reduces all of them.

The call is ordered: steps reduce in the order in which they were dispatched, and XLA never leaves one out.  Its arguments
are read where they lie; they are copied into buckets, and the results are copied back, since XLA keeps its own memory.
A failure ends the step with jax.errors.JaxRuntimeError (a RuntimeError), which has the text of ours in its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import io_callback

from horovod._keras.runs import cut
from horovod.common.arrays import Array, start_bucket
from horovod.common.calls import set_id_of, wait_all
from horovod.common.gradients import GradientSettings, Groups, agree_on, plain_name

__all__ = ["call_host_once", "only_if", "reduce_gradients"]


def _is_traced(values: Sequence[Any]) -> bool:
    return any(isinstance(value, jax.core.Tracer) for value in values)


def _runs_of_one_dtype(sent: dict[int, Any], groups: Groups) -> list[list[int]]:
    """Positions that travel in one bucket."""
    runs = []
    for run in cut({p: int(value.size) * value.dtype.itemsize for p, value in sent.items()}, groups):
        kinds = dict.fromkeys(sent[position].dtype for position in run)
        runs += [[position for position in run if sent[position].dtype == kind] for kind in kinds]
    return runs


def _reduce_on_host(
    arrays: Sequence[Array],
    runs: Sequence[Sequence[int]],
    names: Sequence[str],
    settings: GradientSettings,
    called: str,
) -> list[Array]:
    """``runs`` has places in ``arrays``."""
    factors, set_id = (1.0 / settings.predivide, float(settings.predivide)), set_id_of(settings.process_set)
    buckets = [
        start_bucket(
            [np.asarray(arrays[place]) for place in run], f"{called}.{number}", tuple(names[place] for place in run),
            settings.op, factors, set_id,
        )
        for number, run in enumerate(runs)
    ]  # fmt: skip
    wait_all(buckets)
    results: list[Array] = list(arrays)
    for run, bucket in zip(runs, buckets, strict=True):
        flat, start = bucket.take(), 0
        for place in run:
            shape, size = arrays[place].shape, arrays[place].size
            results[place] = flat[start : start + size].reshape(shape)
            start += size
    return results


def reduce_gradients(
    grads: Sequence[Any], names: Sequence[str], settings: GradientSettings, groups: Groups = None
) -> list[Any]:
    """The gradients, reduced over the ranks of the set; None stays None, and must be None on all ranks."""
    present = [position for position, grad in enumerate(grads) if grad is not None]
    pairs = {position: settings.compression.compress(grads[position]) for position in present}
    sent = {position: pairs[position][0] for position in present}
    clean = [plain_name(names[position]) for position in present]
    described = [f"{name!r} ({sent[p].dtype} {list(sent[p].shape)})" for name, p in zip(clean, present, strict=True)]
    called = f"gradients.{agree_on(described, settings)}"
    place = {position: index for index, position in enumerate(present)}
    runs = [[place[position] for position in run] for run in _runs_of_one_dtype(sent, groups)]

    def on_host(*arrays: Any) -> list[Array]:
        return _reduce_on_host([np.asarray(array) for array in arrays], runs, clean, settings, called)

    values = [sent[position] for position in present]
    if _is_traced(values):
        kinds = [jax.ShapeDtypeStruct(value.shape, value.dtype) for value in values]
        reduced = io_callback(on_host, kinds, *values, ordered=True)
    else:
        reduced = [jax.numpy.array(result) for result in on_host(*values)]
    results = list(grads)
    for position, value in zip(present, reduced, strict=True):
        results[position] = settings.compression.decompress(value, pairs[position][1])
    return results


def call_host_once(function: Callable[[Sequence[Array]], None], values: Sequence[Any], step: Any) -> None:
    """Calls a function of the values' arrays; inside of a jitted function only while ``step`` is 0 when it runs."""

    def on_host(*arrays: Any) -> None:
        function([np.asarray(array) for array in arrays])

    if not _is_traced([*values, step]):
        return function([np.asarray(value) for value in values])
    return jax.lax.cond(step == 0, lambda: io_callback(on_host, None, *values, ordered=True), lambda: None)  # type: ignore[no-any-return]


def only_if(due: Any, reduce: Callable[[list[Any]], list[Any]], grads: list[Any]) -> list[Any]:
    """What ``reduce`` makes of the gradients when ``due`` is true, which it must be on all ranks or none; else themselves."""
    if not _is_traced([due, *grads]):
        return reduce(grads) if bool(due) else grads
    return jax.lax.cond(due, reduce, lambda given: given, grads)  # type: ignore[no-any-return]
