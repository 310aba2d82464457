"""Reduces the gradients of one step: packed into a few buckets, submitted one by one, waited for once.

Gradients of one dtype are packed by TensorFlow, in reverse order of their variables, which is about the order in which
they are computed.  Inside a graph each bucket is one host call that never blocks; the last one waits for all.  Whoever
reads a reduced gradient reads the arena: its memory is used again when TensorFlow has let it go, never before.

Ranks meet by what the whole list of gradients looks like and the bucket's number, not by counters of this process:
a model that one rank builds besides changes nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from horovod.common import basics
from horovod.common.arrays import Array, Bucket, start_bucket
from horovod.common.calls import set_id_of, wait_all
from horovod.common.exceptions import HorovodInternalError
from horovod.common.gradients import GradientSettings, Groups, agree_on, plain_name, reduces
from horovod.common.types import ReduceOp
from horovod.tensorflow.bridge import array_of, check_status, refuse_xla, status_of, translated
from horovod.tensorflow.reduce_ops import allreduce

__all__ = ["reduce_gradients"]

FIRST_BUCKET_BYTES = 1 << 20
BUCKET_BYTES = 16 << 20

# Buckets that a graph has submitted and not taken yet.
_pending: dict[int, Bucket] = {}
_tokens = itertools.count()
basics.on_new_epoch(_pending.clear)


@dataclass(frozen=True, slots=True)
class _Piece:
    """A gradient in a bucket: its place in the list, its tensor as it is sent."""

    position: int
    tensor: Any
    context: Any

    def nbytes(self) -> int:
        return int(self.tensor.shape.num_elements() or 0) * int(self.tensor.dtype.size)


def reduce_gradients(
    grads: Sequence[Any], names: Sequence[str], settings: GradientSettings, groups: Groups = None
) -> list[Any]:
    """The gradients, reduced over the ranks of the set; None stays None, and must be None on all ranks."""
    results = list(grads)
    if not reduces(settings):
        return results
    pieces = []
    for position, grad in enumerate(grads):
        if isinstance(grad, tf.IndexedSlices) and not settings.sparse_as_dense:
            results[position] = allreduce(
                grad, op=settings.op, name=None, compression=settings.compression, process_set=settings.process_set
            )
        elif grad is not None:
            pieces.append(_Piece(position, *settings.compression.compress(tf.convert_to_tensor(grad))))
    if pieces:
        clean = [plain_name(name) for name in names]
        for piece, tensor in _reduce_pieces(pieces, clean, settings, groups):
            results[piece.position] = settings.compression.decompress(tensor, piece.context)
    return results


def _cut(pieces: Sequence[_Piece], groups: Groups) -> list[list[_Piece]]:
    """Runs of pieces of one dtype, from the end to the beginning; the first is short, so that reduction starts early."""
    if isinstance(groups, int):
        size = -(-len(pieces) // max(groups, 1))
        backwards = list(reversed(pieces))
        wanted = [backwards[start : start + size] for start in range(0, len(backwards), size)]
    elif groups is not None:
        member_of = {position: number for number, group in enumerate(groups) for position in group}
        by_group: dict[int, list[_Piece]] = {}
        for piece in reversed(pieces):
            by_group.setdefault(member_of.get(piece.position, -1 - piece.position), []).append(piece)
        wanted = list(by_group.values())
    else:
        wanted = [list(reversed(pieces))]
    limit = None if groups is not None else BUCKET_BYTES
    return [run for part in wanted for run in _runs(part, limit)]


def _runs(pieces: Sequence[_Piece], limit: int | None) -> list[list[_Piece]]:
    """Pieces of one dtype each, and of about so many bytes."""
    runs: list[list[_Piece]] = []
    open_runs: dict[Any, list[_Piece]] = {}
    filled: dict[Any, int] = {}
    closed = 0
    for piece in pieces:
        kind = piece.tensor.dtype
        open_runs.setdefault(kind, []).append(piece)
        filled[kind] = filled.get(kind, 0) + piece.nbytes()
        if limit is not None and filled[kind] >= (limit if closed else FIRST_BUCKET_BYTES):
            runs.append(open_runs.pop(kind))
            filled[kind] = 0
            closed += 1
    return [*runs, *open_runs.values()]


def _described(piece: _Piece, names: Sequence[str]) -> str:
    """What all ranks must have; a shape that is only known when it runs is compared then, by the bucket's size."""
    return f"{names[piece.position]!r} ({piece.tensor.dtype.name} {piece.tensor.shape})"


