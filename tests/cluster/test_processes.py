"""Processes of hosts, on loopback addresses: what they print is kept, waits end, and so do they and their children."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.cluster.loopback import marked
from benchmarks.cluster.processes import all_pids
from tests.cluster.harness import LoopbackCluster, LoopbackHost, Process
from tests.cluster.programs import ROOT, command
from tests.cluster.sockets import reaches

pytestmark = [pytest.mark.usefixtures("no_leaks"), pytest.mark.timeout(60)]


@pytest.fixture
def cluster() -> Iterator[LoopbackCluster]:
    with LoopbackCluster(2) as made:
        yield made


@pytest.fixture
def host(cluster: LoopbackCluster) -> LoopbackHost:
    return cluster[0]


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


# ---- one process


def test_run_gives_output_and_code(host: LoopbackHost) -> None:
    done = host.run(["sh", "-c", "echo $A; echo oh >&2; pwd; exit 3"], env={"A": "b"}, cwd="/", check=False)
    assert (done.returncode, done.stdout, done.stderr) == (3, "b\n/\n", "oh\n")


def test_a_failed_run_shows_what_was_printed(host: LoopbackHost) -> None:
    with pytest.raises(AssertionError, match=r"(?s)on h0: 3.*why"):
        host.run(["sh", "-c", "echo why >&2; exit 3"])


def test_output_is_kept_in_order(host: LoopbackHost) -> None:
    process = host.start(["sh", "-c", "echo a; echo b >&2; printf c"])
    assert process.wait() == 0
    assert process.output == "a\nb\nc"


SLOW_LINE = """
import signal
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
print("ready\\nport 12", end="", flush=True)
signal.sigwait({signal.SIGUSR1})
print("34", flush=True)
signal.pause()
"""


def test_a_line_counts_when_it_is_complete(host: LoopbackHost) -> None:
    process = host.python("-c", SLOW_LINE)
    process.wait_for("^ready$")
    assert process.output == "ready\nport 12"
    with pytest.raises(AssertionError, match="without"):
        process.wait_for(r"port (\d+)", 0.01)
    process.signal(signal.SIGUSR1)
    assert process.wait_for(r"port (\d+)")[1] == "1234"
    assert process.is_running


def test_an_unfinished_line_counts_at_the_end(host: LoopbackHost) -> None:
    assert host.start(["printf", "port 12"]).wait_for(r"port (\d+)")[1] == "12"


def test_waiting_for_what_never_comes_ends_with_the_process(host: LoopbackHost) -> None:
    process = host.start(["sh", "-c", "echo this; exit 4"])
    with pytest.raises(AssertionError, match=r"(?s)ended with 4 without 'that'.*this"):
        process.wait_for("that")


def test_waits_have_limits(host: LoopbackHost) -> None:
    process = host.start(["sleep", "1000"])
    with pytest.raises(AssertionError, match="still runs after"):
        process.wait(0.01)
    with pytest.raises(AssertionError, match="wrote for"):
        process.wait_for("x", 0.01)


def test_freeze_thaw_and_kill(host: LoopbackHost) -> None:
    process = host.start(["sleep", "1000"])
    process.freeze()
    assert state(process.pid) == "T"
    process.thaw()
    process.freeze()
    process.kill()
    assert process.wait() == -signal.SIGKILL
    assert not process.is_running


def test_signals_arrive(host: LoopbackHost) -> None:
    process = host.start(["sleep", "1000"])
    process.signal(signal.SIGTERM)
    assert process.wait() == -signal.SIGTERM


def test_a_program_that_is_missing_is_an_error(host: LoopbackHost) -> None:
    with pytest.raises(FileNotFoundError):
        host.start(["/no/such/program"])


# ---- hosts and clusters


def test_hosts_reach_each_other(cluster: LoopbackCluster) -> None:
    assert all(reaches(a, b, b.address) for a in cluster for b in cluster)
    assert [host.name for host in cluster] == ["h0", "h1"]
    assert len({host.address for host in cluster}) == len(cluster) == 2


def test_two_clusters_at_once_have_different_addresses(cluster: LoopbackCluster) -> None:
    with LoopbackCluster(3) as other:
        assert not {host.address for host in cluster} & {host.address for host in other}


def test_freezing_a_host_spares_the_others(cluster: LoopbackCluster) -> None:
    a, b = cluster
    here, there = a.start(["sleep", "1000"]), b.start(["sleep", "1000"])
    a.freeze()
    assert state(here.pid) == "T"
    assert state(there.pid) != "T"
    a.thaw()
    assert state(here.pid) != "T"
    a.kill()
    assert here.wait() == -signal.SIGKILL
    assert there.is_running


def test_children_with_another_environment_belong_to_the_host(host: LoopbackHost) -> None:
    process = host.start(command("family"), cwd=str(ROOT))
    child = int(process.wait_for(r"child (\d+)")[1])
    assert set(host.pids()) >= {process.pid, child}
    host.kill()
    assert child not in all_pids() or state(child) in "ZX"


def test_the_end_ends_everything_and_output_stays() -> None:
    with LoopbackCluster(1) as cluster:
        process = cluster[0].start(command("family"), cwd=str(ROOT))
        child = int(process.wait_for(r"child (\d+)")[1])
        cluster[0].freeze()
    assert process.output == f"child {child}\n"
    assert child not in all_pids() or state(child) in "ZX"
    assert marked(lambda mark: mark.startswith(cluster.name)) == []


def test_a_block_that_fails_shows_output_and_ends_everything(capsys: pytest.CaptureFixture[str]) -> None:
    def fail(process: Process) -> None:
        process.wait_for("seen")
        process.wait_for("never", 0.01)

    cluster = LoopbackCluster(1)
    with pytest.raises(AssertionError, match="never"), cluster:
        fail(cluster[0].start(["sh", "-c", "echo seen; exec sleep 1000"]))
    assert not cluster[0].processes[0].is_running
    assert "of sh -c echo seen; exec sleep 1000 on h0\nseen\n" in capsys.readouterr().err


@pytest.mark.parametrize("n", [0, 201])
def test_sizes_that_make_no_sense_are_refused(n: int) -> None:
    with pytest.raises(ValueError, match="1 to 200 hosts"):
        LoopbackCluster(n)


def test_this_process_is_of_no_host() -> None:
    assert os.getpid() not in marked(lambda _: True)
