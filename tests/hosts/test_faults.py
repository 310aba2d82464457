"""What breaks in the middle of a job is named on every host, soon, and the agents serve the next job."""

from __future__ import annotations

import os
import random
import re
import socket
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.cluster.harness import Cluster, Process
from tests.hosts.conftest import MakeSite
from tests.hosts.site import Options, Site, result
from tests.runner.launcher import until

pytestmark = pytest.mark.timeout(120)
HOST = re.escape(socket.gethostname())
PATIENT = 1.5  # seconds that a test allows itself on top of what is promised, on a machine that does other things too


def streaming(site: Site, *arguments: str) -> Process:
    """A job whose ranks are in the middle of large sums."""
    launcher = site.launch("tests.hosts.programs", "stream", *arguments)
    for rank in range(site.np):
        launcher.wait_for(rf"^\[{rank}\]<stdout>:streaming")
    return launcher


def told(launcher: Process, rank: int, pattern: str, within_s: float, since: float) -> None:
    """The rank has said so, in time."""
    launcher.wait_for(rf"^\[{rank}\]<stdout>:.*{pattern}")
    late = time.monotonic() - since - within_s
    assert late < PATIENT, f"{late:.1f} s too late\n{launcher.output}"


@pytest.mark.parametrize("megabytes", ["0.01", "16"])
def test_a_rank_that_is_killed_is_named_on_all_hosts(fresh: MakeSite, megabytes: str) -> None:
    site = fresh((2, 1))
    launcher = streaming(site, megabytes, "2")
    since = time.monotonic()
    for rank in (0, 1):
        told(
            launcher,
            rank,
            rf"RankLostError: allreduce\.g: Rank 2 \(host {HOST}, pid \d+\) was killed by signal 9",
            5,
            since,
        )
    assert result(launcher, 30, 3, ok=False).code == 137
    site.check_ready()


def test_an_agent_that_is_killed_is_named_on_other_hosts_at_once(fresh: MakeSite) -> None:
    site = fresh((2, 1), Options(coordinator=("--peer-timeout", "3"), agent=("--peer-timeout", "3")))
    launcher = streaming(site, "64")
    ranks = children(site.agents[1])
    since = time.monotonic()
    site.agents[1].kill()
    for rank in (0, 1):
        told(
            launcher,
            rank,
            rf"RankLostError: allreduce\.g: Host {HOST} \(agent h1\) can't be reached any more: ",
            2,
            since,
        )
    run = result(launcher, 30, 3, ok=False)
    assert run.code == 1
    assert re.search(
        rf"First failure: Host {HOST} \(agent h1\) can't be reached any more from host {HOST}", run.output
    ), run.output
    assert until(lambda: not any(map(is_alive, ranks)))
    site.restart_agent(1)
    site.check_ready()


def children(process: Process) -> list[int]:
    """Of all its threads."""
    files = Path(f"/proc/{process.pid}/task").glob("*/children")
    return [int(pid) for file in files for pid in file.read_text().split()]


