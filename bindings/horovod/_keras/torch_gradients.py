"""Gradients of Keras on the torch backend: reduced in place, group by group, before the optimizer reads them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

import horovod.torch as hvd
from horovod.common.gradients import GradientSettings, Groups, agree_on, plain_name

__all__ = ["reduce_gradients"]

_BUCKET_BYTES = 16 << 20


def _cut(positions: Sequence[int], grads: Sequence[torch.Tensor], groups: Groups) -> list[list[int]]:
    """Positions that are reduced together, from the last to the first."""
    backwards = list(reversed(positions))
    if isinstance(groups, int):
        size = -(-len(backwards) // groups)
        return [backwards[start : start + size] for start in range(0, len(backwards), size)]
    if groups is not None:
        known = {position for group in groups for position in group}
        return [
            *[[p for p in group if p in positions] for group in groups],
            *[[p] for p in backwards if p not in known],
        ]
    runs: list[list[int]] = []
    filled = _BUCKET_BYTES
    for position in backwards:
        if filled >= _BUCKET_BYTES:
            runs.append([])
            filled = 0
        runs[-1].append(position)
        filled += grads[position].nbytes
    return runs


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
    for number, run in enumerate(run for run in _cut(present, results, groups) if run):
        pairs = [settings.compression.compress(results[position].detach()) for position in run]
        sent = [compressed for compressed, _ in pairs]
        name = f"gradients.{identity}.{number}"
        handle = hvd.grouped_allreduce_async(sent, None, name, settings.op, *factors, settings.process_set)
        started.append((run, pairs, handle))
    for run, pairs, handle in started:
        for position, reduced, (_, context) in zip(run, hvd.synchronize(handle), pairs, strict=True):
            results[position] = settings.compression.decompress(reduced, context)
    return results
