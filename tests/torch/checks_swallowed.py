"""A rank that swallows an error and goes on with the next step."""

from __future__ import annotations

import horovod.torch as hvd
import pytest
import torch


def check_a_skipped_operation_is_found() -> None:
    """P08: no step meets another one; the error names the ranks and what each of them waits for."""
    if hvd.size() == 1:
        return
    odd = hvd.size() - 1
    for step in range(3):
        for name in ("g1", "g2"):
            assert hvd.allreduce(torch.tensor([float(step)]), op=hvd.Sum, name=name).item() == step * hvd.size()
    results: list[tuple[int, float]] = []

    def go_on() -> None:
        for step in range(3, 6):
            for name in ("g1", "g2"):
                if not (hvd.rank() == odd and (step, name) == (3, "g2")):
                    results.append((step, hvd.allreduce(torch.tensor([float(step)]), op=hvd.Sum, name=name).item()))

    with pytest.raises(hvd.HorovodInternalError, match=rf"rank {odd} .*'allreduce.g1'") as raised:
        go_on()
    assert "'allreduce.g2'" in str(raised.value)
    assert results == [(3, 3.0 * hvd.size())]
