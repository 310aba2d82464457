"""The benchmark starts real ranks, measures them, skips who is missing, and leaves nothing behind."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.usefixtures("no_leaks")


def _run(module: str, *arguments: str, path: Path) -> dict[str, object]:
    command = [sys.executable, "-m", f"benchmarks.{module}", "--json", str(path / "out.json"), *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    content: dict[str, object] = json.loads((path / "out.json").read_text())
    return content


@pytest.mark.timeout(120)
def test_allreduce_against_gloo(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    effort = ("--rounds", "1", "--budget-s", "0.01", "--no-crowd", "--dtypes", "float32", "--sizes", "4096,1048576")
    missing = ("--peer-python", str(tmp_path / "no-such-python"))
    content = _run("allreduce", "--peers", "gloo", *effort, *missing, path=tmp_path)
    cases = content["cases"]
    assert isinstance(cases, dict)
    assert set(cases) == {"float32/4096", "float32/1048576"}
    assert set(cases["float32/1048576"]["series"]) == {"hvd", "gloo", "hvd-arena", "floor"}
    assert cases["float32/4096"]["series"]["hvd"]["median_s"] > 0
    assert "no interpreter" in str(content["skipped"])


def test_an_unknown_peer_is_refused() -> None:
    command = [sys.executable, "-m", "benchmarks.allreduce", "--peers", "carrier-pigeon"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "unknown peer carrier-pigeon" in done.stderr
