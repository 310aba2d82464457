"""A cluster on this machine: coordinator, agents and launchers as the processes that users start."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import IO

from tests.runner.launcher import MARK, marked, until

WAIT_S = 40.0
_LISTENING = re.compile(r"listening on (\S+)")


class Lines:
    """What a process writes, line by line, as it comes."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self._lines: list[str] = []
        self._changed = threading.Condition()
        self._over = False
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        for line in self._stream:
            with self._changed:
                self._lines.append(line)
                self._changed.notify_all()
        with self._changed:
            self._over = True
            self._changed.notify_all()

    @property
    def text(self) -> str:
        """All of it so far."""
        with self._changed:
            return "".join(self._lines)

    def wait_for(self, pattern: str, count: int = 1) -> str:
        """The line with the n-th match; fails when it does not come."""

        def found() -> list[str]:
            return [line for line in self._lines if re.search(pattern, line)]

        with self._changed:
            self._changed.wait_for(lambda: len(found()) >= count or self._over, WAIT_S)
            lines = found()
        assert len(lines) >= count, f"{pattern!r} is not in:\n{self.text}"
        return lines[count - 1]

    def close(self) -> None:
        """Reads to the end."""
        self._thread.join(WAIT_S)
        self._stream.close()


class Process:
    """A process with its output."""

    def __init__(self, module: str, *arguments: str, variables: Mapping[str, str], cwd: str | None = None) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("HVD_TOKEN")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env={**environment, **variables},
            cwd=cwd,
            start_new_session=True,
        )
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self.out, self.err = Lines(self.process.stdout), Lines(self.process.stderr)

    @property
    def pid(self) -> int:
        """Its number."""
        return self.process.pid

    def send(self, number: int) -> None:
        """A signal."""
        self.process.send_signal(number)

    def wait(self) -> int:
        """Its exit code."""
        code = self.process.wait(WAIT_S)
        self.out.close()
        self.err.close()
        return code

    def end(self, number: int = signal.SIGTERM) -> int:
        """A signal, then the exit code."""
        if self.process.poll() is None:
            self.send(signal.SIGCONT)
            self.send(number)
        return self.wait()


@dataclass
class Cluster:
    """``mark`` is in the environment of all its processes, so that none is missed at the end."""

    mark: str
    variables: dict[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()  # of agents and launchers: token, certificates
    address: str = ""
    coordinator: Process | None = None
    agents: dict[str, Process] = field(default_factory=dict)
    launchers: list[Process] = field(default_factory=list)

    def _start(self, module: str, *arguments: str, variables: Mapping[str, str] | None = None) -> Process:
        return Process(module, *arguments, variables={**self.variables, MARK: self.mark, **(variables or {})})

    def serve(
        self, *arguments: str, listen: str = "127.0.0.1:0", variables: Mapping[str, str] | None = None
    ) -> Process:
        """Starts the coordinator."""
        self.coordinator = self._start("horovod.coordinator", "--listen", listen, *arguments, variables=variables)
        match = _LISTENING.search(self.coordinator.out.wait_for("listening on"))
        assert match is not None
        self.address = match[1]
        return self.coordinator

    def agent(
        self,
        name: str,
        *arguments: str,
        slots: int = 2,
        address: str = "",
        variables: Mapping[str, str] | None = None,
        wait: bool = True,
    ) -> Process:
        """Starts an agent, and waits until the coordinator knows it."""
        where = ("--coordinator", address or self.address, "--name", name, "--slots", str(slots))
        agent = self._start("horovod.agent", *where, *self.arguments, *arguments, variables=variables)
        self.agents[name] = agent
        if wait:
            agent.err.wait_for("Connected with coordinator")
        return agent

    def launch(self, *arguments: str, address: str = "", variables: Mapping[str, str] | None = None) -> Process:
        """Starts a launcher."""
        where = ("--coordinator", address or self.address)
        launcher = self._start("horovod.runner", *where, *self.arguments, *arguments, variables=variables)
        self.launchers.append(launcher)
        return launcher

    def run(self, *arguments: str, variables: Mapping[str, str] | None = None) -> tuple[int, str, str]:
        """Runs a job: exit code, output, errors."""
        launcher = self.launch(*arguments, variables=variables)
        code = launcher.wait()
        return code, launcher.out.text, launcher.err.text

    def close(self) -> None:
        """Ends everything; fails if something does not end well, or something is left."""
        codes = {name: agent.end() for name, agent in self.agents.items()}
        codes |= {f"launcher {index}": launcher.end(signal.SIGKILL) for index, launcher in enumerate(self.launchers)}
        if self.coordinator is not None:
            codes["coordinator"] = self.coordinator.end()
        assert until(lambda: not marked(self.mark)), f"left behind: {marked(self.mark)}"
        unclean = {name: code for name, code in codes.items() if code not in (0, -signal.SIGKILL)}
        assert {name for name in unclean if not name.startswith("launcher")} == set(), self.story()

    def story(self) -> str:
        """Everybody's log."""
        parts = [("coordinator", self.coordinator), *self.agents.items()]
        return "\n".join(f"---- {name}\n{process.err.text}" for name, process in parts if process is not None)


class Forwarder:
    """A network between others that can be cut: passes TCP connections on to an address."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._open = True
        self.passed = 0
        self._run(self._accept)

    def _run(self, function: object, *arguments: object) -> None:
        thread = threading.Thread(target=function, args=arguments, daemon=True)  # type: ignore[arg-type]
        thread.start()
        self._threads.append(thread)

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                far = socket.create_connection(self._target) if self._open else None
                if far is None:
                    near.close()
                    continue
                self._pairs.append((near, far))
            self._run(self._pass, near, far)
            self._run(self._pass, far, near)

    def _pass(self, source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(1 << 16):
                target.sendall(data)
                self.passed += len(data)
        except OSError:
            pass
        for end in (source, target):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue

    def cut(self, reopen: bool = True) -> None:
        """Ends all connections; without ``reopen`` new ones are ended at once too."""
        with self._lock:
            self._open = reopen
            pairs = list(self._pairs)
        for pair in pairs:
            for end in pair:
                try:
                    end.shutdown(socket.SHUT_RDWR)
                except OSError:
                    continue

    def open(self) -> None:
        """New connections work again."""
        self._open = True

    def __enter__(self) -> Forwarder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut(reopen=False)
        for thread in self._threads:
            thread.join(WAIT_S)
        for pair in self._pairs:
            for end in pair:
                end.close()
