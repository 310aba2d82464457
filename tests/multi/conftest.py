"""Runs programs of ``tests.multi`` on real ranks, under the real launcher, agent and coordinator."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass

import pytest

_LINE = re.compile(r"^\[(\d+)\]<(stdout|stderr)>:(.*)$")


@dataclass(frozen=True, slots=True)
class Run:
    """What came of a job: exit code, the launcher's own words, and what each rank printed."""

    code: int
    output: str
    ranks: dict[int, list[str]]

    def said(self, rank: int) -> str:
        """A rank's output as one text."""
        return "\n".join(self.ranks.get(rank, []))


RunRanks = Callable[..., Run]


def _split(output: str) -> dict[int, list[str]]:
    ranks: dict[int, list[str]] = {}
    for line in output.splitlines():
        match = _LINE.match(line)
        if match:
            ranks.setdefault(int(match[1]), []).append(match[3])
    return ranks


def _run(np: int, program: str, *arguments: str, timeout_s: float = 50, ok: bool = True, **variables: str) -> Run:
    """Runs ``tests.multi.programs.<program>(*arguments)`` on each rank."""
    module, _, name = program.rpartition(".")
    command = [sys.executable, "-m", "horovod.runner", "-np", str(np), sys.executable, "-m"]
    command += [module or "tests.multi.programs", name, *arguments]
    done = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        errors="replace",
        timeout=timeout_s,
        env={**os.environ, **variables},
        check=False,
    )
    run = Run(done.returncode, done.stdout, _split(done.stdout))
    if ok:
        assert run.code == 0, run.output
        assert all(run.ranks.get(rank, [""])[-1] == "done" for rank in range(np)), run.output
    return run


@pytest.fixture
def run_ranks() -> RunRanks:
    """``run_ranks(np, "name", …)``; with ``ok=False`` the job may fail.  Keywords in capitals are variables."""
    return _run
