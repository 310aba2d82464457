"""Adasum in NumPy, for tests of every binding: pairs by distance doubling, members beyond a power of two first."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["Vector", "combine"]

Vector = npt.NDArray[np.float64]


def _pair(a: Vector, b: Vector) -> Vector:
    dot, aa, bb = a @ b, a @ a, b @ b
    combined: Vector = a * (1 - dot / (2 * aa) if aa else 1) + b * (1 - dot / (2 * bb) if bb else 1)
    return combined


def combine(vectors: list[Vector]) -> Vector:
    """The definition, arXiv 2006.02924, with what is beyond a power of two folded in before."""
    vectors = list(vectors)
    power = 1 << (len(vectors).bit_length() - 1)
    for index, beyond in enumerate(vectors[power:]):
        vectors[index] = _pair(vectors[index], beyond)
    vectors = vectors[:power]
    while len(vectors) > 1:
        vectors = [_pair(a, b) for a, b in zip(vectors[::2], vectors[1::2], strict=True)]
    return vectors[0]
