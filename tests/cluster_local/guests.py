"""A cluster whose ranks the test starts itself, with HOROVOD_AGENT and nothing else."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.cluster_local.processes import WAIT_S, Cluster, Lines
from tests.runner.launcher import MARK

__all__ = ["Guest", "Site", "site", "together"]

_OF_RANKS = ("HOROVOD_", "HVD_SLOT", "HVD_TOKEN")


class Guest:
    """A process that was started by hand; ``tell`` has it do something, ``hear`` waits for what came of it."""

    def __init__(self, address: str, mark: str, prefix: Sequence[str] = (), **variables: str) -> None:
        outer = {name: value for name, value in os.environ.items() if not name.startswith(_OF_RANKS)}
        self.process = subprocess.Popen(
            [*prefix, sys.executable, "-m", "tests.cluster_local.guest"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**outer, MARK: mark, "HOROVOD_AGENT": address, **variables},
        )
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self.out, self.err = Lines(self.process.stdout), Lines(self.process.stderr)
        self._answers = 1
        self.said_pid = int(self.out.wait_for("^pid ").split()[1])

    def tell(self, line: str) -> None:
        """It does this as soon as it has done everything before."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        self._answers += 1

    def hear(self) -> str:
        """What came of the last one."""
        return self.out.wait_for(".", self._answers).strip()

    def ask(self, line: str) -> str:
        """Both."""
        self.tell(line)
        return self.hear()

    def end(self) -> int:
        """The end of its input, then its exit code."""
        assert self.process.stdin is not None
        if not self.process.stdin.closed:
            self.process.stdin.close()
        code = self.process.wait(WAIT_S)
        self.out.close()
        self.err.close()
        return code


@dataclass
class Site:
    """A cluster with sockets in a folder of its own."""

    cluster: Cluster
    folder: str
    guests: list[Guest] = field(default_factory=list)

    def serve(self, *arguments: str) -> None:
        """Starts the coordinator."""
        self.cluster.serve(*arguments)

    def agent(self, name: str, *arguments: str, slots: int = 2, socket: str = "") -> str:
        """Starts an agent; what its processes find in HOROVOD_AGENT."""
        where = socket or f"{self.folder}/{name}/agent.sock"
        agent = self.cluster.agent(name, "--socket", where, *arguments, slots=slots)
        said = re.search(r"HOROVOD_AGENT=(\S+)", agent.out.wait_for("HOROVOD_AGENT="))
        assert said is not None
        return said[1]

    def start(self, address: str, prefix: Sequence[str] = (), **variables: str) -> Guest:
        """Starts a process by hand."""
        guest = Guest(address, self.cluster.mark, prefix, **variables)
        self.guests.append(guest)
        return guest

    def close(self) -> None:
        """Ends those that still run; what their ends are worth was looked at before."""
        for guest in self.guests:
            guest.process.kill()
            guest.end()


@contextmanager
def site(cluster: Cluster) -> Iterator[Site]:
    """A site as long as the block lasts."""
    folder = tempfile.mkdtemp(prefix="hvd-", dir="/tmp")  # short: a socket's path has 107 bytes
    os.chmod(folder, 0o755)
    made = Site(cluster, folder)
    try:
        yield made
    finally:
        made.close()
        shutil.rmtree(folder)


def together(guests: Sequence[Guest], line: str) -> list[str]:
    """All are told, then all are heard."""
    for guest in guests:
        guest.tell(line)
    return [guest.hear() for guest in guests]
