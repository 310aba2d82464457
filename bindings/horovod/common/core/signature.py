"""What a collective is: the signature that all members of a process set must agree on.

Dimension 0 of gathers and alltoall splits are not part of it (-1 stands there).  A named operation finds its plan by
(process set, name) and must then equal the plan's signature; an unnamed one finds it by everything but the name.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from enum import IntEnum

__all__ = ["CollectiveKind", "ReduceOp", "Signature"]


class CollectiveKind(IntEnum):
    """``Kind`` of worker.proto."""

    ALLREDUCE = 0
    ALLGATHER = 1
    BROADCAST = 2
    ALLTOALL = 3
    REDUCESCATTER = 4
    BARRIER = 5


class ReduceOp(IntEnum):
    """The constants that users see."""

    AVERAGE = 0
    SUM = 1
    ADASUM = 2
    MIN = 3
    MAX = 4
    PRODUCT = 5


@dataclass(frozen=True, slots=True)
class Signature:
    """One collective; bindings keep and reuse these, so that equal means identical on the fast path."""

    kind: CollectiveKind
    name: str
    unnamed: bool
    dtype: int
    shapes: tuple[tuple[int, ...], ...]
    tensor_names: tuple[str, ...] = ()
    op: int = 1
    prescale: float = 1.0
    postscale: float = 1.0
    root: int = -1
    process_set: int = 0
    device: int = 0
    key: Hashable = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._check()
        object.__setattr__(self, "key", self.content() if self.unnamed else (self.process_set, self.name))

    def _check(self) -> None:
        """A signature that can't be announced is not made: TypeError or ValueError."""
        whole = (self.kind, self.dtype, self.op, self.root, self.process_set, self.device)
        if not all(type(number) is int or isinstance(number, IntEnum) for number in whole):
            raise TypeError(
                f"{self.name!r}: kind, dtype, op, root, process_set and device must be integers, not {whole}."
            )
        if type(self.prescale) is not float or type(self.postscale) is not float:
            raise TypeError(f"{self.name!r}: factors must be floats, not {(self.prescale, self.postscale)}.")
        if not all(isinstance(name, str) for name in (self.name, *self.tensor_names)):
            raise TypeError(f"{self.name!r}: names must be strings.")
        try:
            self.name.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"{self.name!r}: this name can't be sent: {error}.") from error

    def content(self) -> Hashable:
        """Everything but the names."""
        return (
            self.kind,
            self.dtype,
            self.shapes,
            self.op,
            self.prescale,
            self.postscale,
            self.root,
            self.process_set,
            self.device,
        )
