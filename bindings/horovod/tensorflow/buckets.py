"""Reduces the gradients of one step: packed into a few buckets, submitted one by one, waited for once.

Gradients of one dtype are taken in reverse order of their variables, which is about the order in which they are
computed.  Inside a graph each bucket is one host call that never blocks; the last one waits for all.  A large gradient
is copied once, into the arena, and whoever reads the reduced one reads it there: that memory is used again when
TensorFlow has let it go, never before.  Small ones are packed and unpacked by TensorFlow, as every tensor of a host call
costs about as much as the copies of some hundred kilobytes.

Ranks meet by what the whole list of gradients looks like and the bucket's number, not by counters of this process:
a model that one rank builds besides changes nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
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
from horovod.tensorflow.sparse import check_sparse, reduce_slices

__all__ = ["reduce_gradients"]

FIRST_BUCKET_BYTES = 1 << 20
BUCKET_BYTES = 16 << 20
LARGE_BYTES = 256 << 10
ALIGNMENT = 64  # of memory that TensorFlow takes over

# Buckets that a graph has submitted and not taken yet.
_pending: dict[int, _Started] = {}
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


_Part = list[_Piece]
"""What is one array for the host: a large gradient, or all small ones of a bucket."""


def reduce_gradients(
    grads: Sequence[Any], names: Sequence[str], settings: GradientSettings, groups: Groups = None
) -> list[Any]:
    """The gradients, reduced over the ranks of the set; None stays None, and must be None on all ranks."""
    if not grads or not reduces(settings):
        return list(grads)
    clean = [plain_name(name) for name in names]
    sparse = {p: g for p, g in enumerate(grads) if isinstance(g, tf.IndexedSlices) and not settings.sparse_as_dense}
    dense = [p for p, g in enumerate(grads) if g is not None and p not in sparse]
    pieces = [_Piece(p, *settings.compression.compress(tf.convert_to_tensor(grads[p]))) for p in dense]
    described = {piece.position: _described(piece, clean) for piece in pieces}
    described.update({p: f"{clean[p]!r} (sparse {slices.dtype.name})" for p, slices in sparse.items()})
    identity = agree_on([described[position] for position in sorted(described)], settings)
    results = list(grads)
    for piece, tensor in _reduce_pieces(pieces, clean, identity, settings, groups) if pieces else ():
        results[piece.position] = settings.compression.decompress(tensor, piece.context)
    # After the buckets, so that in a session's graph, which has no order, only one host call at a time waits for others.
    with tf.control_dependencies([results[position] for position in dense]):
        for position, slices in _reduce_sparse(sparse, identity, settings):
            results[position] = slices
    return results


def _reduce_sparse(sparse: dict[int, Any], identity: str, settings: GradientSettings) -> Iterable[tuple[int, Any]]:
    if not sparse:
        return ()
    check_sparse(
        settings.op, (1.0, 1.0), "DistributedGradientTape and DistributedOptimizer without sparse_as_dense=True"
    )
    name = f"gradients.{identity}.sparse"
    reduced = reduce_slices(list(sparse.values()), name, settings.op, settings.process_set, settings.compression)
    return zip(sparse, reduced, strict=True)


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


def _parts(run: Sequence[_Piece]) -> list[_Part]:
    """Large gradients one by one, then the small ones together."""
    large = [[piece] for piece in run if piece.nbytes() >= LARGE_BYTES]
    small = [piece for piece in run if piece.nbytes() < LARGE_BYTES]
    return [*large, *([small] if small else [])]


def _described(piece: _Piece, names: Sequence[str]) -> str:
    """What all ranks must have; a shape that is only known when it runs is compared then, by the bucket's size."""
    return f"{names[piece.position]!r} ({piece.tensor.dtype.name} {piece.tensor.shape})"


def _reduce_pieces(
    pieces: Sequence[_Piece], names: Sequence[str], identity: str, settings: GradientSettings, groups: Groups
) -> list[tuple[_Piece, Any]]:
    if settings.op == ReduceOp.ADASUM:  # combines tensors, not what happens to be packed together
        groups = [[piece.position] for piece in pieces]
    buckets = [_parts(run) for run in _cut(pieces, groups)]
    factors = 1.0 / settings.predivide, float(settings.predivide)
    set_id = set_id_of(settings.process_set)
    starters = []
    for number, parts in enumerate(buckets):
        members = tuple(names[piece.position] for part in parts for piece in part)
        starters.append(_Starter(f"gradients.{identity}.{number}", members, settings.op, factors, set_id))
    if tf.executing_eagerly():
        return _reduce_now(buckets, starters)
    refuse_xla("Horovod's reduction of gradients")
    return _reduce_in_graph(buckets, starters)


