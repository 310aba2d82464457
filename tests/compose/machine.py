"""What an engine could leave on this machine, at a moment."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

__all__ = ["state"]

_SETTINGS = ("net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding", "net/ipv4/conf/all/route_localnet")
_GROUPS = ("docker", "hvd-compose-*")
_PLACES = (
    "/etc/docker",
    "/run/docker",
    "/run/docker.sock",
    "/run/docker.pid",
    "/run/containerd",
    "/var/lib/docker",
    "/var/lib/containerd",
    "/opt/containerd",
    "/root/.docker",
)


def state() -> dict[str, list[str]]:
    """Rules, settings, interfaces, mounts, groups and files, by kind."""
    return {
        "rules": [*_rules("iptables-save"), *_rules("ip6tables-save")],
        "settings": [f"{name}={_read(Path('/proc/sys') / name)}" for name in _SETTINGS],
        "interfaces": sorted(path.name for path in Path("/sys/class/net").glob("docker*")),
        "mounts": [
            line for line in _read(Path("/proc/self/mounts")).splitlines() if re.search("docker|containerd", line)
        ],
        "groups": sorted(str(path) for name in _GROUPS for path in Path("/sys/fs/cgroup").glob(f"*/{name}")),
        "files": sorted(str(found) for place in _PLACES for found in _tree(Path(place))),
    }


def _rules(tool: str) -> list[str]:
    """Without comments and counters."""
    done = subprocess.run([tool], capture_output=True, text=True, timeout=30, check=False)
    lines = (re.sub(r"\[\d+:\d+\]", "", line).strip() for line in done.stdout.splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _tree(place: Path) -> list[Path]:
    return [place, *place.rglob("*")] if place.exists() else []
