"""What can be said about a call before anything is sent: members, roots, known sets."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

from horovod.common.exceptions import UsageError
from horovod.common.types import CollectiveKind, ReduceOp, Signature

__all__ = ["about", "check_factor", "check_op", "check_root", "check_submit", "full_name"]

_SHOWN = 3  # tensors of a group
_OPS = tuple(int(op) for op in ReduceOp)


def about(signature: Signature, name: str, text: str) -> str:
    """The text of a failure with the operation that it befell, unless that is in it."""
    if name in text:
        return text
    tensors = signature.tensor_names
    inside = f" ({', '.join(tensors[:_SHOWN])}{f' and {len(tensors) - _SHOWN} more' if len(tensors) > _SHOWN else ''})"
    return f"{name}{inside if tensors else ''}: {text}"


def check_op(op: object, what: str) -> int:
    """The reduction that this equals, so that equal arguments make one signature; UsageError for anything else."""
    for known in _OPS:
        if op == known:
            return known
    raise UsageError(f"{what}: op={op!r} is none of Average, Sum, Adasum, Min, Max and Product.")


def check_factor(factor: Any, what: str) -> float:
    """A scale factor; UsageError for what is none."""
    try:
        number = float("nan") if isinstance(factor, (str, bytes)) else float(factor)
    except (TypeError, ValueError, OverflowError):
        number = float("nan")
    if number != number:
        raise UsageError(f"{what}: prescale_factor and postscale_factor must be numbers, not {factor!r}.")
    return number


def check_root(root: Any, ranks: Sequence[int], what: str) -> int:
    """A root's rank; UsageError for what is no rank of the set (of a set that is not known, submitting it says more)."""
    try:
        number = operator.index(root)
    except TypeError:
        raise UsageError(f"{what}: root_rank must be a rank, an integer, not {root!r}.") from None
    if ranks and number not in ranks:
        raise UsageError(f"{what}: root rank {number} is not in the process set, which has ranks {list(ranks)}.")
    return number


def full_name(signature: Signature, name: str | None = None) -> str:
    """The name that messages show."""
    return name or signature.name


def check_submit(
    signature: Signature, sets: Mapping[int, tuple[int, ...]], rank: int, name: str | None = None
) -> tuple[int, ...]:
    """The ranks of the operation's process set; raises UsageError when this rank may not submit it."""
    ranks = sets.get(signature.process_set)
    if ranks is None:
        raise UsageError(f"{full_name(signature, name)}: there is no process set with id {signature.process_set}.")
    if rank not in ranks:
        raise UsageError(
            f"{full_name(signature, name)}: rank {rank} is not a member of process set {signature.process_set}, "
            f"which has ranks {list(ranks)}."
        )
    rooted = signature.root >= 0 or signature.kind is CollectiveKind.BROADCAST
    if rooted and signature.root not in ranks:
        raise UsageError(
            f"{full_name(signature, name)}: root rank {signature.root} is not in process set "
            f"{signature.process_set}, which has ranks {list(ranks)}."
        )
    return ranks
