"""Which gradients travel together, on backends whose tensors can be sent as they lie."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from horovod.common.gradients import Groups

__all__ = ["cut"]

_BUCKET_BYTES = 16 << 20


def cut(nbytes: Mapping[int, int], groups: Groups) -> list[list[int]]:
    """Positions of gradients that are reduced together, from the last to the first; ``nbytes`` has each one's size."""
    backwards = sorted(nbytes, reverse=True)
    if isinstance(groups, int):
        size = -(-len(backwards) // groups)
        return [backwards[start : start + size] for start in range(0, len(backwards), size)]
    if groups is not None:
        return _grouped(backwards, groups)
    runs: list[list[int]] = []
    filled = _BUCKET_BYTES
    for position in backwards:
        if filled >= _BUCKET_BYTES:
            runs.append([])
            filled = 0
        runs[-1].append(position)
        filled += nbytes[position]
    return runs


def _grouped(backwards: Sequence[int], groups: Sequence[Sequence[int]]) -> list[list[int]]:
    known = {position for group in groups for position in group}
    wanted = [[position for position in group if position in backwards] for group in groups]
    return [run for run in [*wanted, *[[position] for position in backwards if position not in known]] if run]