def is_alive(pid: int) -> bool:
    """A process that has not ended, whether somebody has taken note of its end or not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def networked(cluster: Cluster, slots: tuple[int, ...], *agent: str) -> Site:
    """A site with hosts of their own, that have little patience."""
    options = Options(coordinator=("--peer-timeout", "3"), agent=("--peer-timeout", "3", *agent), token="t" * 32)
    return Site(cluster.hosts, slots, options)


@pytest.mark.cluster
def test_a_link_that_is_cut_silently_is_noticed_in_time(network: Callable[[int], Cluster]) -> None:
    cluster = network(3)
    site = networked(cluster, (1, 1, 1))
    launcher = streaming(site, "32")
    since = time.monotonic()
    cluster.cut_between(cluster[1], cluster[2])
    for rank in range(3):
        told(launcher, rank, r"RankLostError: .*Host h[12] \(agent h[12]\) can't be reached", 5, since)
    assert result(launcher, 30, 3, ok=False).code != 0
    cluster.heal()
    site.check_ready()


@pytest.mark.slow
@pytest.mark.cluster
def test_a_host_without_power_is_noticed_in_time(network: Callable[[int], Cluster]) -> None:
    cluster = network(2)
    site = networked(cluster, (1, 1))
    launcher = streaming(site, "32")
    since = time.monotonic()
    cluster[1].cut()
    told(launcher, 0, r"RankLostError: .*h1", 5, since)
    assert result(launcher, 30, 2, ok=False).code == 1
    cluster[1].heal()
    site.agents[1].wait_for("Connected with coordinator.*(?s:.*)Connected with coordinator")
    site.check_ready()


def test_an_agent_that_stood_still_is_fenced(fresh: MakeSite) -> None:
    site = fresh((1, 1), Options(coordinator=("--peer-timeout", "3"), agent=("--peer-timeout", "3")))
    launcher = streaming(site, "16")
    ranks = children(site.agents[1])
    since = time.monotonic()
    site.agents[1].freeze()
    told(launcher, 0, r"RankLostError: .*agent h1", 5, since)
    assert result(launcher, 30, 2, ok=False).code == 1
    site.agents[1].thaw()
    site.agents[1].wait_for("the coordinator has given this agent up")
    site.agents[1].wait_for("Connected with coordinator.*(?s:.*)Connected with coordinator")
    assert until(lambda: not any(map(is_alive, ranks)))
    site.check_ready()


@pytest.mark.slow
@pytest.mark.cluster
def test_bytes_that_come_one_by_one_are_the_same_bytes(network: Callable[[int], Cluster]) -> None:
    cluster = network(2)
    cluster[1].intercept().piece_bytes = 1
    cluster[0].intercept().piece_bytes = 1
    site = networked(cluster, (1, 1))
    site.run("tests.hosts.programs", "sum_once")
    site.run("tests.hosts.programs", "small_of_all_kinds")


@pytest.mark.cluster
def test_a_long_way_is_no_deadlock(network: Callable[[int], Cluster]) -> None:
    """One host has done its part of a round, and waits in the next one for ranks whose data are still on their way."""
    cluster = network(2)
    site = networked(cluster, (1, 1))
    for host in cluster.hosts:
        host.limit("40mbit")
    run = site.run("tests.hosts.programs", "go_on_early", HVD_DEADLOCK_GRACE_SECONDS="1")
    assert "wait for each other" not in run.output


# ---- strangers at the port of the data plane


def data_port(agent: Process) -> tuple[str, int]:
    """Where an agent listens; of an address of IPv6, the port alone."""
    found = _descriptors(agent)
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/{agent.pid}/net/{name}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in found:
                host, _, port = fields[1].partition(":")
                return "" if name == "tcp6" else socket.inet_ntoa(bytes.fromhex(host)[::-1]), int(port, 16)
    raise AssertionError("it does not listen")


def _descriptors(process: Process) -> list[str]:
    found = []
    for link in Path(f"/proc/{process.pid}/fd").iterdir():
        try:
            found.append(os.readlink(link))
        except FileNotFoundError:  # closed meanwhile
            continue
    return found


def resident_kib(agent: Process) -> int:
    """Memory of a process."""
    return int(re.search(r"VmRSS:\s*(\d+)", Path(f"/proc/{agent.pid}/status").read_text())[1])  # type: ignore[index]


def test_strangers_at_the_data_port_do_no_harm(fresh: MakeSite, tmp_path: Path) -> None:
    site = fresh((1, 1))
    over = tmp_path / "over"
    launcher = site.launch("tests.hosts.programs", "stream_until", str(over))
    launcher.wait_for("streaming")
    address, noise = data_port(site.agents[1]), random.Random(1)
    before = resident_kib(site.agents[1])
    silent = [socket.create_connection(address) for _ in range(300)]
    for number in range(300):
        with socket.create_connection(address) as stranger:
            try:
                stranger.sendall(noise.randbytes(noise.choice((1, 48, 60, 4000))))
                if number % 3 == 0:  # half-open: nothing follows, and it stays a while
                    silent.append(stranger.dup())
            except OSError:
                continue
    over.touch()
    assert result(launcher, 40, 2).code == 0
    assert resident_kib(site.agents[1]) - before < 30_000
    for stranger in silent:
        stranger.close()
    site.check_ready()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_more_strangers_than_descriptors(fresh: MakeSite) -> None:
    """The agent runs out of descriptors: it waits until it has some, and takes connections again."""
    site = fresh((1, 1))
    address = data_port(site.agents[1])
    limit_descriptors(site.agents[1], 200)
    silent = [socket.create_connection(address) for _ in range(400)]
    for stranger in silent:
        stranger.close()
    site.check_ready()


def limit_descriptors(process: Process, count: int) -> None:
    """So many from now on."""
    import resource

    resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (count, count))


# ---- many jobs


def holdings(process: Process) -> tuple[int, int, int]:
    """Descriptors, threads and children."""
    return len(_descriptors(process)), len(list(Path(f"/proc/{process.pid}/task").iterdir())), len(children(process))


def _is_no_more(now: tuple[int, ...], before: tuple[int, ...]) -> bool:
    """But for what grpc keeps of connections and threads, which comes and goes."""
    return all(count <= most + 2 for count, most in zip(now, before, strict=True))


def run_jobs(site: Site, count: int, folder: Path) -> None:
    """Neither agents nor coordinator grow, and no file stays in the ``folder`` for temporary ones."""
    everybody = [site.coordinator, *site.agents]
    site.check_ready()
    site.check_ready()
    before = [holdings(process) for process in everybody]
    memory = [resident_kib(process) for process in everybody]
    for _ in range(count):
        site.check_ready()
    flat = until(lambda: all(map(_is_no_more, map(holdings, everybody), before)))
    after = [holdings(process) for process in everybody]
    grown = [resident_kib(process) - old for process, old in zip(everybody, memory, strict=True)]
    print(f"{count} jobs: holdings {before}, then {after}, memory {memory} KiB, grown by {grown} KiB")
    assert flat, (before, after)
    assert max(grown) < 10_000, grown
    assert list(folder.iterdir()) == []


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files of every program that is started."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


@pytest.mark.slow
def test_jobs_leave_nothing_behind(temporary: Path, fresh: MakeSite) -> None:
    run_jobs(fresh((1, 1)), 20, temporary)


@pytest.mark.slow
@pytest.mark.timeout(1000)
def test_many_jobs_leave_nothing_behind(temporary: Path, fresh: MakeSite) -> None:
    run_jobs(fresh((1, 1)), 200, temporary)
