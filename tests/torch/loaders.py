"""Training programs with DataLoader workers, run on real ranks: ``python -m tests.torch.loaders <program> <method>``.

Like many a script, this module may call init wherever it is imported: set ``HVD_TEST_INIT_AT_IMPORT``, and so does every
worker that imports the main module.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

import horovod.torch as hvd
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

ROWS, BATCH = 8, 4

if "HVD_TEST_INIT_AT_IMPORT" in os.environ:
    hvd.init()


class Rows(Dataset[torch.Tensor]):
    """Row i is full of i."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((3,), float(index))


def call_init(_worker: int) -> None:
    """What a worker should not do."""
    hvd.init()


def loader(method: str, init: Callable[[int], None] | None = None) -> DataLoader[torch.Tensor]:
    return DataLoader(
        Rows(),
        BATCH,
        num_workers=1,
        multiprocessing_context=method,
        worker_init_fn=init,
        persistent_workers=init is None,
    )


def check_sum() -> None:
    """The ranks still work together."""
    total = hvd.allreduce(torch.ones(5), name="still there", op=hvd.Sum)
    assert torch.all(total == hvd.size())


def training(method: str) -> None:
    """Two epochs over the same worker, an allreduce after each batch; then a worker that calls init, and hears why not."""
    batches = loader(method)
    for _ in range(2):
        seen = [hvd.allreduce(batch, name="batch", op=hvd.Sum)[:, 0] for batch in batches]
        assert torch.cat(seen).tolist() == [float(row * hvd.size()) for row in range(ROWS)]
    with pytest.raises(ValueError) as caught:
        list(loader(method, call_init))
    print(f"worker: {caught.value}".replace("\n", " "))
    check_sum()


def imported(method: str) -> None:
    """The worker calls init as it imports the main module and ends with the reason; torch tells the rank, which goes on."""
    with pytest.raises(RuntimeError, match="DataLoader worker"):
        list(loader(method))
    check_sum()


def main() -> None:
    """Runs the program that the command line names."""
    hvd.init()
    programs: dict[str, Callable[[str], None]] = {"training": training, "imported": imported}
    programs[sys.argv[1]](sys.argv[2])
    hvd.shutdown()
    print("done")


if __name__ == "__main__":
    main()
