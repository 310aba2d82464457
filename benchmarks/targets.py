"""What must be reached, and whether it was."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

Results = Mapping[str, Mapping[str, float]]
"""Case -> series -> median in seconds, or another measured value."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """One line of the summary; ``is_met`` is None where something is missing."""

    text: str
    measured: str
    is_met: bool | None

    def line(self) -> str:
        """For people."""
        word = {True: "met", False: "MISSED", None: "not measured"}[self.is_met]
        return f"{word:>12}  {self.text}: {self.measured}"


class Target(Protocol):
    """Something to reach."""

    def judge(self, results: Results) -> Verdict:
        """Compares with what was measured."""
        ...


def _ratio(values: Mapping[str, float], upper: str, lower: str) -> float | None:
    """None when one of the series was not measured."""
    return values[upper] / values[lower] if upper in values and lower in values else None


@dataclass(frozen=True, slots=True)
class AtLeast:
    """``theirs`` divided by ``ours`` must be at least ``factor``."""

    text: str
    case: str
    ours: str
    theirs: str
    factor: float

    def judge(self, results: Results) -> Verdict:
        """How many times faster."""
        reached = _ratio(results.get(self.case, {}), self.theirs, self.ours)
        text = f"{self.text}, at least {self.factor:g}x"
        if reached is None:
            return Verdict(text, f"needs {self.ours} and {self.theirs}", None)
        return Verdict(text, f"{reached:.2f}x", reached >= self.factor)


@dataclass(frozen=True, slots=True)
class AtMostTimes:
    """``ours`` must be at most ``factor`` times ``theirs``."""

    text: str
    case: str
    ours: str
    theirs: str
    factor: float

    def judge(self, results: Results) -> Verdict:
        """How many times as long."""
        reached = _ratio(results.get(self.case, {}), self.ours, self.theirs)
        text = f"{self.text}, at most {self.factor:g}x"
        if reached is None:
            return Verdict(text, f"needs {self.ours} and {self.theirs}", None)
        return Verdict(text, f"{reached:.2f}x", reached <= self.factor)


@dataclass(frozen=True, slots=True)
class AtMost:
    """A measured value must be at most ``limit``, both shown in ``unit`` of ``scale``."""

    text: str
    case: str
    series: str
    limit: float
    unit: str
    scale: float = 1.0

    def judge(self, results: Results) -> Verdict:
        """The value itself."""
        value = results.get(self.case, {}).get(self.series)
        text = f"{self.text}, at most {self.limit / self.scale:g} {self.unit}"
        if value is None:
            return Verdict(text, f"needs {self.series}", None)
        return Verdict(text, f"{value / self.scale:.3g} {self.unit}", value <= self.limit)


KIB, MIB = 1 << 10, 1 << 20


def case_name(dtype: str, nbytes: int) -> str:
    """How a case with one tensor is called."""
    return f"{dtype}/{nbytes}"


def _plain() -> list[Target]:
    one = case_name("float32", 4 * KIB)
    found: list[Target] = [
        AtLeast("float32 4 KiB, blocking, against Gloo", one, "hvd", "gloo", 8),
        AtMost("float32 4 KiB, blocking (aim)", one, "hvd", 20e-6, "us", 1e-6),
    ]
    limits: list[tuple[str, str, int, float]] = [
        ("gloo", "Gloo", 64 * KIB, 5),
        ("gloo", "Gloo", MIB, 5),
        ("gloo", "Gloo", 8 * MIB, 4),
        ("gloo", "Gloo", 64 * MIB, 3),
        ("openmpi", "Open MPI", 8 * MIB, 0.8),
        ("openmpi", "Open MPI", 64 * MIB, 1.5),
    ]
    for peer, name, nbytes, factor in limits:
        text = f"float32 {nbytes // KIB} KiB, plain, against {name}"
        found.append(AtLeast(text, case_name("float32", nbytes), "hvd", peer, factor))
    return found


def _arena() -> list[Target]:
    large = case_name("float32", 64 * MIB)
    found: list[Target] = [
        AtLeast("float32 64 MiB, in the arena, against Gloo", large, "hvd-arena", "gloo", 8),
        AtLeast("float32 64 MiB, in the arena, against Open MPI", large, "hvd-arena", "openmpi", 3),
    ]
    for nbytes in (MIB, 8 * MIB, 64 * MIB):
        case = case_name("float32", nbytes)
        text = f"float32 {nbytes // MIB} MiB, in the arena, against the kernel alone"
        found.append(AtLeast(text, case, "hvd-arena", "floor", 0.8))
    return found


def _sixteen_bit() -> list[Target]:
    return [
        AtLeast(f"{dtype} {nbytes // MIB} MiB, against Gloo", case_name(dtype, nbytes), "hvd", "gloo", 5)
        for dtype in ("float16", "bfloat16")
        for nbytes in (MIB, 8 * MIB, 64 * MIB)
    ]


ALLREDUCE: Sequence[Target] = (
    *_plain(),
    *_arena(),
    *_sixteen_bit(),
    AtLeast("4 ranks, float32 4 KiB, against Gloo", "4 ranks/float32/4096", "hvd", "gloo", 2),
)
GRADIENTS: Sequence[Target] = (
    AtLeast("161 tensors, 102 MB, async, against Gloo", "resnet50", "hvd", "gloo", 1.5),
    AtLeast("500 tensors of 4 KB, async, against Gloo", "500x4KB", "hvd", "gloo", 20),
    AtLeast("DistributedOptimizer, time added per step, against DDP with Gloo", "step added", "hvd", "gloo", 2),
    AtMost("a new name every step, 4 KiB", "names", "hvd", 2e-3, "ms", 1e-3),
    AtMost("growth of memory over the later half of the names", "names growth", "bytes", 8 * MIB, "MiB", MIB),
    AtMost("memory of a rank, arena and board, beyond 1.1 times the gradients", "memory", "excess", 16e6, "MB", 1e6),
)

OVERHEAD: Sequence[Target] = (
    AtMost("allreduce_ of 256 bytes, Python and C calls of a rank", "layers", "allreduce_", 20e-6, "us", 1e-6),
    *(
        AtMost(f"hooks and copies, {name}, beyond a plain copy", "gradients beyond the floor", name, 1.5e-3, "ms", 1e-3)
        for name in ("161 tiny", "resnet50")
    ),
)

THROUGHPUT: Sequence[Target] = (
    AtLeast("ResNet-50 on small images, throughput, against DDP with Gloo", "resnet50", "hvd", "gloo", 1),
    AtLeast("BERT-size encoder, throughput, against DDP with Gloo", "bert-base", "hvd", "gloo", 1),
)

TENSORFLOW_FIT: Sequence[Target] = (
    AtMostTimes("model.fit, time added per step, against torch with as many bytes", "added", "keras", "hvd", 1.5),
    AtLeast("model.fit, a step, against MultiWorkerMirroredStrategy", "fit", "keras", "mirrored", 1.5),
)

COORDINATOR: Sequence[Target] = (
    AtMost("the model negotiated", "coordinator", "model_negotiated_s", 10.0, "s"),
    AtMost("one more tensor", "coordinator", "one_more_tensor_s", 1.0, "s"),
    AtMost("loss of an agent to the end of the epoch, known to all", "coordinator", "loss_to_epoch_end_s", 2.0, "s"),
    AtMost("loss of an agent to the next job's epoch, known to all", "coordinator", "loss_to_next_epoch_s", 2.0, "s"),
    AtMost("cores for heartbeats", "coordinator", "idle_cores", 0.25, "cores"),
    AtMost("memory at its peak", "coordinator", "peak_rss_bytes", 1.5e9, "MB", 1e6),
)


def judge_all(targets: Sequence[Target], results: Results) -> list[Verdict]:
    """A verdict for each target."""
    return [target.judge(results) for target in targets]
