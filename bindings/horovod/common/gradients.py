"""What optimizers and tapes are told, for every backend: checked once; how variables are named on all ranks alike."""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from horovod.common import basics
from horovod.common.array_signatures import require_client
from horovod.common.calls import set_id_of
from horovod.common.checks import check_op
from horovod.common.exceptions import MismatchError, UsageError
from horovod.common.objects import allgather_pickled
from horovod.common.process_sets import ProcessSet
from horovod.common.types import ReduceOp

__all__ = [
    "GradientSettings",
    "Groups",
    "agree_on",
    "check_groups",
    "check_passes",
    "kind_of",
    "make_settings",
    "plain_name",
    "reduces",
]

# Lists of gradients that all ranks of a set have agreed on in this epoch.
_agreed: set[tuple[int, str]] = set()
basics.on_new_epoch(_agreed.clear)

Groups = Sequence[Sequence[int]] | int | None
"""Positions of gradients that are reduced together, or how many groups of equal size there shall be."""


@dataclass(frozen=True, slots=True)
class GradientSettings:
    """How gradients are reduced; ``compression`` belongs to the framework."""

    compression: Any
    op: int
    predivide: float
    sparse_as_dense: bool
    process_set: ProcessSet


def reduces(settings: GradientSettings) -> bool:
    """Whether there is anybody to reduce with."""
    client = require_client()
    ranks = settings.process_set.ranks
    members = client.size if ranks is None else len(ranks)
    return members > 1 and (ranks is None or client.rank in ranks)


def plain_name(name: str) -> str:
    """A variable's path without what Keras appends to tell layers of one process apart."""
    return re.sub(r"_\d+(?=[/:_]|$)", "", name)


def agree_on(entries: Sequence[str], settings: GradientSettings) -> str:
    """A short name for this list of gradients, after all ranks have been found to have the same one.

    They are asked once for each list.  Raises MismatchError on all ranks, with the first difference.
    """
    identity = hashlib.sha256("\n".join([str(settings.op), *entries]).encode()).hexdigest()[:12]
    set_id = set_id_of(settings.process_set)
    if (set_id, identity) not in _agreed:
        client = require_client()
        lists = allgather_pickled(client, list(entries), "gradients.agreement", settings.process_set)
        ranks = client.process_sets()[set_id]
        for rank, theirs in zip(ranks, lists, strict=True):
            if theirs != lists[0]:
                raise MismatchError(_difference(ranks[0], lists[0], rank, theirs))
        _agreed.add((set_id, identity))
    return identity


def _difference(first_rank: int, first: Sequence[str], rank: int, theirs: Sequence[str]) -> str:
    pairs = itertools.zip_longest(first, theirs, fillvalue="none")
    place, (one, other) = next((i, pair) for i, pair in enumerate(pairs) if pair[0] != pair[1])
    return (
        f"Mismatched gradients: rank {first_rank} has {len(first)} and rank {rank} has {len(theirs)}, and number {place} "
        f"is {one} on rank {first_rank}, {other} on rank {rank}. Build the same model on all ranks, and compute the "
        "gradients of the same variables."
    )


def check_groups(groups: Any) -> Any:
    """The groups: None, how many, or lists of variables; UsageError for anything else."""
    if groups is None or (isinstance(groups, int) and not isinstance(groups, bool) and groups > 0):
        return groups
    if isinstance(groups, (list, tuple)) and all(isinstance(group, (list, tuple)) for group in groups):
        members = [variable for group in groups for variable in group]
        if any(not hasattr(variable, "assign") for variable in members):
            raise UsageError("groups should consist of lists of variables.")
        if len({id(variable) for variable in members}) != len(members):
            raise UsageError("A variable can only appear once in groups.")
        return groups
    raise UsageError(f"groups should be a positive integer or a list of lists of variables, not {groups!r}.")


def check_passes(passes: Any) -> int:
    """How many passes a step has; UsageError for what is no number above 0."""
    if isinstance(passes, bool) or not isinstance(passes, int) or passes < 1:
        raise UsageError(f"backward_passes_per_step must be an integer > 0, not {passes!r}.")
    return passes


def kind_of(optimizer: object) -> str:
    """What messages call an optimizer that can't be wrapped; with advice for those of Keras 2."""
    kind = type(optimizer)
    if kind.__module__.partition(".")[0] == "tf_keras":
        return f"the {kind.__name__} of Keras 2 (tf_keras): use Keras 3, without TF_USE_LEGACY_KERAS"
    return kind.__name__


def _check_compression(compression: object, what: str) -> None:
    if not (hasattr(compression, "compress") and hasattr(compression, "decompress")):
        raise UsageError(
            f"{what}: compression={compression!r} is no compressor: use hvd.Compression.none, hvd.Compression.fp16 or "
            "hvd.Compression.bf16, or a class with compress and decompress."
        )


def make_settings(
    compression: Any, op: Any, predivide: Any, sparse_as_dense: bool, process_set: ProcessSet, what: str
) -> GradientSettings:
    """The settings; UsageError for arguments that contradict each other."""
    _check_compression(compression, what)
    op = check_op(op, what)
    if isinstance(predivide, str) or not hasattr(predivide, "__float__"):
        raise UsageError(f"gradient_predivide_factor must be a number above 0, not {predivide!r}.")
    if predivide != 1.0 and op != ReduceOp.AVERAGE:
        raise UsageError("gradient_predivide_factor not supported with op != Average")
    if predivide <= 0:
        raise UsageError(f"gradient_predivide_factor must be above 0, not {predivide}.")
    if op == ReduceOp.ADASUM and set_id_of(process_set) != 0:
        raise NotImplementedError("Adasum does not support non-global process sets yet.")
    return GradientSettings(compression, op, float(predivide), sparse_as_dense, process_set)
