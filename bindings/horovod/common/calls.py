"""Rules of a call that every binding follows: automatic names, registered sets, rows of members, splits, waiting for all.

Automatic names follow a handle counter: ``allreduce.noname.<handle>``.  A user's name ``n`` becomes ``allreduce.n``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from horovod.common.exceptions import HorovodInternalError, UsageError

__all__ = ["Waits", "automatic_name", "clean_splits", "rows_of", "set_id_of", "wait_all"]


def automatic_name(kind: str, name: str | None, handle: int, part: int = 0) -> str | None:
    """The name of this call of an unnamed operation; None for a named one, whose signature has the name.

    ``part`` tells the operations of one call apart.
    """
    if name:
        return None
    return f"{kind}.noname.{handle}.{part}" if part else f"{kind}.noname.{handle}"


def set_id_of(process_set: object) -> int:
    """The id of a registered process set; TypeError for one that is not registered, or something else."""
    set_id = getattr(process_set, "process_set_id", None)
    if not isinstance(set_id, int):
        raise TypeError(
            f"process_set is {process_set!r}, which is not registered: give it to init() or to add_process_set() first."
        )
    return set_id


def rows_of(rows: int, members: int, member: int) -> tuple[int, int]:
    """First row and number of rows of a member: as even as can be, the first members have one more."""
    share, extra = divmod(rows, members)
    return member * share + min(member, extra), share + (member < extra)


def clean_splits(splits: Any, rows: int, members: int, what: str) -> list[int]:
    """Rows for each member; UsageError for splits that make no sense.  None cuts the rows evenly."""
    if splits is None:
        if members and rows % members:
            raise UsageError(f"{what}: {rows} rows can't be cut evenly for {members} ranks: give splits.")
        return [rows // max(members, 1)] * members
    try:
        counts = [int(count) for count in splits]
        whole = all(count == given for count, given in zip(counts, splits, strict=True))
    except (TypeError, ValueError, OverflowError):
        counts, whole = [], False
    if not whole:
        raise UsageError(f"{what}: splits must be a list of integers, one for each rank, not {splits!r}.")
    if len(counts) != members:
        raise UsageError(f"{what}: {len(counts)} splits for {members} ranks.")
    if any(count < 0 for count in counts) or sum(counts) > rows:
        raise UsageError(f"{what}: splits {counts} don't fit {rows} rows.")
    return counts


class Waits(Protocol):
    """What can be waited for."""

    def wait(self) -> None: ...


def wait_all(ops: Sequence[Waits]) -> None:
    """Waits for all, also when one fails; then raises the first failure."""
    failure: Exception | None = None
    for op in ops:
        try:
            op.wait()
        except (HorovodInternalError, ValueError) as error:
            failure = failure or error
    if failure is not None:
        raise failure
