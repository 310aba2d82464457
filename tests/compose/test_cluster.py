"""`make compose-test`: the image and the compose file as they are, on an engine that is started for them.

The tests run in the order in which they stand here: each leaves a cluster that is whole.
"""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compose import machine, stand_in
from tests.compose.cluster import AGENTS, SERVICES, Cluster, copy_tree
from tests.compose.engine import Engine, until

pytestmark = [pytest.mark.compose, pytest.mark.timeout(2400)]

ALL_UP = {"coordinator:9400": 1.0, **{f"{agent}:9400": 1.0 for agent in AGENTS}}
PEER_TIMEOUT_S = 10.0  # of coordinator and agents, see docs/cli.md
MARGIN_S = 50.0  # the ranks' grace, and a machine whose few cores have other work
JOB_LIMIT_S = 600.0
SHORT = ("--epochs", "2")
LEAST_ACCURACY = 97.0
TRAINING = r"training: .*\| \d\d+/"  # more than nine steps are done


def say(text: str) -> None:
    print(f"\n[{time.strftime('%H:%M:%S')}] {text}", flush=True)


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    """The engine with its base image; the machine must be afterwards what it was before."""
    before = machine.state()
    with tempfile.TemporaryDirectory(prefix="hvd-compose-") as name:
        made = Engine(Path(name))
        try:
            say("making the stand-in base image")
            stand_in.import_base(made, Path(name))
            yield made
        finally:
            made.stop()
        assert made.processes() == []
    after = machine.state()
    assert after == before
    say("the machine is as it was: " + ", ".join(f"{len(items)} {kind}" for kind, items in after.items()))


@pytest.fixture(scope="module")
def cluster(engine: Engine) -> Iterator[Cluster]:
    """All services, healthy."""
    with tempfile.TemporaryDirectory(prefix="hvd-compose-tree-") as name:
        tree = Path(name) / "tree"
        copy_tree(tree)
        made = Cluster(engine, tree)
        try:
            say("make up")
            print(made.up()[-1500:])
            made.until_healthy(*SERVICES, limit_s=180)
            print(made.compose("ps"))
            yield made
        finally:
            say("make down")
            made.close()
        assert engine.docker("ps", "-aq") == ""
        assert engine.docker("volume", "ls", "-q") == ""
        assert sorted(engine.docker("network", "ls", "--format", "{{.Name}}").split()) == ["bridge", "host", "none"]


def serve(cluster: Cluster, ranks: int, *arguments: str) -> float:
    """Runs a job to its end; the accuracy in percent."""
    launch = cluster.train(ranks, *arguments)
    code = launch.wait(JOB_LIMIT_S)
    assert code == 0, launch.text + cluster.story()
    (line,) = re.findall(r"test accuracy .*", launch.text)
    say(line)
    assert f"on {ranks} rank(s)" in line
    return float(re.findall(r"accuracy ([\d.]+)%", line)[0])


def test_the_image_has_no_build_tools_and_runs_as_a_user(cluster: Cluster) -> None:
    tools = "for tool in gcc g++ cc make cmake ninja; do command -v $tool; done"
    script = f"id -u; {tools}; cat /proc/1/comm; stat -c %a $HVD_TOKEN_FILE"
    lines = cluster.compose("exec", "-T", "coordinator", "sh", "-c", script).split()
    assert lines == ["1000", "docker-init", "444"]
    shared = cluster.compose("exec", "-T", "agent-1", "sh", "-c", "df -m /dev/shm | tail -1").split()
    assert shared[1] == "64"  # the engine's default: tensor data is elsewhere


def test_six_ranks_on_three_containers_train(cluster: Cluster) -> None:
    assert serve(cluster, 6) >= LEAST_ACCURACY


def test_prometheus_knows_the_cluster(cluster: Cluster) -> None:
    cluster.until_known("up", ALL_UP)
    cluster.until_known("sum(hvd_agents)", {"": 3.0}, by="")
    cluster.until_known("hvd_slots", {"coordinator:9400": 6.0})
    cluster.until_known('hvd_jobs_total{result="succeeded"}', {"coordinator:9400": 1.0})
    expression = 'sum by (instance) (hvd_agent_rounds_total{collective="allreduce",plane="tcp"})'
    rounds = cluster.query(expression)
    say(f"rounds: {rounds}")
    assert rounds.keys() == {f"{agent}:9400" for agent in AGENTS}
    assert min(rounds.values()) > 100  # 20 epochs of 8 steps
    assert len(cluster.query("sum by (neighbour) (hvd_agent_link_sent_bytes_total) > 0", by="neighbour")) == 3


def test_a_container_that_is_cut_off_fails_its_job_and_no_other(cluster: Cluster, engine: Engine) -> None:
    launch = cluster.train(6, "--epochs", "5000")
    launch.wait_for(TRAINING, 300)
    network, lost = cluster.network(), cluster.container("agent-2")
    start = time.monotonic()
    engine.docker("network", "disconnect", network, lost)
    code = launch.wait(PEER_TIMEOUT_S + MARGIN_S)
    say(f"exit code {code} after {time.monotonic() - start:.1f} s:\n{launch.text[-800:]}")
    assert code not in (0, 2)
    assert "agent-2" in launch.text.strip().splitlines()[-1]
    serve(cluster, 4, *SHORT)
    cluster.until_known("up == 0", {"agent-2:9400": 0.0})
    until(lambda: cluster.health("agent-2") == "unhealthy", 60, cluster.story)
    engine.docker("network", "connect", "--alias", "agent-2", network, lost)
    cluster.until_healthy("agent-2")
    cluster.until_known("up", ALL_UP)
    serve(cluster, 6, *SHORT)


def test_an_agent_that_is_restarted_serves_again(cluster: Cluster) -> None:
    launch = cluster.train(6, "--epochs", "5000")
    launch.wait_for(TRAINING, 300)
    cluster.compose("restart", "agent-3")
    code = launch.wait(PEER_TIMEOUT_S + MARGIN_S)
    say(f"exit code {code}:\n{launch.text[-500:]}")
    assert code not in (0, 2)
    assert "agent-3" in launch.text
    cluster.until_healthy("agent-3")
    serve(cluster, 6, *SHORT)


END_AGENT = """
import os, pathlib, signal
for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
    if path.parent.name not in ("1", str(os.getpid())) and b"hvd-agent" in path.read_bytes():
        os.kill(int(path.parent.name), signal.SIGKILL)
"""


def test_an_agent_that_is_killed_is_started_again_by_the_engine(cluster: Cluster) -> None:
    assert cluster.restarts("agent-1") == 0
    cluster.compose("exec", "-T", "agent-1", "python", "-c", END_AGENT)
    until(lambda: cluster.restarts("agent-1") == 1, 60, cluster.story)
    cluster.until_healthy("agent-1")
    serve(cluster, 6, *SHORT)
