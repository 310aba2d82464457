"""How the gradients of one optimizer are reduced."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch

from horovod.common.process_sets import ProcessSet
from horovod.torch.compression import Compressor

__all__ = ["Settings"]


class Settings:
    """What the user chose."""

    __slots__ = ("compression", "groups", "op", "passes", "postscale", "prescale", "process_set", "sparse_as_dense")

    def __init__(
        self,
        compression: type[Compressor],
        op: int,
        predivide: float,
        passes: int,
        groups: Sequence[Sequence[torch.Tensor]] | int | None,
        sparse_as_dense: bool,
        process_set: ProcessSet,
    ) -> None:
        self.compression = compression
        self.op = op
        self.prescale, self.postscale = 1.0 / predivide, float(predivide)
        self.passes = passes
        self.groups = groups
        self.sparse_as_dense = sparse_as_dense
        self.process_set = process_set

    def copy(self, memo: dict[int, Any]) -> Settings:
        """The same for parameters that were copied."""
        other = copy.copy(self)
        other.groups = copy.deepcopy(self.groups, memo)
        return other
