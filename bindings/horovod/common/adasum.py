"""Adasum over arrays of several hosts: every member publishes its vectors, and every member combines all of them.

On one host the engine combines them in one round.  Between hosts parts of sums travel, and an Adasum has no parts: its
coefficients are products of whole vectors.  So the vectors travel, and all ranks compute the same bits from them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from horovod.common.array_signatures import make_signature, require_client
from horovod.common.types import CollectiveKind, PullOp, ReduceOp

__all__ = ["Combination", "spans_hosts", "start_combination"]

Array = np.ndarray[Any, np.dtype[Any]]
_ADASUM = int(ReduceOp.ADASUM)


def spans_hosts() -> bool:
    """Whether this job has ranks on other hosts."""
    client = require_client()
    return client.local_size != client.size


class Combination:
    """One vector of each member, on its way to all others."""

    __slots__ = ("_op", "_output")

    def __init__(self, op: PullOp, output: Array) -> None:
        self._op = op
        self._output = output

    def wait(self) -> None:
        """Returns when the output holds the combination of all members' vectors; raises the failure."""
        try:
            self._op.wait()
            self._op.reduce(0, self._output.__array_interface__["data"][0], self._output.nbytes)
        finally:
            self._op.done()


def start_combination(
    source: Array, output: Array, name: str | None, called: str | None, factors: tuple[float, float], set_id: int
) -> Combination:
    """Starts combining the members' arrays of this shape and dtype; ``called`` names it where ``name`` is None.

    Both arrays are contiguous, and apart.  The members read ``source`` until the operation is over.
    """
    named = f"adasum.{name}" if name else None
    signature = make_signature(
        CollectiveKind.REDUCESCATTER, named, source.dtype, (source.shape,), set_id, _ADASUM, factors
    )
    pieces = [(source.__array_interface__["data"][0], source.nbytes)]
    return Combination(require_client().gather(signature, pieces, (), keep=(source, output), name=called), output)
