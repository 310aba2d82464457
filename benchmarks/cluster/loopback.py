"""Hosts as addresses 127.x.y.2, 127.x.y.3, ...: no root needed, and no links that could be cut.

Each cluster has a network 127.x.y.0/24 that no other cluster on this machine has at the time, so fixed ports don't clash.
"""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TypeVar

from benchmarks.cluster import owners, processes
from benchmarks.cluster.hosts import BaseCluster, Host, environment

T = TypeVar("T")
MOST_HOSTS = 200
MARK = "HVDTEST_HOST"  # in the environment of the processes of a host, which is how they are found
_CLAIM_PORT = 29_999
_TRIES = 100


class LoopbackHost(Host):
    """An address.  Its processes are those that it started and their descendants."""

    def __init__(self, cluster_name: str, network: str, index: int) -> None:
        super().__init__(f"h{index}", f"{network}.{index + 2}")
        self.mark = f"{cluster_name}-{self.name}"

    def inside(self, work: Callable[[], T]) -> T:
        return work()

    def pids(self) -> list[int]:
        return marked(lambda mark: mark == self.mark)

    def wrapped(self, argv: Sequence[str]) -> list[str]:
        return list(argv)

    def _environment(self, more: Mapping[str, str] | None) -> dict[str, str]:
        return environment(more, **{MARK: self.mark})

    def _enter(self) -> None:
        pass


class LoopbackCluster(BaseCluster[LoopbackHost]):
    """``n`` hosts on this machine's loopback interface.  Entering also ends what clusters of dead processes have left."""

    def __init__(self, n: int) -> None:
        if not 1 <= n <= MOST_HOSTS:
            raise ValueError(f"a cluster has 1 to {MOST_HOSTS} hosts, not {n}")
        super().__init__(n)
        self.name = owners.new_cluster_name()

    def __enter__(self) -> LoopbackCluster:
        super().__enter__()
        return self

    def _begin(self, stack: ExitStack) -> None:
        sweep()
        claim = stack.enter_context(_claim())
        network = claim.getsockname()[0].rpartition(".")[0]
        self.hosts = [LoopbackHost(self.name, network, index) for index in range(self.n)]
        for host in self.hosts:
            stack.callback(host.end)


def sweep() -> list[int]:
    """Ends processes whose cluster's owner is dead; returns what was found at first."""
    found = marked(owners.is_stale)
    processes.end(lambda: marked(owners.is_stale))
    return found


def marked(wanted: Callable[[str], bool]) -> list[int]:
    """Processes with such a mark, and their descendants, which may have another environment."""
    pids = set(processes.all_pids())
    found = {pid for pid in pids if wanted(_mark_of(pid))}
    fresh = found
    while fresh:
        fresh = {pid for pid in pids - found if processes.parent_of(pid) in fresh}
        found |= fresh
    return sorted(found - {os.getpid()})


def _mark_of(pid: int) -> str:
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:  # gone, or another user's
        return ""
    start = f"{MARK}=".encode()
    return next((entry[len(start) :].decode() for entry in variables if entry.startswith(start)), "")


def _claim() -> socket.socket:
    """A socket whose address 127.x.y.1 stands for its network; the claim ends with it."""
    for _ in range(_TRIES):
        claim = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            claim.bind((f"127.{random.randint(1, 254)}.{random.randint(0, 255)}.1", _CLAIM_PORT))
            return claim
        except OSError:
            claim.close()
    raise RuntimeError("no free network 127.x.y.0/24 found")
