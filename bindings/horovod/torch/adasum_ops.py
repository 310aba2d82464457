"""Adasum over several hosts: every member publishes its vectors, and every member combines all of them.

On one host the engine combines them in one round.  Between hosts parts of sums travel, and an Adasum has no parts: its
coefficients are products of whole vectors.  So the vectors travel, and all ranks compute the same bits from them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from horovod.common.calls import automatic_name, set_id_of
from horovod.common.process_sets import ProcessSet
from horovod.common.types import CollectiveKind, PullOp, ReduceOp
from horovod.torch.pending import PulledEntry, require_client
from horovod.torch.signatures import make_signature
from horovod.torch.staging import Target, copy_out, pending_copies, wire_copy

__all__ = ["combine_over_hosts", "spans_hosts"]

_ADASUM = int(ReduceOp.ADASUM)


def spans_hosts() -> bool:
    """Whether this job has ranks on other hosts."""
    client = require_client()
    return client.local_size != client.size


def combine_over_hosts(
    tensors: Sequence[torch.Tensor],
    targets: Sequence[Target],
    name: str | None,
    factors: tuple[float, float],
    process_set: ProcessSet,
    handle: int,
    group: bool,
) -> PulledEntry:
    """Starts one operation for each tensor; targets receive the results."""
    client, ops = require_client(), []
    for part, tensor in enumerate(tensors):
        named = f"adasum.{name}.{part}" if name else None
        signature = make_signature(
            CollectiveKind.REDUCESCATTER, named, tensor.dtype, [tensor.shape], set_id_of(process_set),
            op=_ADASUM, prescale=factors[0], postscale=factors[1],
        )  # fmt: skip
        source = wire_copy(tensor)
        unnamed = automatic_name("reducescatter", name, handle, part)
        ops.append(client.gather(signature, [(source.data_ptr(), source.nbytes)], (), keep=source, name=unnamed))

    def read(done: Sequence[PullOp]) -> Any:
        for op, (_, buffer) in zip(done, targets, strict=True):
            op.reduce(0, buffer.data_ptr(), buffer.nbytes)
        for target, buffer in pending_copies(targets):
            copy_out(target, buffer)
        results = tuple(target for target, _ in targets)
        return results if group else results[0]

    return PulledEntry(ops, read)