def _reduce_pieces(
    pieces: Sequence[_Piece], names: Sequence[str], settings: GradientSettings, groups: Groups
) -> list[tuple[_Piece, Any]]:
    if settings.op == ReduceOp.ADASUM:  # combines tensors, not what happens to be packed together
        groups = [[piece.position] for piece in pieces]
    runs = _cut(pieces, groups)
    identity = agree_on([_described(piece, names) for piece in pieces], settings)
    factors = 1.0 / settings.predivide, float(settings.predivide)
    set_id = set_id_of(settings.process_set)
    starters = [
        _Starter(f"gradients.{identity}.{number}", tuple(names[p.position] for p in run), settings.op, factors, set_id)
        for number, run in enumerate(runs)
    ]
    if tf.executing_eagerly():
        return _reduce_now(runs, starters)
    refuse_xla("Horovod's reduction of gradients")
    return _reduce_in_graph(runs, starters)


@dataclass(frozen=True, slots=True)
class _Starter:
    """Starts the reduction of one bucket."""

    name: str
    tensor_names: tuple[str, ...]
    op: int
    factors: tuple[float, float]
    set_id: int

    def start(self, arrays: Sequence[Array]) -> Bucket:
        return start_bucket(arrays, self.name, self.tensor_names, self.op, self.factors, self.set_id)

    def submit(self, array: Array) -> Array:
        """A host call: the bucket's token, negative where it could not be submitted (``_Failed`` says why)."""
        token = next(_tokens)
        try:
            _pending[token] = self.start([np.asarray(array)])
        except (HorovodInternalError, ValueError) as error:
            _pending[token] = _Failed(error)
        return np.asarray(token, np.int64)


class _Failed(Bucket):
    """A bucket that could not be submitted: said when it is waited for, so that others are waited for as well."""

    __slots__ = ("_error",)

    def __init__(self, error: Exception) -> None:
        self._error = error

    def wait(self) -> None:
        raise self._error


def _reduce_now(runs: Sequence[Sequence[_Piece]], starters: Sequence[_Starter]) -> list[tuple[_Piece, Any]]:
    results = []
    try:
        buckets = [
            starter.start([array_of(piece.tensor).reshape(-1) for piece in run])
            for run, starter in zip(runs, starters, strict=True)
        ]
        wait_all(buckets)
    except (HorovodInternalError, ValueError) as error:
        raise translated(error) from error
    for run, bucket in zip(runs, buckets, strict=True):
        flat, start = bucket.take(), 0
        for piece in run:
            size = int(piece.tensor.shape.num_elements())
            part = flat[start : start + size].reshape(tuple(piece.tensor.shape))
            results.append((piece, tf.convert_to_tensor(part)))
            start += size
    return results


def _reduce_in_graph(runs: Sequence[Sequence[_Piece]], starters: Sequence[_Starter]) -> list[tuple[_Piece, Any]]:
    tokens = []
    for run, starter in zip(runs, starters, strict=True):
        flat = [tf.reshape(piece.tensor, [-1]) for piece in run]
        packed = tf.concat(flat, 0) if len(flat) > 1 else flat[0]
        tokens.append(tf.numpy_function(starter.submit, [packed], tf.int64, name="HorovodSubmit"))
    kinds = [run[0].tensor.dtype for run in runs]
    numpy_kinds = [kind.as_numpy_dtype for kind in kinds]

    def wait(*numbers: Any) -> list[Any]:
        buckets = [_pending.pop(int(number)) for number in numbers]
        try:
            wait_all(buckets)
        except (HorovodInternalError, ValueError) as error:
            return [status_of(error), *[np.zeros(0, kind) for kind in numpy_kinds]]
        return [np.asarray(b"/dev/null", object), *[bucket.take() for bucket in buckets]]

    status, *reduced = tf.numpy_function(wait, tokens, [tf.string, *kinds], name="HorovodWait")
    results = []
    with tf.control_dependencies([check_status(status)]):
        for run, flat_result in zip(runs, reduced, strict=True):
            shapes = [piece.tensor.shape for piece in run]
            sizes = [
                shape.num_elements() if shape.is_fully_defined() else tf.size(piece.tensor)
                for shape, piece in zip(shapes, run, strict=True)
            ]
            parts = tf.split(flat_result, sizes) if len(run) > 1 else [tf.identity(flat_result)]
            for piece, part in zip(run, parts, strict=True):
                shape = piece.tensor.shape if piece.tensor.shape.is_fully_defined() else tf.shape(piece.tensor)
                results.append((piece, tf.reshape(part, shape)))
    return results
