"""What a rank is asked to do, in words that the parent process and all workers share."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

ITEMSIZE = {"float32": 4, "float16": 2, "bfloat16": 2, "float64": 8}
SEED = 20


class Unsupported(Exception):
    """This peer can't do that; the text says why."""


@dataclass(frozen=True)
class Case:
    """One thing to repeat.

    ``kind``: ``blocking`` (one tensor), ``async`` (all tensors submitted, then awaited), ``names`` (one tensor, a new
    name each time), ``floor`` (the reduction kernel alone), ``step`` (a training step), ``step-alone`` (the same with
    nobody to reduce with), ``step-single`` (that on one rank, while the others are idle), ``fit``, ``fit-alone`` and
    ``fit-single`` (the same with Keras), ``train`` (a training step of ``model`` on inputs of ``size`` pixels or words),
    ``layer`` (one layer of a small call, which ``place`` names), ``hooks`` (gradients handed over and taken back),
    ``hooks-floor`` (the same bytes copied and reduced, nothing else).  ``place``: tensors in ordinary memory (``plain``)
    or in the ``arena``.
    """

    kind: str
    shapes: list[tuple[int, ...]] = field(default_factory=list)
    dtype: str = "float32"
    place: str = "plain"
    batch: int = 0
    model: str = ""
    size: int = 0

    def to_json(self) -> dict[str, Any]:
        """Plain data for the wire."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Case:
        """The inverse of ``to_json``."""
        return cls(**{**data, "shapes": [tuple(shape) for shape in data["shapes"]]})


def single(nbytes: int, dtype: str, kind: str = "blocking", place: str = "plain") -> Case:
    """A case with one tensor of that many bytes."""
    return Case(kind, [(max(1, nbytes // ITEMSIZE[dtype]),)], dtype, place)
