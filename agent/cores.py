"""How many cores this process may use: affinity and the CPU quota of its control groups count."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["available_cores", "quota_of_group"]


def available_cores(root: Path = Path("/sys/fs/cgroup"), groups: Path = Path("/proc/self/cgroup")) -> float:
    """The smaller of affinity and quota; a fraction where the quota is one."""
    cores = float(len(os.sched_getaffinity(0)))
    return min([cores, *_quotas(root, groups)])


def _quotas(root: Path, groups: Path) -> list[float]:
    """The quotas of the group of this process and of all groups above it, in version 2 and version 1 hierarchies."""
    found = []
    for line in _read(groups).splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and "cpu" not in controllers.split(","):
            continue
        base = root / "cpu" if controllers else root
        parts = [part for part in path.split("/") if part and part != ".."]
        for depth in range(len(parts) + 1):
            found.append(quota_of_group(base.joinpath(*parts[:depth])))
    return [quota for quota in found if quota is not None]


def quota_of_group(folder: Path) -> float | None:
    """Cores that the group's quota allows, None where there is no quota."""
    if text := _read(folder / "cpu.max"):
        quota, _, period = text.partition(" ")
    else:
        quota, period = _read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us")
    try:
        cores = int(quota) / int(period)
    except (ValueError, ZeroDivisionError):
        return None
    return cores if cores > 0 else None


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
