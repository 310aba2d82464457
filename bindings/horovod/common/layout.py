"""Where the pieces of a payload lie, and with what numbers the kernel runs: rules that client and agent share."""

from __future__ import annotations

import math

from horovod import native
from horovod.common.types import ReduceOp, Signature

__all__ = ["SEGMENT_ALIGNMENT", "kernel_arguments", "payload_bytes", "segment_dtype_bytes"]

SEGMENT_ALIGNMENT = 64

_DTYPE_BYTES: dict[int, int] = {}


def segment_dtype_bytes(dtype: int) -> int:
    """Bytes of one element."""
    size = _DTYPE_BYTES.get(dtype)
    if size is None:
        size = _DTYPE_BYTES[dtype] = int(native.lib.hvd_dtype_bytes(dtype))
    return size


def payload_bytes(signature: Signature) -> int:
    """Bytes of an allreduce's tensors, without what lies between them."""
    return sum(math.prod(shape) for shape in signature.shapes) * segment_dtype_bytes(signature.dtype)


def kernel_arguments(signature: Signature, members: int) -> tuple[int, float]:
    """Native op and post-scale: Average is a Sum whose post-scale was multiplied by 1/members.

    ``block`` in ``horovod.agent.core.plans`` multiplies the same numbers; tests/agent/core/test_plans.py compares both.
    """
    if signature.op == ReduceOp.AVERAGE:
        return int(ReduceOp.SUM), signature.postscale * (1.0 / members)
    return signature.op, signature.postscale
