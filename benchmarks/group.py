"""A peer's ranks: started by the peer's launcher, told what to do over a unix socket each, ended whatever happens."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from benchmarks.cases import Unsupported
from benchmarks.peers import Peer

START_LIMIT_S = 180.0
ANSWER_LIMIT_S = 150.0
STOP_LIMIT_S = 20.0


class PeerFailed(Exception):
    """A peer could not be started, or a rank of it failed; the text ends with its last words."""


class Group:
    """The ranks of one peer.  ``pause`` stops ranks that would otherwise work in the background."""

    def __init__(self, peer: Peer, size: int, threads: int) -> None:
        self.peer, self.size = peer, size
        self.versions: dict[str, str] = {}
        self.pids: list[int] = []
        self._streams: list[IO[str]] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        # Listeners, sockets and output live in a folder of our own that goes with us.
        self._folder = tempfile.TemporaryDirectory(prefix="hvd-bench-")
        try:
            self._start(threads)
        except BaseException:
            self.close()
            raise

    @property
    def launcher_pids(self) -> list[int]:
        """Processes that were started directly: launchers, or the ranks where there is no launcher."""
        return [process.pid for process in self._processes]

    def _start(self, threads: int) -> None:
        folder = Path(self._folder.name)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(str(folder / "control"))
            listener.listen(self.size)
            listener.settimeout(0.2)
            for command in self.peer.commands(self.size, threads, folder):
                self._processes.append(self._spawn(command, folder))
            self._accept_all(listener)

    def _spawn(self, command: Sequence[str], folder: Path) -> subprocess.Popen[bytes]:
        with open(folder / "output", "ab") as output:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self.peer.environment(),
                start_new_session=True,
            )

    def _accept_all(self, listener: socket.socket) -> None:
        deadline = time.monotonic() + START_LIMIT_S
        hellos: dict[int, tuple[dict[str, Any], IO[str]]] = {}
        while len(hellos) < self.size:
            if time.monotonic() > deadline or any(process.poll() is not None for process in self._processes):
                raise PeerFailed(f"{self.peer.name} did not start: {self._last_words()}")
            with suppress(TimeoutError):
                connection, _ = listener.accept()
                connection.settimeout(ANSWER_LIMIT_S)
                stream = connection.makefile("rw", encoding="utf-8")
                connection.close()  # the stream keeps it open
                hello = json.loads(stream.readline())
                hellos[hello["rank"]] = (hello, stream)
        for rank in range(self.size):
            hello, answers = hellos[rank]
            self.pids.append(hello["pid"])
            self._streams.append(answers)
            self.versions = hello["versions"]

    def _last_words(self) -> str:
        with suppress(OSError):
            lines = (Path(self._folder.name) / "output").read_text(errors="replace").strip().splitlines()
            return " | ".join(lines[-4:])
        return ""

    def order(self, do: str, **more: Any) -> list[dict[str, Any]]:
        """Gives all ranks an order and returns their answers; raises Unsupported or PeerFailed."""
        answers = []
        try:
            for stream in self._streams:
                stream.write(json.dumps({"do": do, **more}) + "\n")
                stream.flush()
            for stream in self._streams:
                line = stream.readline()
                if not line:
                    raise OSError("a rank has ended")
                answers.append(json.loads(line))
        except (OSError, ValueError) as error:
            raise PeerFailed(f"{self.peer.name}, at {do}: {error}: {self._last_words()}") from error
        for answer in answers:
            if "unsupported" in answer:
                raise Unsupported(answer["unsupported"])
            if "error" in answer:
                raise PeerFailed(f"{self.peer.name}, at {do}: {answer['error']}")
        return answers

    def pause(self) -> None:
        """Stops the ranks where the peer asks for it."""
        self._signal_ranks(signal.SIGSTOP)

    def resume(self) -> None:
        """Ends a pause."""
        self._signal_ranks(signal.SIGCONT)

    def _signal_ranks(self, number: signal.Signals) -> None:
        if self.peer.works_when_idle:
            for pid in self.pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, number)

    def close(self) -> None:
        """Ends all processes of the group."""
        self.resume()
        for stream in self._streams:
            with suppress(OSError, ValueError):
                stream.write('{"do": "quit"}\n')
                stream.close()
        self._streams = []
        for number, limit_s in ((signal.SIGTERM, STOP_LIMIT_S), (signal.SIGKILL, STOP_LIMIT_S)):
            # The first wait is for those who were told to quit.
            self._wait_all(limit_s if self.pids else 0.0)
            for process in self._processes:
                if process.poll() is None:
                    with suppress(ProcessLookupError):
                        os.killpg(process.pid, number)
        self._wait_all(STOP_LIMIT_S)
        self._folder.cleanup()

    def _wait_all(self, limit_s: float) -> None:
        deadline = time.monotonic() + limit_s
        for process in self._processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
