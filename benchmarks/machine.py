"""What a reader must know about the machine to make sense of a number."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import psutil


def describe_machine() -> dict[str, object]:
    """Processor, cores, memory, kernel, Python, and how busy it was."""
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "cpu_quota": _read("/sys/fs/cgroup/cpu.max"),
        "memory_bytes": psutil.virtual_memory().total,
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_average_1min": round(os.getloadavg()[0], 2),
    }


def threads_per_rank(size: int) -> int:
    """Compute threads for each rank, so that all ranks together fill the cores."""
    return max(1, len(os.sched_getaffinity(0)) // size)


def _cpu_model() -> str:
    for line in _read("/proc/cpuinfo").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""
