"""The benchmark between agents starts a coordinator and agents, measures peers in turn, and ends them all."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.network import NETWORK
from benchmarks.targets import AtLeast, judge_all

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.usefixtures("no_leaks")


@pytest.mark.timeout(180)
def test_two_agents_against_gloo_and_plain_sockets(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    effort = ("--rounds", "1", "--budget-s", "0.01", "--max-bytes", "65536", "--tensors", "20", "--only", "pairs")
    command = [sys.executable, "-m", "benchmarks.network", "--json", str(tmp_path / "out.json"), *effort]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    content = json.loads((tmp_path / "out.json").read_text())
    assert content["skipped"] == {}
    assert set(content["cases"]) == {"1+1/4096", "1+1/65536", "1+1/20x4KB"}
    assert set(content["cases"]["1+1/65536"]["series"]) == {"hvd", "gloo", "raw"}
    assert content["values"]["socket writes"]["hvd"] > 0
    assert content["values"]["control messages"] == {"announcements": 0}
    judged = {verdict["text"]: verdict["is_met"] for verdict in content["targets"]}
    assert judged["announcements in steady state, at most 0 messages"] is True
    assert judged["4 KiB, 2 agents, against Gloo, at least 0.8x"] is not None


def test_a_target_that_was_not_measured_is_not_missed() -> None:
    assert {verdict.is_met for verdict in judge_all(NETWORK, {})} == {None}
    names = [
        (target.case, target.theirs) for target in NETWORK if isinstance(target, AtLeast) and target.theirs == "raw"
    ]
    assert names == [("1+1/67108864", "raw"), ("1+1+1/67108864", "raw")]
