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


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_throughput_against_gloo(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    effort = (
        "--rounds",
        "1",
        "--budget-s",
        "0.01",
        "--models",
        "resnet-tiny,bert-tiny",
        "--batch",
        "2",
        "--size",
        "32",
    )
    content = _run("throughput", *effort, path=tmp_path)
    cases, values = content["cases"], content["values"]
    assert isinstance(cases, dict)
    assert isinstance(values, dict)
    for model in ("resnet-tiny", "bert-tiny"):
        assert set(cases[model]["series"]) == {"hvd", "gloo"}
        speed = values[f"{model} samples/s"]["hvd"]
        assert speed == pytest.approx(4 / cases[model]["series"]["hvd"]["median_s"])


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_overhead_of_a_rank(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    content = _run("overhead", "--rounds", "1", "--budget-s", "0.01", "--sets", "161 tiny", path=tmp_path)
    cases, values = content["cases"], content["values"]
    assert isinstance(cases, dict)
    assert isinstance(values, dict)
    assert set(cases["layers"]["series"]) == {"allreduce_", "client", "engine", "foreign call"}
    assert set(cases["gradients/161 tiny"]["series"]) == {"hooks", "hooks-floor"}
    assert set(values["gradients beyond the floor"]) == {"161 tiny"}


def test_an_unknown_peer_is_refused() -> None:
    command = [sys.executable, "-m", "benchmarks.allreduce", "--peers", "carrier-pigeon"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "unknown peer carrier-pigeon" in done.stderr


@pytest.mark.timeout(120)
def test_coordinator_with_a_few_agents(tmp_path: Path) -> None:
    content = _run("coordinator", "--agents", "6", "--tensors", "40", "--idle-s", "0.1", path=tmp_path)
    values = content["values"]
    assert isinstance(values, dict)
    assert min(values[name] for name in ("model_negotiated_s", "one_more_tensor_s", "loss_to_next_epoch_s")) > 0
    targets = content["targets"]
    assert isinstance(targets, list)
    assert not [target for target in targets if target["is_met"] is None]


def test_the_coordinators_decisions_alone(tmp_path: Path) -> None:
    content = _run("coordinator", "--model", "--agents", "200", path=tmp_path)
    model = content["model"]
    assert isinstance(model, dict)
    assert set(model["agents"]) == {"20", "200"}
    assert model["growth"]["a tensor is negotiated"]["orders"] == 1
