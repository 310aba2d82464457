"""Agents that move data through torch's Gloo serve the same jobs, find the same faults, and all have to do so."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Callable

import psutil
import pytest

from tests.cluster.harness import Cluster
from tests.hosts.conftest import MakeSite
from tests.hosts.site import Options, Site, result
from tests.hosts.test_faults import streaming
from tests.multi.cases import COLLECTIVES
from tests.runner.launcher import until

pytestmark = pytest.mark.timeout(150)
slow = pytest.mark.slow
GLOO = Options(agent=("--plane", "gloo"))
HOST = re.escape(socket.gethostname())
PROGRAMS = "tests.hosts.programs"


def gloo_of(site: Site, index: int) -> list[psutil.Process]:
    """The processes that run Gloo for an agent's epochs; their parent has torch loaded, and stays."""
    children = psutil.Process(site.agents[index].pid).children()
    (server,) = [child for child in children if "horovod.agent.planes.gloo_child" in child.cmdline()]
    return server.children()


def test_a_job_over_gloo_and_an_agent_that_has_another_plane(fresh: MakeSite) -> None:
    site = fresh((2, 1), GLOO)
    run = site.run(PROGRAMS, "same_bits")
    words = {rank: [line for line in lines if line.startswith("bits ")] for rank, lines in run.ranks.items()}
    assert len(words[0]) > 10
    assert {rank: lines for rank, lines in words.items() if lines != words[0]} == {}
    host = site.hosts[0]
    other = site._start(host, "horovod.agent", "--coordinator", site.address, "--name", "other", "--slots", "1")
    assert other.wait(30) == 2
    assert "Agent other moves data between hosts by the plane tcp, agent h0 by gloo" in other.output


@slow
def test_programs_over_gloo(fresh: MakeSite) -> None:
    site = fresh((2, 1), GLOO)
    cases = [case for case in COLLECTIVES if case.fits(site.np)]
    run = site.run(PROGRAMS, "several", *(case.program for case in cases), timeout_s=140)
    said = [(text, rank) for case in cases for rank, texts in case.says.items() for text in texts]
    assert [text for text, rank in said if text not in run.said(rank)] == [], run.output


@slow
@pytest.mark.parametrize(("program", "argument"), [("late_contest", "0"), ("joined_host", "2"), ("many_epochs", "5")])
def test_names_joins_and_epochs_over_gloo(fresh: MakeSite, program: str, argument: str) -> None:
    site = fresh((2, 1) if program != "many_epochs" else (1, 1), GLOO)
    site.run(PROGRAMS, program, argument, timeout_s=100)


@slow
def test_gloo_that_is_killed_ends_the_job_and_not_the_agent(fresh: MakeSite) -> None:
    site = fresh((2, 1), GLOO)
    launcher = streaming(site, "16")
    (mine,) = gloo_of(site, 1)
    mine.kill()
    run = result(launcher, 30, 3, ok=False)
    assert run.code == 1
    first = run.output.partition("First failure: ")[2]
    assert re.match(r"Host \S+ \(agent h1\) can't be reached any more", first), run.output
    assert until(lambda: not gloo_of(site, 0) and not gloo_of(site, 1))
    site.check_ready()


@slow
def test_an_agent_that_is_killed_leaves_no_gloo(fresh: MakeSite) -> None:
    site = fresh((1, 1), GLOO)
    launcher = streaming(site, "16")
    (left,) = gloo_of(site, 1)
    site.agents[1].kill()
    assert result(launcher, 30, 2, ok=False).code == 1
    assert until(lambda: not left.is_running())
    site.restart_agent(1)
    site.check_ready()


@slow
@pytest.mark.cluster
def test_gloo_over_a_link_that_is_cut(network: Callable[[int], Cluster]) -> None:
    """No reset, no end: only silence tells, of Gloo's own connections too."""
    cluster = network(2)
    options = Options(
        agent=("--plane", "gloo", "--peer-timeout", "4"), coordinator=("--peer-timeout", "4"), token="t" * 32
    )
    site = Site(cluster.hosts, (1, 1), options)
    launcher = streaming(site, "16")
    since = time.monotonic()
    cluster.hosts[1].cut()
    assert result(launcher, 40, 2, ok=False).code == 1
    assert time.monotonic() - since < 15


@slow
@pytest.mark.cluster
def test_gloo_whose_bytes_come_in_small_pieces(network: Callable[[int], Cluster]) -> None:
    cluster = network(2)
    site = Site(cluster.hosts, (1, 1), Options(agent=("--plane", "gloo"), token="t" * 32))
    cluster.hosts[0].intercept().piece_bytes = 16
    site.run(PROGRAMS, "sum_once", timeout_s=100)
