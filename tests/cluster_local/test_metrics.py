"""What Prometheus sees of coordinator and agents."""

from __future__ import annotations

import re
import socket
import urllib.request

from tests.cluster_local.processes import WAIT_S, Cluster, Process
from tests.cluster_local.test_security import fails


def scrape(process: Process) -> dict[str, float]:
    match = re.search(r"metrics on (\S+)", process.out.wait_for("metrics on"))
    assert match is not None
    with urllib.request.urlopen(f"http://{match[1]}/metrics", timeout=WAIT_S) as answer:
        lines = answer.read().decode().splitlines()
    pairs = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    return {name: float(value) for name, _, value in pairs}


def test_state_is_read_when_it_is_asked_for(fresh: Cluster) -> None:
    coordinator = fresh.serve("--metrics-port", "0")
    agent = fresh.agent("a", "--metrics-port", "0")
    launcher = fresh.launch("-np", "2", "sh", "-c", "echo ready; sleep 300")
    launcher.out.wait_for("ready", 2)
    seen = scrape(coordinator)
    assert seen["hvd_coordinator_agents"] == 1
    assert seen["hvd_coordinator_slots"] == 2
    assert seen["hvd_coordinator_jobs_total"] == 1
    assert seen['hvd_coordinator_ranks{phase="running"}'] == 2
    assert 0 <= seen['hvd_coordinator_agent_silence_seconds{agent="a"}'] < 10
    seen = scrape(agent)
    assert (seen["hvd_agent_ranks"], seen["hvd_agent_connected"], seen["hvd_agent_jobs_total"]) == (2, 1, 1)
    assert seen["process_resident_memory_bytes"] > 1 << 20


def test_a_port_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = fails("horovod.coordinator", "--listen", "127.0.0.1:0", "--http-listen", f"127.0.0.1:{port}")
        assert f"can't serve metrics on 127.0.0.1:{port}: " in said
        assert "choose another port with --http-listen" in said
        said = fails("horovod.agent", "--coordinator", "127.0.0.1:1", "--metrics-port", str(port))
        assert "choose another port with --metrics-port" in said
