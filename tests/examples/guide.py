"""Runs the loop that docs/torch.md begins with, as it stands there, on a small network; prints how far the loss fell."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import horovod.torch as hvd
import torch

GUIDE = Path(__file__).resolve().parents[2] / "docs/torch.md"


def main() -> None:
    """The guide's names that it does not define are given here."""
    block = re.search(r"## From one process to many.*?```python\n(.*?)```", GUIDE.read_text(), flags=re.DOTALL)
    assert block is not None
    torch.manual_seed(0)
    x = torch.randn(256, 4)
    names: dict[str, Any] = {
        "torch": torch,
        "Net": lambda: torch.nn.Linear(4, 1),
        "dataset": torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True)),
        "loss": torch.nn.functional.mse_loss,
        "epochs": 3,
    }
    exec(block[1], names)
    left = torch.nn.functional.mse_loss(names["model"](x), x.sum(1, keepdim=True)).item()
    weights = hvd.allgather(names["model"].weight.detach())
    assert torch.equal(weights, weights[:1].expand_as(weights))
    print(f"loss {left:.4f}", flush=True)
    hvd.shutdown()


if __name__ == "__main__":
    main()
