"""Every PyTorch example runs in small form on two ranks and on one; what it prints makes sense."""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.timeout(240), pytest.mark.usefixtures("no_leaks")]

TEXT = "examples/torch_text.py --epochs 1 --bytes 30000 --length 32 --width 16 --layers 1"
BENCHMARK = "examples/torch_synthetic_benchmark.py --num-warmup-batches 1 --num-batches-per-iter 2 --num-iters 3"
IMAGES = f"{BENCHMARK} --model resnet-tiny --batch-size 2"
LINES = [
    "examples/torch_digits.py --epochs 2",
    TEXT,
    IMAGES,
    f"{IMAGES} --fp16-allreduce",
    f"{IMAGES} --use-adasum --no-cuda",
    f"{IMAGES} --ddp",
    f"{BENCHMARK} --model bert-tiny --batch-size 2 --seq-length 16",
    "tests/examples/guide.py",
]
LIGHTNING = "examples/torch_lightning.py --epochs 1"
HAS_LIGHTNING = importlib.util.find_spec("lightning") is not None
needs_lightning = pytest.mark.skipif(not HAS_LIGHTNING, reason="Lightning is not installed")
ON_TWO_RANKS = (*LINES, *[LIGHTNING] * HAS_LIGHTNING)


def _started(ranks: int) -> list[str]:
    alone = [sys.executable, "-m", "tests.examples.runner"]
    return alone if ranks == 1 else [sys.executable, "-m", "horovod.runner", "-np", str(ranks), *alone]


@functools.cache
def output_of(ranks: int, lines: tuple[str, ...]) -> str:
    """What a job that runs these lines prints, without the ranks' prefixes."""
    done = subprocess.run(
        [*_started(ranks), *lines],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False, timeout=220,
    )  # fmt: skip
    return re.sub(r"^\[\d+\]<(?:stdout|stderr)>:", "", done.stdout + done.stderr, flags=re.MULTILINE)


def said_by(ranks: int, line: str, lines: tuple[str, ...] = ON_TWO_RANKS) -> str:
    """What all ranks print between the beginning and the end of a line that passed."""
    text = output_of(ranks, lines)
    begin, end = text.find(f"BEGIN {line}\n"), text.rfind(f"PASSED {line}\n")
    assert text.count(f"PASSED {line}\n") == ranks, text[begin if begin >= 0 else 0 :][-4000:]
    return text[begin:end]


@pytest.mark.parametrize("line", LINES)
def test_it_runs_on_two_ranks(line: str) -> None:
    said_by(2, line)


def test_the_loop_of_the_guide_learns() -> None:
    found = re.search(r"loss ([\d.]+)", said_by(2, LINES[-1]))
    assert found is not None
    assert float(found[1]) < 0.5


def test_digits_are_learned() -> None:
    found = re.search(r"test accuracy ([\d.]+)%, \d+ images/s on 2 rank", said_by(2, LINES[0]))
    assert found is not None
    assert float(found[1]) > 60


def _text_results(said: str) -> tuple[float, float]:
    found = re.search(r"epoch 0: perplexity ([\d.]+), ([\d.]+)% of bytes right", said)
    assert found is not None, said
    return float(found[1]), float(found[2])


def test_text_is_learned_as_by_one_process() -> None:
    """Alike but for rounding: the ranks together see the same pieces in each step."""
    perplexity, share = _text_results(said_by(2, TEXT))
    alone = _text_results(said_by(1, TEXT, (TEXT,)))
    assert perplexity < 120  # of 256
    assert perplexity == pytest.approx(alone[0], rel=1e-3)
    assert share == pytest.approx(alone[1], abs=0.1)


@pytest.mark.parametrize("line", [line for line in LINES if line.startswith(BENCHMARK)])
def test_the_benchmark_prints_what_horovods_prints(line: str) -> None:
    said = said_by(2, line)
    unit = "Seq/sec" if "bert" in line else "Img/sec"
    assert "Number of CPUs: 2" in said
    assert len(re.findall(rf"^Iter #\d: [\d.]+ {unit.lower()} per CPU$", said, flags=re.MULTILINE)) == 3
    each = re.search(rf"^{unit} per CPU: ([\d.]+) \+-[\d.]+$", said, flags=re.MULTILINE)
    total = re.search(rf"^Total {unit.lower()} on 2 CPU\(s\): ([\d.]+) \+-[\d.]+$", said, flags=re.MULTILINE)
    assert each is not None
    assert total is not None
    assert float(total[1]) > float(each[1]) > 0


def _run_alone(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, check=False, timeout=120
    )


def _last_perplexity(ranks: int, line: str) -> float:
    output_of.cache_clear()
    found: list[str] = re.findall(r"perplexity ([\d.]+)", said_by(ranks, line, (line,)))
    return float(found[-1])


@pytest.mark.slow
def test_text_goes_on_from_a_checkpoint_with_another_number_of_ranks(tmp_path: Path) -> None:
    """P41: rank 0 writes and decides; two epochs at once and one after the other end alike."""
    one_epoch, two_epochs = TEXT, TEXT.replace("--epochs 1", "--epochs 2")
    at_once = _last_perplexity(2, f"{two_epochs} --checkpoint {tmp_path / 'once.pt'}")
    first = _last_perplexity(2, f"{one_epoch} --checkpoint {tmp_path / 'parts.pt'}")
    second = _last_perplexity(1, f"{two_epochs} --checkpoint {tmp_path / 'parts.pt'}")
    assert second == pytest.approx(at_once, rel=1e-3)
    assert second < first
    assert sorted(path.name for path in tmp_path.iterdir()) == ["once.pt", "parts.pt"]
    saved = torch.load(tmp_path / "once.pt", weights_only=True)
    assert set(saved) == {"model", "optimizer", "epoch"}


@pytest.mark.slow
def test_options_that_contradict_each_other_are_refused() -> None:
    for arguments, words in (
        (["--ddp", "--use-adasum"], "goes with neither"),
        (["--model", "resnet"], "unknown model resnet: choose one of resnet50"),
        (["--model", "bert-tiny", "--seq-length", "513"], "at most 512"),
        (["--bytes", "100"], "less than one batch"),
    ):
        script = "text" if "--bytes" in arguments else "synthetic_benchmark"
        done = _run_alone(f"examples/torch_{script}.py", *arguments)
        assert done.returncode != 0
        assert words in done.stderr


@needs_lightning
def test_lightning() -> None:
    found = re.search(r"test accuracy ([\d.]+)% on 2 rank", said_by(2, LIGHTNING))
    assert found is not None
    assert float(found[1]) > 60


@needs_lightning
@pytest.mark.slow
def test_what_the_lightning_example_says_is_supported(tmp_path: Path) -> None:
    """Checkpoints, and going on from them with another number of ranks; accumulation; mixed precision."""
    first = f"{LIGHTNING} --folder {tmp_path}"
    assert "on 1 rank(s)" in said_by(1, first, (first,))
    assert [path.name for path in tmp_path.iterdir()] == ["best.ckpt"]
    lines = (
        f"{LIGHTNING.replace('--epochs 1', '--epochs 2')} --resume {tmp_path / 'best.ckpt'}",
        f"{LIGHTNING.replace('--epochs 1', '--epochs 2')} --accumulate 2",  # half as many steps
        f"{LIGHTNING} --precision bf16-mixed",
    )
    for line in lines:
        found = re.search(r"test accuracy ([\d.]+)% on 2 rank", said_by(2, line, lines))
        assert found is not None
        assert float(found[1]) > 60, line
