"""docs/torch.md lists what is there."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

hvd = pytest.importorskip("horovod.torch")
GUIDE = (Path(__file__).resolve().parents[2] / "docs/torch.md").read_text()


def test_every_option_of_the_optimizer_has_a_row() -> None:
    section = GUIDE.partition("## DistributedOptimizer\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \|", section, flags=re.MULTILINE)
    parameters = inspect.signature(hvd.DistributedOptimizer).parameters
    assert [name for name, _ in rows] == list(parameters)
    shown = {name: text for name, text in rows if re.fullmatch(r"[\d.]+|True|False", text)}
    assert shown == {name: str(parameters[name].default) for name in shown}
    assert len(shown) >= 4


def test_every_example_of_torch_is_in_the_guide() -> None:
    folder = Path(__file__).resolve().parents[2] / "examples"
    assert [path.name for path in folder.glob("torch_*.py") if f"(../examples/{path.name})" not in GUIDE] == []
