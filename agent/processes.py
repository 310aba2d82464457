"""Starts rank processes, each under its own warden, and says what becomes of them.

The warden (native/src/warden.cc) ends everything that a rank left behind, and ends the rank when the agent is gone: the
control pipe's other end lives here and is inherited by nobody.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from horovod import native

__all__ = ["Ending", "RankProcess", "StartSpec", "WardenLines"]

log = logging.getLogger("horovod.agent")


@dataclass(frozen=True, slots=True)
class StartSpec:
    """What to run, and with which descriptors: ``stdout`` and ``stderr`` are write ends that the caller closes."""

    command: Sequence[str]
    environment: Mapping[str, str]
    directory: str
    grace_s: float
    stdout: int
    stderr: int
    inherit: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Ending:
    """How a rank's process ended: ``code`` is 128 + ``signal`` for a signal."""

    code: int
    signal: int = 0
    start_error: str = ""


class WardenLines:
    """Reads the warden's status lines; pure."""

    def __init__(self, program: str) -> None:
        self._program, self._rest = program, b""
        self.pid = 0
        self.ending: Ending | None = None
        self._start_error = ""

    def feed(self, data: bytes) -> None:
        """More of the stream, cut anywhere."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            word, _, number = line.decode(errors="replace").partition(" ")
            self._take(word, int(number) if number.isdigit() else 0)

    def _take(self, word: str, number: int) -> None:
        if word == "started":
            self.pid = number
        elif word == "exec-failed":
            self._start_error = f"{self._program} can't be started: {os.strerror(number)}"
            if self.pid == 0:
                self.ending = Ending(126, 0, self._start_error)
        elif word == "exit":
            self.ending = Ending(number, 0, self._start_error)
        elif word == "signal":
            self.ending = Ending(128 + number, number)


class RankProcess:
    """One rank's process.  ``on_started(pid)``, ``on_ended(ending)``, then ``on_gone()`` when no descendant is left."""

    def __init__(
        self, on_started: Callable[[int], None], on_ended: Callable[[Ending], None], on_gone: Callable[[], None]
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_started, self._on_ended, self._on_gone = on_started, on_ended, on_gone
        self._warden: subprocess.Popen[bytes] | None = None
        self._control = self._status = -1
        self._pidfd = -1
        self._lines = WardenLines("")
        self.gone = False

    @property
    def pid(self) -> int:
        """The rank's process, 0 before it is known."""
        return self._lines.pid

    def start(self, spec: StartSpec) -> None:
        """Starts it; a start that fails is told by ``on_ended`` with a reason."""
        self._lines = WardenLines(spec.command[0])
        control_read, control_write = os.pipe()
        status_read, status_write = os.pipe()
        try:
            self._warden = self._popen(spec, control_read, status_write)
        except (OSError, ValueError) as error:
            os.close(control_write)
            os.close(status_read)
            self._loop.call_soon(self._fail, _reason(spec, error))
            return
        finally:
            os.close(control_read)
            os.close(status_write)
        self._control, self._status = control_write, status_read
        os.set_blocking(status_read, False)
        self._loop.add_reader(status_read, self._read_status)

    def _popen(self, spec: StartSpec, control: int, status: int) -> subprocess.Popen[bytes]:
        grace_ms = max(0, round(spec.grace_s * 1000))
        head = [str(native.warden_path()), "--control", str(control), "--status", str(status)]
        return subprocess.Popen(
            [*head, "--grace-ms", str(grace_ms), "--", *spec.command],
            stdin=subprocess.DEVNULL,
            stdout=spec.stdout,
            stderr=spec.stderr,
            env=dict(spec.environment),
            cwd=spec.directory or None,
            pass_fds=(control, status, *spec.inherit),
        )

    def terminate(self) -> None:
        """SIGTERM to the whole tree, SIGKILL after the grace."""
        self._tell(b"T")

    def kill(self) -> None:
        """SIGKILL to the whole tree."""
        self._tell(b"K")

    def _tell(self, byte: bytes) -> None:
        if self._control >= 0:
            with contextlib.suppress(OSError):
                os.write(self._control, byte)

    def _fail(self, reason: str) -> None:
        self._on_ended(Ending(126, 0, reason))
        self._finish()

    def _read_status(self) -> None:
        try:
            data = os.read(self._status, 4096)
        except BlockingIOError:
            return
        pid, ending = self._lines.pid, self._lines.ending
        self._lines.feed(data)
        if self._lines.pid != pid:
            self._open_pidfd()
            self._on_started(self._lines.pid)
        if ending is None and self._lines.ending is not None:
            self._on_ended(self._lines.ending)
        if not data:
            self._warden_over()

    def _open_pidfd(self) -> None:
        with contextlib.suppress(OSError):  # it may be over already, then the warden says so
            self._pidfd = os.pidfd_open(self._lines.pid)

    def _warden_over(self) -> None:
        """The end of the status pipe.  A warden that ended without a word was killed: so is its rank.

        What killed the warden counts: the rank's SIGKILL is our own.
        """
        if self._lines.ending is None:
            if self._pidfd >= 0:
                with contextlib.suppress(OSError):
                    signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
            number = max(-self._warden.wait(), 0) if self._warden is not None else 0
            if number:
                log.warning("hvd-warden of process %d was killed by signal %d, and its rank with it.", self.pid, number)
            number = number or signal.SIGKILL
            self._on_ended(Ending(128 + number, number))
        self._finish()

    def _finish(self) -> None:
        if self._status >= 0:
            self._loop.remove_reader(self._status)
        for descriptor in (self._status, self._control, self._pidfd):
            if descriptor >= 0:
                os.close(descriptor)
        self._status = self._control = self._pidfd = -1
        if self._warden is not None:
            self._warden.wait()  # its status pipe is closed: it is exiting
        self.gone = True
        self._on_gone()


def _reason(spec: StartSpec, error: Exception) -> str:
    if spec.directory and not os.path.isdir(spec.directory):
        return f"its working directory {spec.directory} does not exist there; start the launcher in one that all hosts have"
    text = str(error)
    if isinstance(error, OSError):
        text = f"{error.strerror or error}" + (f" ({error.filename})" if error.filename else "")
    return f"{spec.command[0]} can't be started: {text}"
