"""The settings of a training process: the only module of the bindings that reads the environment.

A launcher puts them there (see docs/environment.md); arguments of calls win over them.  Values are read when they are
asked for, not at import, so that a test or a notebook may set them first.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from horovod.common.exceptions import StartError

__all__ = [
    "DEFAULT_ARENA_BYTES",
    "Settings",
    "dynamic_process_sets",
    "enable_dynamic_process_sets",
    "lonely_notices",
    "read_settings",
    "replace_variables",
    "reports_unused",
    "sparse_density_limit",
]

# Address space, not memory: pages exist only where they are touched.
DEFAULT_ARENA_BYTES = 256 << 30

_SIMD = ("", "avx512", "avx2", "baseline")
# Starters of processes, and the variables in which they tell a process its number and how many there are.
_STARTERS = (
    ("torchrun", "RANK", "WORLD_SIZE"),
    ("mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("mpiexec", "PMI_RANK", "PMI_SIZE"),
    ("srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
)


@dataclass(frozen=True, slots=True)
class Settings:
    """What a process knows before init; ``agent`` is empty where no agent was named.

    A process that was started by hand, with an agent but without a nonce, has rank -1 and size 0 unless it was told.
    """

    rank: int
    size: int
    agent: str
    nonce: str
    arena_bytes: int
    dynamic_process_sets: bool
    timeline: str
    start_timeout_s: float = 0.0
    extended_join: bool = False

    @property
    def is_guest(self) -> bool:
        """Whether the agent is to give this process its rank: it was started by hand, not by a launcher."""
        return bool(self.agent) and not self.nonce


def _integer(name: str, default: int) -> int:
    text = os.environ.get(name, "").strip()
    if not text:
        return default
    try:
        return int(text)
    except ValueError:
        raise StartError(f"The environment variable {name} is {text!r}, but it must be an integer.") from None


def _is_on(name: str) -> bool:
    """Boolean knobs are integers: above 0 is on; anything that is no number is off."""
    try:
        return int(os.environ.get(name, "0").strip() or "0") > 0
    except ValueError:
        return False


def dynamic_process_sets() -> bool:
    """Whether process sets may be added and removed after init."""
    return _is_on("HOROVOD_DYNAMIC_PROCESS_SETS")


def enable_dynamic_process_sets() -> None:
    """What ``init(process_sets="dynamic")`` stands for."""
    os.environ["HOROVOD_DYNAMIC_PROCESS_SETS"] = "1"


def replace_variables(values: Mapping[str, str | None]) -> dict[str, str | None]:
    """Sets variables, or removes those that are None; returns what was there before."""
    before = {name: os.environ.get(name) for name in values}
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    return before


def sparse_density_limit() -> float:
    """Above this ratio of what all ranks send to what the tensor has, sparse tensors are reduced as dense ones."""
    return _number_of("HVD_SPARSE_DENSITY_LIMIT", "1")


def reports_unused() -> bool:
    """Whether optimizers name parameters that no rank had a gradient for."""
    return _is_on("HVD_REPORT_UNUSED")


def lonely_notices() -> list[str]:
    """What a process that finds no agent should be told: that it was meant to be one of many, what has no effect."""
    notices = []
    if os.environ.get("HOROVOD_TIMELINE"):
        notices.append(f"HOROVOD_TIMELINE={os.environ['HOROVOD_TIMELINE']}: the timeline is not supported yet.")
    for starter, rank, size in _STARTERS if "HOROVOD_SIZE" not in os.environ else ():
        count = os.environ.get(size, "")
        if rank in os.environ and count.isdecimal() and int(count) > 1:
            notices.append(
                f"This process is one of {count} ({rank}={os.environ[rank]}, {size}={count}, as {starter} sets them), but no "
                "agent is named in HOROVOD_AGENT: each of them trains alone, as rank 0 of 1. Start the program with: "
                f"horovodrun -np {count} python train.py (or set HOROVOD_SIZE=1 to say that they are to run alone)."
            )
            break
    return notices


def _place() -> tuple[int, int]:
    """Rank and size; -1 and 0 where the agent says what they are."""
    is_guest = bool(os.environ.get("HOROVOD_AGENT")) and not os.environ.get("HVD_SLOT_NONCE")
    nobody, unknown = (-1, 0) if is_guest else (0, 1)
    rank, size = _integer("HOROVOD_RANK", nobody), _integer("HOROVOD_SIZE", unknown)
    is_negative = rank < 0 and bool(os.environ.get("HOROVOD_RANK", "").strip())
    if size < unknown or is_negative or (size > 0 and rank >= size):
        raise StartError(f"HOROVOD_RANK={rank} and HOROVOD_SIZE={size} name no rank: 0 <= rank < size must hold.")
    return rank, size


def _number_of(name: str, default: str) -> float:
    text = os.environ.get(name, "").strip() or default
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not value >= 0:
        raise StartError(f"The environment variable {name} is {text!r}, but it must be a number >= 0.")
    return value


def _seconds(name: str) -> float:
    value = _number_of(name, "0")
    if value == float("inf"):
        raise StartError(
            f"The environment variable {name} is {os.environ.get(name)!r}, but it must be a finite number."
        )
    return value


def read_settings() -> Settings:
    """The settings as the environment holds them now; raises StartError where a value makes no sense."""
    rank, size = _place()
    arena_bytes = _integer("HVD_ARENA_BYTES", DEFAULT_ARENA_BYTES)
    if arena_bytes < 1 << 20:
        raise StartError(f"HVD_ARENA_BYTES={arena_bytes} is too small: give at least 1048576.")
    simd = os.environ.get("HVD_SIMD", "")
    if simd not in _SIMD:
        raise StartError(f"HVD_SIMD is {simd!r}, but it must be avx512, avx2 or baseline.")
    sparse_density_limit()  # wrong values are said now, not in the middle of training
    join_mode = os.environ.get("HOROVOD_JOIN_MODE", "").strip().lower()
    if join_mode not in ("", "default", "extended"):
        raise StartError(f"HOROVOD_JOIN_MODE is {join_mode!r}, but it must be 'default' or 'extended'.")
    return Settings(
        rank=rank,
        size=size,
        agent=os.environ.get("HOROVOD_AGENT", ""),
        nonce=os.environ.get("HVD_SLOT_NONCE", ""),
        arena_bytes=arena_bytes,
        dynamic_process_sets=dynamic_process_sets(),
        timeline=os.environ.get("HOROVOD_TIMELINE", ""),
        start_timeout_s=_seconds("HOROVOD_START_TIMEOUT"),
        extended_join=join_mode == "extended",
    )
