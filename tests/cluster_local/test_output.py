"""Much output: complete, in order, and nobody's memory grows, however slow the reader is."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.cluster_local.processes import Cluster

LINE = "x" * 65_535 + "\\n"
PREFIXED = len("[0]<stdout>:") + 65_536


def peak_kb(pid: int) -> int:
    """The most memory that a process has had; 0 for one that is gone."""
    try:
        found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    except OSError:
        return 0
    return int(found[1]) if found is not None else 0


def start(cluster: Cluster, code: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "horovod.runner", "--coordinator", cluster.address, "-np", "1"]
    return subprocess.Popen([*command, sys.executable, "-c", code], stdout=subprocess.PIPE)


def take(launcher: subprocess.Popen[bytes]) -> int:
    """Reads to the end; how many bytes there were."""
    assert launcher.stdout is not None
    size = 0
    while data := launcher.stdout.read(1 << 20):
        size += len(data)
    launcher.stdout.close()
    assert launcher.wait(40) == 0
    return size


def pass_through(cluster: Cluster, lines: int, limit_kb: int) -> None:
    coordinator = cluster.serve()
    agent = cluster.agent("a")
    services = {"coordinator": coordinator.pid, "agent": agent.pid}
    before = {name: peak_kb(pid) for name, pid in services.items()}
    launcher = start(cluster, f"import sys\nfor i in range({lines}): sys.stdout.write('{LINE}')")
    services["launcher"], before["launcher"] = launcher.pid, 50_000
    peaks: dict[str, int] = {}
    reader = threading.Thread(target=lambda: peaks.update(size=take(launcher)))
    reader.start()
    agent.err.wait_for("Job 1 is over here")
    grown = {name: peak_kb(pid) - before[name] for name, pid in services.items()}
    reader.join(40)
    assert peaks["size"] == lines * PREFIXED
    assert {name: kb for name, kb in grown.items() if kb > limit_kb} == {}


def test_much_output_passes_complete_while_memory_stays_small(fresh: Cluster) -> None:
    pass_through(fresh, 1600, 40_000)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_gigabyte_passes_complete_while_memory_stays_small(fresh: Cluster) -> None:
    pass_through(fresh, 16_384, 40_000)


def test_a_reader_that_pauses_stops_the_rank_and_loses_nothing(fresh: Cluster, tmp_path: Path) -> None:
    coordinator = fresh.serve()
    agent = fresh.agent("a")
    progress = tmp_path / "progress"
    code = (
        "import sys, os\nfile = os.open({path!r}, os.O_WRONLY | os.O_CREAT)\n"
        "for i in range(1600):\n sys.stdout.write('{line}'); os.pwrite(file, b'%d ' % i, 0)"
    )
    launcher = start(fresh, code.format(path=str(progress), line=LINE))
    agent.err.wait_for("Rank 0 runs")

    def written() -> int:
        return int((progress.read_text() or "0").split()[0]) if progress.exists() else 0

    seen, still = -1, 0
    pause = threading.Event()
    while still < 10:  # nobody reads: the rank comes to a halt
        now = written()
        still = still + 1 if now == seen and now > 0 else 0
        seen = now
        pause.wait(0.1)
    assert seen < 800
    assert launcher.poll() is None
    assert peak_kb(coordinator.pid) < 150_000
    assert peak_kb(agent.pid) < 150_000
    assert take(launcher) == 1600 * PREFIXED
