"""The decisions of one rank: which operation runs on which plan.  Pure: standard library only, no clock, no sockets."""

from __future__ import annotations

from horovod.common.core.client import ClientCore
from horovod.common.core.model import Operation, OperationState, Plan
from horovod.common.core.signature import CollectiveKind, ReduceOp, Signature

__all__ = ["ClientCore", "CollectiveKind", "Operation", "OperationState", "Plan", "ReduceOp", "Signature"]
