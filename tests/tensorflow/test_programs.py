"""Scripts as users write them."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import numpy as np
import pytest

from tests.tensorflow.harness import run_job
from tests.tensorflow.programs import TUTORIAL

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
