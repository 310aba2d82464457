"""What is left of a cluster after its end, after a failure, after its owner was killed: nothing."""

from __future__ import annotations

import os
import select
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from benchmarks.cluster import loopback, namespaces, owners
from tests.cluster.harness import Cluster
from tests.cluster.programs import ROOT, command

pytestmark = [pytest.mark.usefixtures("no_leaks"), pytest.mark.timeout(60)]
cluster = pytest.mark.cluster
# Namespaces, interfaces and rules that nobody else changes meanwhile: a machine of its own, as far as a cluster can see.
ALONE = [
    "unshare",
    "--net",
    "--mount",
    "sh",
    "-c",
    'mkdir -p /run/netns && mount -t tmpfs none /run/netns && exec "$@"',
    "-",
]


def left(name: str) -> list[str]:
    """What bears this cluster's name."""
    folders = [folder for folder in (namespaces.FOLDER, namespaces.ETC) if folder.is_dir()]
    found = [str(path) for folder in folders for path in folder.iterdir() if path.name.startswith(name)]
    return found + [str(pid) for pid in loopback.marked(lambda mark: mark.startswith(name))]


def running(pidfds: Sequence[int]) -> list[int]:
    """Those whose process has not ended; another one may have its number by now."""
    ended, _, _ = select.select(pidfds, [], [], 0)
    return [pidfd for pidfd in pidfds if pidfd not in ended]


@contextmanager
def abandoned(kind: str) -> Iterator[tuple[str, list[int]]]:
    """The name and the processes, as pidfds, of a cluster whose owner has been killed."""
    with subprocess.Popen(command("own", kind), cwd=ROOT, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        name, *pids = owner.stdout.readline().split()
        pidfds = [os.pidfd_open(int(pid)) for pid in pids]
        owner.kill()
    try:
        yield name, pidfds
    finally:
        for pidfd in pidfds:
            os.close(pidfd)


@cluster
def test_the_machine_is_as_before_after_a_failure() -> None:
    done = subprocess.run([*ALONE, *command("leave_nothing")], cwd=ROOT, capture_output=True, text=True, timeout=50)
    assert (done.stdout.splitlines()[-1:], done.stderr.count("Traceback")) == (["the same"], 0), (
        done.stdout + done.stderr
    )
    assert done.stdout.startswith("2 processes")


@cluster
def test_a_beginning_that_fails_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Cluster(2)

    def fail(name: str, lines: Sequence[str]) -> None:
        assert left(made.name)
        raise ZeroDivisionError

    monkeypatch.setattr(namespaces, "configure", fail)
    with pytest.raises(ZeroDivisionError), made:
        pass
    assert left(made.name) == []


@cluster
def test_the_next_cluster_removes_what_a_killed_owner_left() -> None:
    with abandoned("Cluster") as (name, processes):
        assert len(processes) == 2
        assert owners.is_stale(f"{name}-net")
        with Cluster(1) as other:
            assert left(name) == []
            assert running(processes) == []
            assert left(other.name)
        assert left(other.name) == []


def test_the_next_loopback_cluster_ends_what_a_killed_owner_left() -> None:
    with abandoned("LoopbackCluster") as (name, processes):
        assert len(processes) == 2
        with loopback.LoopbackCluster(1):
            assert left(name) == []
            assert running(processes) == []


def test_names_of_the_living_and_of_others_are_not_stale() -> None:
    name = owners.new_cluster_name()
    assert name != owners.new_cluster_name()
    pid = os.getpid()
    assert not owners.is_stale(f"{name}-h0")
    assert not owners.is_stale(f"{owners.PREFIX}-notes")
    assert not owners.is_stale("somebody-elses")
    assert owners.is_stale(f"{owners.PREFIX}-{pid}-0-0-h0")  # the same number, an earlier process


def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(namespaces, "TOOLS", ("ls", "no-such-tool"))
    why_not = namespaces.why_not.__wrapped__
    assert why_not() == "no-such-tool not found: apt-get install iproute2 iptables"
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert why_not() == "network namespaces need root"


def test_a_failing_tool_is_quoted() -> None:
    with pytest.raises(RuntimeError, match="exit code 3: why"):
        namespaces.call("sh", "-c", "echo why >&2; exit 3")
