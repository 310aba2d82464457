"""Ranks with 1 MiB of shared memory: what has no room is refused on all of them, and what fits goes on."""

from __future__ import annotations

import horovod.torch as hvd
import pytest
import torch

FITS, TOO_MUCH = 10_000, 1_000_000


def check_buckets_without_room() -> None:
    """The same error on all ranks, which says what to set; a smaller model trains afterwards."""
    for count in (TOO_MUCH, FITS, TOO_MUCH, FITS):
        w = torch.nn.Parameter(torch.zeros(count))
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([w], lr=1.0), op=hvd.Sum)
        (w.sum() * (hvd.rank() + 1)).backward()
        if count == FITS:
            optimizer.step()
            assert torch.equal(w.detach(), torch.full((count,), -float(sum(range(1, hvd.size() + 1)))))
            continue
        with pytest.raises(hvd.HorovodInternalError, match=r"refused on all ranks.*HVD_ARENA_BYTES"):
            optimizer.step()


def check_objects_need_little_room() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("horovod.common.objects._PIECE_BYTES", 100_000)
        assert hvd.broadcast_object(bytes(TOO_MUCH) if hvd.rank() == 0 else None, 0) == bytes(TOO_MUCH)
