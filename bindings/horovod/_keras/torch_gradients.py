"""Gradients of Keras on the torch backend: reduced in place, group by group, before the optimizer reads them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import horovod.torch as hvd
from horovod._keras.runs import cut
from horovod.common.gradients import GradientSettings, Groups, agree_on, plain_name

__all__ = ["reduce_gradients"]


def reduce_gradients(
    grads: Sequence[Any], names: Sequence[str], settings: GradientSettings, groups: Groups = None
) -> list[Any]:
    """The gradients, reduced over the ranks of the set; None stays None, and must be None on all ranks."""
    results = list(grads)
    present = [position for position, grad in enumerate(results) if grad is not None]
    factors = 1.0 / settings.predivide, settings.predivide
    described = [f"{plain_name(names[p])!r} ({results[p].dtype} {list(results[p].shape)})" for p in present]
    identity = agree_on(described, settings)
    started = []
    for number, run in enumerate(cut({p: results[p].nbytes for p in present}, groups)):
        pairs = [settings.compression.compress(results[position].detach()) for position in run]
        sent = [compressed for compressed, _ in pairs]
        name = f"gradients.{identity}.{number}"
        handle = hvd.grouped_allreduce_async(sent, None, name, settings.op, *factors, settings.process_set)
        started.append((run, pairs, handle))
    for run, pairs, handle in started:
        for position, reduced, (_, context) in zip(run, hvd.synchronize(handle), pairs, strict=True):
            results[position] = settings.compression.decompress(reduced, context)
    return results
