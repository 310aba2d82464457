"""A coordinator and an agent on each host of a cluster, as users start them, for jobs that are measured."""

from __future__ import annotations

import re
import socket
import sys
import urllib.request
from collections.abc import Sequence

from benchmarks.cluster.hosts import Host
from benchmarks.cluster.processes import Process
from benchmarks.peers import Peer

_READY_S = 60.0
_SAMPLE = re.compile(r"^(\w+)(?:\{([^}]*)\})? (\S+)$", re.MULTILINE)


class Site:
    """Coordinator and launcher run on the first host; each host's agent holds ``slots`` ranks."""

    def __init__(self, hosts: Sequence[Host], slots: int, token: str = "") -> None:
        self.hosts, self._variables = hosts, {"HVD_TOKEN": token} if token else {}
        self._size = slots * len(hosts)
        first = hosts[0]
        self.coordinator_port = free_port(first)
        watch = ("--metrics-port", str(self.coordinator_port))
        coordinator = self._start(first, "horovod.coordinator", "--listen", f"{first.address}:0", *watch)
        self.address = coordinator.wait_for(r"listening on (\S+)$", _READY_S)[1]
        self.agent_ports = [self._start_agent(host, slots) for host in hosts]

    def _start(self, host: Host, module: str, *arguments: str) -> Process:
        return host.start([sys.executable, "-m", module, *arguments], env=self._variables)

    def _start_agent(self, host: Host, slots: int) -> int:
        port = free_port(host)
        where = ("--coordinator", self.address, "--name", host.name, "--data-listen", host.address)
        agent = self._start(
            host, "horovod.agent", *where, "--slots", str(slots), "--metrics-port", str(port)
        )  # in order: ranks follow it
        agent.wait_for("Connected with coordinator", _READY_S)
        return port

    def peer(self) -> Peer:
        """Ranks of ours on all slots."""

        def launch(size: int) -> list[str]:
            return [sys.executable, "-m", "horovod.runner", "--coordinator", self.address, "-np", str(size)]

        return Peer("hvd", launch=launch, hosts=self.hosts[:1], variables=dict(self._variables))

    def of_agents(self, metric: str, labels: str = "") -> list[float]:
        """One metric of each agent."""
        ports = zip(self.hosts, self.agent_ports, strict=True)
        return [read_metric(host, "127.0.0.1", port, metric, labels) for host, port in ports]

    def of_coordinator(self, metric: str) -> float:
        """One metric of the coordinator."""
        first = self.hosts[0]
        return read_metric(first, first.address, self.coordinator_port, metric)


def free_port(host: Host) -> int:
    """A port that nobody has at the moment."""

    def ask() -> int:
        with socket.create_server((host.address, 0)) as listener:
            return int(listener.getsockname()[1])

    return host.inside(ask)


def read_metric(host: Host, address: str, port: int, metric: str, labels: str = "") -> float:
    """The sum of a metric's samples that have these labels in their text."""

    def ask() -> str:
        with urllib.request.urlopen(f"http://{address}:{port}/metrics", timeout=_READY_S) as answer:
            return str(answer.read().decode())

    found = [value for name, text, value in _SAMPLE.findall(host.inside(ask)) if name == metric and labels in text]
    assert found, f"{metric} is not exported at {address}:{port}"
    return sum(float(value) for value in found)
