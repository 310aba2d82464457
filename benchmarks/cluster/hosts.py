"""What hosts and clusters of every kind have: names, programs, forwarders, and an end that leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Generic, TypeVar

from benchmarks.cluster import processes
from benchmarks.cluster.forwarder import Forwarder
from benchmarks.cluster.processes import LIMIT_S, Process

T = TypeVar("T")


class Host(ABC):
    """A host: programs run on it, sockets are made on it."""

    def __init__(self, name: str, address: str) -> None:
        self.name = name
        self.address = address
        self.processes: list[Process] = []
        self._forwarders: list[Forwarder] = []

    # ---- programs

    def run(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        timeout_s: float = LIMIT_S,
        check: bool = True,
    ) -> subprocess.CompletedProcess[str]:
        """Runs a program to its end.  With ``check`` a failure raises, and shows what it printed.

        ``env`` comes on top of this process's environment.
        """
        done = subprocess.run(
            self.wrapped(argv),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            env=self._environment(env),
            cwd=cwd,
            timeout=timeout_s,
            start_new_session=True,
        )
        if check and done.returncode != 0:
            raise AssertionError(f"{argv} on {self.name}: {done.returncode}\n{done.stdout}{done.stderr}")
        return done

    def start(self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: str | None = None) -> Process:
        """Starts a program; it ends with the cluster at the latest, its children too."""
        title = f"{' '.join(argv)[:60]} on {self.name}"
        process = Process(self.wrapped(argv), title, self._environment(env), cwd)
        self.processes.append(process)
        return process

    def python(self, *args: str, env: Mapping[str, str] | None = None) -> Process:
        """Starts this interpreter."""
        return self.start([sys.executable, *args], env=env)

    def freeze(self) -> None:
        """Stops all its processes, as a hypervisor does; when this returns they stand still."""
        frozen: set[int] = set()
        while fresh := set(self.pids()) - frozen:
            processes.freeze(sorted(fresh))
            frozen |= fresh

    def thaw(self) -> None:
        for pid in self.pids():
            processes.send(pid, signal.SIGCONT)

    def kill(self) -> None:
        """Ends all its processes without a warning.  The kernel closes their connections: ``cut()`` first for a power loss."""
        processes.end(self.pids)

    # ---- sockets

    def forward(self, target: tuple[str, int], port: int = 0) -> Forwarder:
        """A forwarder on this host, at ``(self.address, forwarder.port)``, to a target that this host reaches."""
        return self._keep(Forwarder([(self.address, port)], lambda _: target, self._enter))

    def _keep(self, forwarder: Forwarder) -> Forwarder:
        self._forwarders.append(forwarder)
        return forwarder

    @abstractmethod
    def inside(self, work: Callable[[], T]) -> T:
        """Calls ``work`` where the sockets that it makes are this host's; they remain so."""

    @abstractmethod
    def pids(self) -> list[int]:
        """Its processes, however they were started."""

    @abstractmethod
    def wrapped(self, argv: Sequence[str]) -> list[str]: ...

    @abstractmethod
    def _environment(self, more: Mapping[str, str] | None) -> dict[str, str]: ...

    @abstractmethod
    def _enter(self) -> None:
        """Makes the calling thread one of this host, for good."""

    # ---- the end

    def end(self) -> None:
        for forwarder in self._forwarders:
            forwarder.close()
        self.kill()
        for process in self.processes:
            process.reap()


H = TypeVar("H", bound=Host)


class BaseCluster(ABC, Generic[H]):
    """Hosts from entering to leaving the ``with`` block.  If the block fails, the output of all processes is printed."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.hosts: list[H] = []
        self._stack = ExitStack()

    def __enter__(self) -> BaseCluster[H]:
        with ExitStack() as stack:
            self._begin(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is not None:
                for host in self.hosts:
                    print(*(process.report() for process in host.processes), sep="\n", file=sys.stderr)
        finally:
            self._stack.close()

    def __getitem__(self, index: int) -> H:
        return self.hosts[index]

    def __len__(self) -> int:
        return len(self.hosts)

    def __iter__(self) -> Iterator[H]:
        return iter(self.hosts)

    @abstractmethod
    def _begin(self, stack: ExitStack) -> None:
        """Makes the hosts; each thing that must go is pushed before it is made."""


def environment(more: Mapping[str, str] | None, **fixed: str) -> dict[str, str]:
    """This process's environment with some variables set."""
    return {**os.environ, **(more or {}), **fixed}
