"""Starts the launcher as users do, and looks for what it leaves behind."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import psutil

LAUNCHER = (sys.executable, "-m", "horovod.runner")
MARK = "HVD_TEST_MARK"


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a test's launcher."""
    return {**os.environ, **(extra or {})}


def launch(
    *arguments: str, extra: Mapping[str, str] | None = None, cwd: Path | None = None, timeout: float = 50
) -> subprocess.CompletedProcess[str]:
    """Runs the launcher to its end."""
    return subprocess.run(
        [*LAUNCHER, *arguments],
        capture_output=True,
        text=True,
        errors="replace",
        env=environment(extra),
        cwd=cwd,
        timeout=timeout,
        stdin=subprocess.DEVNULL,
        check=False,
    )


def start(*arguments: str, extra: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    """Starts the launcher in a group of its own, as a shell does."""
    return subprocess.Popen(
        [*LAUNCHER, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(extra),
        start_new_session=True,
    )


def until(condition: Callable[[], bool], timeout_s: float = 20) -> bool:
    """Polls until the condition holds; False when it never does."""
    end = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def marked(mark: str) -> list[int]:
    """Processes whose environment carries the mark: the launcher and all that came from it."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
        except (psutil.Error, OSError):
            continue
    return found


def abstract_sockets() -> set[str]:
    """Names of the agents' sockets on this machine."""
    lines = Path("/proc/net/unix").read_text().splitlines()
    return {line.split()[-1] for line in lines if "@hvd-" in line}