@dataclass(frozen=True, slots=True)
class _Starter:
    """Starts the reduction of one bucket."""

    name: str
    tensor_names: tuple[str, ...]
    op: int
    factors: tuple[float, float]
    set_id: int

    def start(self, parts: Sequence[Sequence[Array]]) -> _Started:
        """Every part starts where TensorFlow can take it over without a copy; gaps hold zeros."""
        step = ALIGNMENT // parts[0][0].dtype.itemsize
        arrays, spans, end = [], [], 0
        for part in parts:
            gap, size = -end % step, sum(array.size for array in part)
            arrays += [*([np.zeros(gap, part[0].dtype)] if gap else []), *part]
            spans.append((end + gap, end + gap + size))
            end += gap + size
        bucket = start_bucket(arrays, self.name, self.tensor_names, self.op, self.factors, self.set_id)
        return _Started(bucket, spans)

    def submit(self, *arrays: Array) -> Array:
        """A host call: the bucket's token, also where it could not be submitted (``_Failed`` says why)."""
        token = next(_tokens)
        try:
            _pending[token] = self.start([[np.asarray(array)] for array in arrays])
        except (HorovodInternalError, ValueError) as error:
            _pending[token] = _Started(_Failed(error))
        return np.asarray(token, np.int64)


class _Failed(Bucket):
    """A bucket that could not be submitted: said when it is waited for, so that others are waited for as well."""

    __slots__ = ("_error",)

    def __init__(self, error: Exception) -> None:
        self._error = error

    def wait(self) -> None:
        raise self._error


@dataclass(frozen=True, slots=True)
class _Started:
    """A bucket on its way, and where its parts lie in it."""

    bucket: Bucket
    spans: Sequence[tuple[int, int]] = ()

    def wait(self) -> None:
        self.bucket.wait()

    def take(self) -> list[Array]:
        """The reduced parts, flat, after ``wait``."""
        flat = self.bucket.take()
        return [flat[start:end] for start, end in self.spans]


def _reduce_now(buckets: Sequence[Sequence[_Part]], starters: Sequence[_Starter]) -> list[tuple[_Piece, Any]]:
    results = []
    try:
        started = [
            starter.start([[array_of(piece.tensor) for piece in part] for part in parts])
            for parts, starter in zip(buckets, starters, strict=True)
        ]
        wait_all(started)
    except (HorovodInternalError, ValueError) as error:
        raise translated(error) from error
    for parts, bucket in zip(buckets, started, strict=True):
        for part, flat in zip(parts, bucket.take(), strict=True):
            start = 0
            for piece in part:
                size = int(piece.tensor.shape.num_elements())
                own = flat[start : start + size].reshape(tuple(piece.tensor.shape))
                results.append((piece, tf.convert_to_tensor(own)))
                start += size
    return results


def _packed(part: _Part) -> Any:
    """The part's array for the host."""
    flat = [tf.reshape(piece.tensor, [-1]) for piece in part]
    return tf.concat(flat, 0) if len(flat) > 1 else flat[0]


def _unpacked(part: _Part, flat: Any) -> list[tuple[_Piece, Any]]:
    """The gradients in a part that was reduced."""
    shapes = [piece.tensor.shape for piece in part]
    sizes = [
        shape.num_elements() if shape.is_fully_defined() else tf.size(piece.tensor)
        for shape, piece in zip(shapes, part, strict=True)
    ]
    whole = [
        shape if shape.is_fully_defined() else tf.shape(piece.tensor) for shape, piece in zip(shapes, part, strict=True)
    ]
    flats = tf.split(flat, sizes) if len(part) > 1 else [tf.identity(flat)]
    return [(piece, tf.reshape(one, shape)) for piece, one, shape in zip(part, flats, whole, strict=True)]


def _wait_in_graph(tokens: Sequence[Any], kinds: Sequence[Any]) -> tuple[Any, list[Any]]:
    """The host call that waits for all buckets: a status, and the parts of all."""
    nothing = [np.zeros(0, kind.as_numpy_dtype) for kind in kinds]

    def wait(*numbers: Any) -> list[Any]:
        buckets = [_pending.pop(int(number)) for number in numbers]
        try:
            wait_all(buckets)
        except (HorovodInternalError, ValueError) as error:
            return [status_of(error), *nothing]
        return [np.asarray(b"/dev/null", object), *[part for bucket in buckets for part in bucket.take()]]

    status, *reduced = tf.numpy_function(wait, tokens, [tf.string, *kinds], name="HorovodWait")
    return status, reduced


def _reduce_in_graph(buckets: Sequence[Sequence[_Part]], starters: Sequence[_Starter]) -> list[tuple[_Piece, Any]]:
    tokens = [
        tf.numpy_function(starter.submit, [_packed(part) for part in parts], tf.int64, name="HorovodSubmit")
        for parts, starter in zip(buckets, starters, strict=True)
    ]
    every = [part for parts in buckets for part in parts]
    status, reduced = _wait_in_graph(tokens, [part[0].tensor.dtype for part in every])
    with tf.control_dependencies([check_status(status)]):
        return [pair for part, flat in zip(every, reduced, strict=True) for pair in _unpacked(part, flat)]
