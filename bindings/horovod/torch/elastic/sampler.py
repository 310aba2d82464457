"""A sampler that knows which samples were processed, so that an epoch can go on with another number of ranks."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sized
from typing import Any

import torch.utils.data

from horovod.torch.mpi_ops import rank, size

__all__ = ["ElasticSampler"]


class ElasticSampler(torch.utils.data.Sampler[int]):
    """Gives each rank its part of the samples that were not processed in this epoch, in the same order everywhere.

    Record each batch with ``record_batch``, call ``set_epoch`` at the end of an epoch.  After a change of the ranks, or
    after ``load_state_dict``, what is left of the epoch is divided anew.  The last samples are repeated so that all ranks
    have equally many.
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0
        self.processed_num = 0
        self.num_replicas, self.rank = 1, 0
        self.remaining_indices: list[int] = []
        self.num_samples = self.total_size = 0
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Begins an epoch: everything is to be processed, in the order of this epoch.  Call it at the end of each."""
        self.epoch = epoch
        self.processed_num = 0
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """This batch, and those of the other ranks, were processed; ranks record equally large batches."""
        self.processed_num += batch_size * self.num_replicas

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes over epoch and progress, and divides what is left."""
        self.epoch = state_dict["epoch"]
        self.processed_num = state_dict["processed_num"]
        self.reset()

    def state_dict(self) -> dict[str, Any]:
        """Epoch and progress: equal on all ranks."""
        return {"epoch": self.epoch, "processed_num": self.processed_num}

    def reset(self) -> None:
        """Divides what is left of the epoch among the ranks that there are now."""
        self.num_replicas, self.rank = size(), rank()
        order = list(range(len(self.dataset)))
        if self.shuffle:
            random.Random(self.seed + self.epoch).shuffle(order)
        self.remaining_indices = order[self.processed_num :]
        self.num_samples = math.ceil(len(self.remaining_indices) / self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas

    def __iter__(self) -> Iterator[int]:
        left = self.remaining_indices
        padded = [left[position % len(left)] for position in range(self.total_size)]
        return iter(padded[self.rank :: self.num_replicas])

    def __len__(self) -> int:
        return self.num_samples
