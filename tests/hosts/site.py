"""A coordinator and an agent on each host of a test cluster, as the programs that users start, and jobs on them.

with LoopbackCluster(2) as cluster:
    site = Site(cluster.hosts, slots=(2, 1))
    run = site.run("tests.multi.programs", "joins")
    assert run.code == 0, run.output
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.cluster.hosts import Host
from benchmarks.cluster.processes import Process
from tests.multi.conftest import Run, _split

READY_S = 40.0
JOB_S = 50.0
_CONNECTED = "Connected with coordinator"


@dataclass(frozen=True, slots=True)
class Options:
    """``agent`` and ``coordinator`` are more arguments; with a ``token`` agents listen on all addresses."""

    agent: tuple[str, ...] = ()
    coordinator: tuple[str, ...] = ()
    listen: str = ""
    token: str = ""

    @property
    def environment(self) -> dict[str, str]:
        """What every program of the site finds in its environment."""
        return {"HVD_TOKEN": self.token} if self.token else {}


class Site:
    """Coordinator and launchers run on the first host; agents are named as their hosts and hold ``slots`` each.

    ``each`` has options for the agents one by one.
    """

    def __init__(
        self,
        hosts: Sequence[Host],
        slots: Sequence[int],
        options: Options | None = None,
        each: Sequence[Options] = (),
    ) -> None:
        self.hosts, self.slots, self.options = hosts, slots, options or Options()
        self._each = each or [self.options] * len(hosts)
        listen = self.options.listen or f"{hosts[0].address}:0"
        self.coordinator = self._start(hosts[0], "horovod.coordinator", "--listen", listen, *self.options.coordinator)
        self.address = self.coordinator.wait_for(r"listening on (\S+)$", READY_S)[1]
        self.agents = [self.start_agent(index) for index in range(len(hosts))]  # in order: ranks follow it

    def _start(self, host: Host, module: str, *arguments: str, **variables: str) -> Process:
        return host.start([sys.executable, "-m", module, *arguments], env={**self.options.environment, **variables})

    def start_agent(self, index: int) -> Process:
        """Starts a host's agent, and waits until the coordinator knows it."""
        host = self.hosts[index]
        own = () if self.options.token else ("--data-listen", host.address)
        where = ("--coordinator", self.address, "--name", host.name, "--slots", str(self.slots[index]))
        agent = self._start(host, "horovod.agent", *where, *own, *self._each[index].agent)
        agent.wait_for(_CONNECTED, READY_S)
        return agent

    def restart_agent(self, index: int) -> None:
        """Starts a host's agent anew; it has the old one's name."""
        self.agents[index] = self.start_agent(index)

    @property
    def np(self) -> int:
        """Ranks of a job that takes all slots."""
        return sum(self.slots)

    def launch(self, module: str, *arguments: str, variables: Mapping[str, str] | None = None, np: int = 0) -> Process:
        """Starts a job in which each rank runs a module, on all slots or ``np`` of them."""
        command = ("-np", str(np or self.np), sys.executable, "-m", module, *arguments)
        return self._start(
            self.hosts[0], "horovod.runner", "--coordinator", self.address, *command, **(variables or {})
        )

    def run(
        self, module: str, *arguments: str, timeout_s: float = JOB_S, np: int = 0, ok: bool = True, **variables: str
    ) -> Run:
        """A job from start to end; with ``ok`` it must succeed, and every rank's last word be ``done``."""
        return result(self.launch(module, *arguments, variables=variables, np=np), timeout_s, np or self.np, ok)

    def check_ready(self) -> None:
        """Proves that the agents serve: runs a job over all of them."""
        self.run("tests.hosts.programs", "sum_once")

    def story(self) -> str:
        """What coordinator and agents have said."""
        return "\n".join(process.report() for process in (self.coordinator, *self.agents))


def result(launcher: Process, timeout_s: float, np: int, ok: bool = True) -> Run:
    """What has come of a job; checked with ``ok``."""
    code = launcher.wait(timeout_s)
    run = Run(code, launcher.output, _split(launcher.output))
    if ok:
        assert run.code == 0, run.output
        assert all(run.ranks.get(rank, [""])[-1] == "done" for rank in range(np)), run.output
    return run
