"""What can be said about a call before anything is sent: members, roots, known sets."""

from __future__ import annotations

from collections.abc import Mapping

from horovod.common.exceptions import UsageError
from horovod.common.types import Signature

__all__ = ["check_submit", "full_name"]


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
    if signature.root >= 0 and signature.root not in ranks:
        raise UsageError(
            f"{full_name(signature, name)}: root rank {signature.root} is not in process set "
            f"{signature.process_set}, which has ranks {list(ranks)}."
        )
    return ranks
