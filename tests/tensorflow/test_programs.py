"""Scripts as users write them."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import time
import uuid
from pathlib import Path

import numpy as np
import pytest

from tests.multi.conftest import _split
from tests.runner.launcher import MARK, launch, marked, until
from tests.tensorflow.harness import environment, run_job
from tests.tensorflow.programs import DEATHS, LOADS, SAVES, TUTORIAL

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(importlib.util.find_spec("tensorflow") is None, reason="TensorFlow is not installed"),
]
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def _save_data(path: Path) -> None:
    """Ten overlapping clouds of points, in the shapes of MNIST."""
    rng = np.random.default_rng(1)
    centers = rng.normal(size=(10, 784))
    labels = rng.integers(0, 10, 800)
    points = (centers[labels] + rng.normal(size=(800, 784)) * 3).astype("float32")
    hot = np.eye(10, dtype="float32")[labels]
    np.savez(path, x=points[:600], y=hot[:600], x_test=points[600:], y_test=hot[600:])


def test_the_tutorial_runs_verbatim(tmp_path: Path) -> None:
    """All ranks end with the same weights, and with the accuracy of one process: they had the same data."""
    script, data = tmp_path / "train.py", tmp_path / "data.npz"
    script.write_text(TUTORIAL)
    _save_data(data)
    accuracies, weights = [], []
    for size in (1, 2):
        text = run_job(size, [str(script), str(data)])
        found = re.findall(r"RESULT (\S+) (\S+)", text)
        assert len(found) == size, text[-3000:]
        accuracies.append(float(found[0][0]))
        weights.append({digest for _, digest in found})
        assert "differ before the first update" not in text
    assert len(weights[1]) == 1
    assert accuracies[0] > 0.5
    assert abs(accuracies[0] - accuracies[1]) < 0.05


@pytest.mark.slow
def test_the_tutorial_says_once_what_is_missing(tmp_path: Path) -> None:
    """Ranks that start with different weights are told to broadcast them, each rank once in all epochs."""
    script, data = tmp_path / "train.py", tmp_path / "data.npz"
    seed = "set_random_seed(7)"
    assert seed in TUTORIAL
    script.write_text("import os" + TUTORIAL.replace(seed, "set_random_seed(int(os.environ['HOROVOD_RANK']))"))
    _save_data(data)
    text = run_job(2, [str(script), str(data)])
    assert len(re.findall(r"RESULT \S+ \S+", text)) == 2, text[-3000:]
    told = re.findall(
        r"^\[(\d)\]<stderr>:.*weights differ before the first update.*BroadcastGlobalVariablesCallback", text, re.M
    )
    assert sorted(told) == ["0", "1"], text[-3000:]


def _accuracies(text: str) -> list[float]:
    return [float(found) for found in re.findall(r"test accuracy (\S+)% on 2 rank", text)]


def test_examples_of_tensorflow() -> None:
    """In small form, one after the other in one job: importing TensorFlow takes longest."""
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    commands = (
        "tensorflow2_keras_digits --epochs 1", "tensorflow2_tape_digits --epochs 2",
        "tensorflow1_session_digits --steps 60",
    )  # fmt: skip
    text = run_job(2, ["-m", "tests.tensorflow.examples", *commands])
    accuracies = _accuracies(text)
    assert len(accuracies) == 3, text[-5000:]
    assert min(accuracies) > 40, text[-5000:]


def test_example_of_keras_on_torch() -> None:
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    text = run_job(2, [str(EXAMPLES / "keras_torch_digits.py"), "--epochs", "3"])
    (accuracy,) = _accuracies(text) or [0.0]
    assert accuracy > 60, text[-5000:]


@pytest.mark.slow
def test_the_digits_example() -> None:
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    text = run_job(2, [str(EXAMPLES / "tensorflow2_keras_digits.py"), "--epochs", "8"])
    (accuracy,) = _accuracies(text) or [0.0]
    assert accuracy > 95, text[-5000:]


@pytest.mark.slow
def test_a_process_without_horovod_loads_a_saved_model(tmp_path: Path) -> None:
    """Row S43."""
    saves, loads, path = tmp_path / "saves.py", tmp_path / "loads.py", tmp_path / "model.keras"
    saves.write_text(SAVES)
    loads.write_text(LOADS)
    text = run_job(2, [str(saves), str(path)])
    losses = re.findall(r"SAVED (\S+)", text)
    assert len(losses) == 2, text
    assert losses[0] == losses[1]
    done = subprocess.run(
        [sys.executable, str(loads), str(path)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == f"LOADED Adam 3 {losses[0]} True", done


# Two seconds for last words, and what a Python with a framework needs to end; SIGTERM and SIGKILL would come later.
GONE_S = 6.0


@pytest.mark.slow
@pytest.mark.parametrize("name", DEATHS)
def test_a_rank_that_is_killed_is_named_by_the_other(tmp_path: Path, name: str) -> None:
    text, backend, error = DEATHS[name]
    if backend == "jax":
        pytest.importorskip("jax", reason="jax is not installed")
    script, mark = tmp_path / "train.py", uuid.uuid4().hex
    script.write_text(text)
    variables = environment(KERAS_BACKEND=backend, **{MARK: mark})
    done = launch("-np", "2", sys.executable, str(script), extra=variables, timeout=120)
    ended = time.time()
    output = done.stdout + done.stderr
    said = _split(output)
    assert done.returncode == 128 + 9, output
    shown = "\n".join(said[0])
    assert re.search(rf"{error}.*Rank 1 \(host \S+, pid \d+\) was killed by signal 9", shown, re.DOTALL), output
    assert "TRAINED" not in output
    (died,) = re.findall(r"DYING (\S+)", "\n".join(said[1]))
    assert ended - float(died) < GONE_S, output
    assert until(lambda: not marked(mark), 5)
