"""Rank 0 evaluates while the others wait for it: ``python -m tests.torch.alone``."""

from __future__ import annotations

import time

import horovod.torch as hvd
import torch

STEPS, EVALUATION_S = 4, 2.5


def main() -> None:
    """Trains; after step 1 rank 0 is busy by itself."""
    hvd.init()
    w = torch.nn.Parameter(torch.zeros(3))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([w], lr=1.0), op=hvd.Sum)
    for step in range(STEPS):
        optimizer.zero_grad()
        (w * (hvd.rank() + 1.0)).sum().backward()
        optimizer.step()
        if step == 1 and hvd.rank() == 0:
            time.sleep(EVALUATION_S)  # what is tested
    assert torch.all(w == -STEPS * sum(range(1, hvd.size() + 1)))
    print("done", flush=True)


if __name__ == "__main__":
    main()
