"""What the daemons show over HTTP: metrics, health and state, while jobs come and go."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from tests.cluster_local.processes import WAIT_S, Cluster, Process
from tests.cluster_local.test_security import fails
from tests.runner.launcher import until

ROUNDS = 25
# Both ranks run some rounds between the hosts, then wait until somebody has looked.
PROGRAM = f"""
import sys
from tests.common.rank_programs import allreduce, hvd, mine
hvd.init()
for _ in range({ROUNDS}):
    allreduce(mine(1000), "x")
print("ready", flush=True)
open(sys.argv[1] + str(hvd.rank())).read()
hvd.shutdown()
"""


def ask(process: Process, path: str) -> tuple[int, str]:
    """Status and body."""
    match = re.search(r"metrics on (\S+)", process.out.wait_for("metrics on"))
    assert match is not None
    try:
        with urllib.request.urlopen(f"http://{match[1]}{path}", timeout=WAIT_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def scrape(process: Process) -> dict[str, float]:
    lines = ask(process, "/metrics")[1].splitlines()
    pairs = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    return {name: float(value) for name, _, value in pairs}


def scrape_until(process: Process, holds: Callable[[dict[str, float]], bool]) -> dict[str, float]:
    """The values once they are as they should be."""
    seen: dict[str, float] = {}

    def look() -> bool:
        seen.clear()
        seen.update(scrape(process))
        return holds(seen)

    assert until(look, WAIT_S), seen
    return seen


def test_state_is_read_when_it_is_asked_for(fresh: Cluster) -> None:
    coordinator = fresh.serve("--metrics-port", "0")
    agent = fresh.agent("a", "--metrics-port", "0")
    assert (ask(coordinator, "/readyz")[0], ask(agent, "/readyz")[0]) == (200, 200)
    launcher = fresh.launch("-np", "2", "sh", "-c", "echo ready; sleep 300", variables={"SECRET_VALUE": "unseen"})
    launcher.out.wait_for("ready", 2)
    seen = scrape(coordinator)
    assert (seen['hvd_agents{state="busy"}'], seen["hvd_slots"]) == (1, 2)
    assert (seen["hvd_job_running"], seen['hvd_ranks{state="running"}'], seen["hvd_jobs_waiting"]) == (1, 2, 0)
    assert 0 <= seen['hvd_agent_silence_seconds{agent="a"}'] < 10
    assert 0 <= seen["hvd_loop_lag_seconds"] < WAIT_S
    seen = scrape(agent)
    assert seen['hvd_agent_ranks{state="starting"}'] == 2
    assert (seen["hvd_agent_registered"], seen["hvd_agent_jobs_total"], seen["hvd_agent_sessions_total"]) == (1, 1, 1)
    assert seen['hvd_agent_output_bytes_total{stream="stdout"}'] == 2 * len("ready\n")
    assert seen["hvd_process_resident_bytes"] > 1 << 20
    shown = ask(coordinator, "/api/state")[1] + ask(agent, "/api/state")[1]
    assert "unseen" not in shown
    assert "sleep" not in shown
    launcher.send(signal.SIGINT)
    assert launcher.wait() == 128 + signal.SIGINT
    scrape_until(coordinator, lambda seen: seen['hvd_jobs_total{result="cancelled"}'] == 1)
    seen = scrape_until(agent, lambda seen: seen['hvd_agent_ranks{state="gone"}'] == 0)
    assert seen["hvd_agent_jobs_total"] == 1
    assert json.loads(ask(agent, "/api/state")[1])["job"] is None


def test_rounds_between_hosts_and_the_bytes_of_their_links(fresh: Cluster, tmp_path: Path) -> None:
    gates = [tmp_path / f"gate{rank}" for rank in range(2)]
    for gate in gates:
        os.mkfifo(gate)
    coordinator = fresh.serve("--metrics-port", "0")
    agents = [fresh.agent(name, "--metrics-port", "0", slots=1) for name in "ab"]
    python = {"PYTHONPATH": str(Path(__file__).parents[2])}
    launcher = fresh.launch("-np", "2", sys.executable, "-c", PROGRAM, str(tmp_path / "gate"), variables=python)
    launcher.out.wait_for("ready", 2)
    for agent, other in zip(agents, "ba", strict=True):
        name = 'hvd_agent_rounds_total{collective="allreduce",plane="tcp"}'
        seen = scrape_until(agent, lambda seen: seen.get(name) == ROUNDS)  # noqa: B023 - asked at once
        assert seen[f'hvd_agent_link_sent_bytes_total{{neighbour="{other}"}}'] >= ROUNDS * 4000
        assert seen[f'hvd_agent_link_received_bytes_total{{neighbour="{other}"}}'] >= ROUNDS * 4000
        assert seen['hvd_agent_net_rounds_total{algorithm="direct"}'] == ROUNDS
        assert seen['hvd_agent_net_socket_calls_total{direction="sent"}'] > 0
    assert scrape(coordinator)["hvd_ring_hosts"] == 2
    for gate in gates:
        gate.write_text("go")
    assert launcher.wait() == 0
    # Totals outlive the job's shell, and with it the board.
    seen = scrape_until(agents[0], lambda seen: 'hvd_agent_open_rounds{phase="missing"}' not in seen)
    assert seen['hvd_agent_rounds_total{collective="allreduce",plane="tcp"}'] == ROUNDS
    assert seen['hvd_agent_link_sent_bytes_total{neighbour="b"}'] >= ROUNDS * 4000


def test_an_agent_without_a_coordinator_is_alive_and_not_ready(fresh: Cluster) -> None:
    coordinator = fresh.serve()
    agent = fresh.agent("a", "--metrics-port", "0")
    coordinator.end(signal.SIGKILL)
    assert until(lambda: ask(agent, "/readyz")[0] == 503)
    assert "not registered" in ask(agent, "/readyz")[1]
    assert ask(agent, "/healthz")[0] == 200
    assert scrape(agent)["hvd_agent_registered"] == 0
    assert [ask(agent, path)[0] for path in ("/", "/api")] == [404, 404]


def test_a_port_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = fails("horovod.coordinator", "--listen", "127.0.0.1:0", "--http-listen", f"127.0.0.1:{port}")
        assert f"can't serve metrics on 127.0.0.1:{port}: " in said
        assert "choose another port with --http-listen" in said
        said = fails("horovod.agent", "--coordinator", "127.0.0.1:1", "--metrics-port", str(port))
        assert "choose another port with --metrics-port" in said
