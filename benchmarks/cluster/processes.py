"""Processes on hosts of a test cluster: output kept in a file without a name, waits with a limit, an end that is certain.

A process is more than its first one: agents start ranks.  ``end`` therefore works on whatever ``find`` reports, again and
again until it reports nothing.
"""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

LIMIT_S = 30.0  # how long a wait may take if the test says nothing else
_END_S = 10.0
_STEP_S = 0.01


class Process:
    """A process on a host.  It ends with its cluster at the latest."""

    def __init__(self, argv: Sequence[str], title: str, env: Mapping[str, str], cwd: str | None) -> None:
        self.title = title
        self._file = tempfile.TemporaryFile()  # noqa: SIM115  closed by reap()
        try:
            self._popen = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=self._file,
                stderr=subprocess.STDOUT,
                env=dict(env),
                cwd=cwd,
                start_new_session=True,
            )
        except BaseException:
            self._file.close()
            raise
        self._final: str | None = None

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def is_running(self) -> bool:
        return self._popen.poll() is None

    @property
    def output(self) -> str:
        """What it and its children have written so far to stdout and stderr, in the order of writing."""
        if self._final is not None:
            return self._final
        size = os.fstat(self._file.fileno()).st_size
        return os.pread(self._file.fileno(), size, 0).decode(errors="replace")

    def wait(self, timeout_s: float = LIMIT_S) -> int:
        """Its exit code; minus the signal's number if one ended it."""
        try:
            return self._popen.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.title} still runs after {timeout_s} s\n{self.report()}") from None

    def wait_for(self, pattern: str, timeout_s: float = LIMIT_S) -> re.Match[str]:
        """The first match in the lines written so far and from now on.  A line counts when it is complete."""
        deadline = time.monotonic() + timeout_s
        while True:
            ended = not self.is_running
            text = self.output if ended else self.output.rpartition("\n")[0] + "\n"
            if found := re.search(pattern, text, re.MULTILINE):
                return found
            if ended or time.monotonic() > deadline:
                why = f"ended with {self.wait()}" if ended else f"wrote for {timeout_s} s"
                raise AssertionError(f"{self.title} {why} without {pattern!r}\n{self.report()}")
            time.sleep(_STEP_S)

    def freeze(self) -> None:
        """Stops it, and it only, as SIGSTOP does; it stands still when this returns."""
        freeze([self.pid])

    def thaw(self) -> None:
        self.signal(signal.SIGCONT)

    def kill(self) -> None:
        """Ends it without a warning, and it only; it is gone when this returns."""
        self.signal(signal.SIGKILL)
        self.wait()

    def signal(self, number: signal.Signals) -> None:
        self._popen.send_signal(number)

    def report(self) -> str:
        """What a person needs to see of it when a test has failed."""
        return f"---- output of {self.title}\n{self.output}----"

    def reap(self) -> None:
        """Releases what this process holds for it; its output stays.  It must have been ended."""
        self.wait(_END_S)
        self._final = self.output
        self._file.close()


def freeze(pids: Sequence[int]) -> None:
    """Stops these processes; returns when each of their threads stands still or is gone."""
    for pid in pids:
        send(pid, signal.SIGSTOP)
    deadline = time.monotonic() + _END_S
    while moving := [pid for pid in pids if not _stands_still(pid)]:
        if time.monotonic() > deadline:
            raise AssertionError(f"processes {moving} do not stop")
        time.sleep(_STEP_S)


def end(find: Callable[[], Sequence[int]]) -> None:
    """Kills what ``find`` reports until it reports nothing: what is killed may have started more meanwhile."""
    deadline = time.monotonic() + _END_S
    while pids := find():
        for pid in pids:
            _kill_and_wait(pid)
        if time.monotonic() > deadline:
            raise AssertionError(f"processes {pids} do not end")


def send(pid: int, number: signal.Signals) -> None:
    """A signal to a process that may be gone."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def all_pids() -> list[int]:
    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]


def parent_of(pid: int) -> int | None:
    """None if the process is gone."""
    fields = _stat_fields(Path(f"/proc/{pid}"))
    return int(fields[1]) if fields else None


def _kill_and_wait(pid: int) -> None:
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        select.select([descriptor], [], [], _END_S)
    except ProcessLookupError:
        pass
    finally:
        os.close(descriptor)


def _stands_still(pid: int) -> bool:
    fields = [_stat_fields(task) for task in Path(f"/proc/{pid}/task").glob("*")]
    return all(not field or field[0] in "TtZX" for field in fields)


def _stat_fields(folder: Path) -> list[str]:
    """State, parent and so on of a process or thread; nothing if it is gone."""
    try:
        return (folder / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
