"""Agents, connections and coordinators that go away in the middle of a job."""

from __future__ import annotations

import contextlib
import resource
import signal
import socket
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.cluster_local.processes import WAIT_S, Cluster, Forwarder
from tests.runner.launcher import MARK, marked, until

Stranger = Callable[[str, bytes], socket.socket]
SLEEP = ("sh", "-c", "echo ready; sleep 300")


@pytest.fixture
def pair(fresh: Cluster) -> Cluster:
    """Two agents of a coordinator that has little patience."""
    fresh.serve("--peer-timeout", "2")
    fresh.agent("a", slots=1)
    fresh.agent("b", slots=1)
    return fresh


def test_an_agent_that_is_killed_is_named_within_the_time_out(pair: Cluster) -> None:
    mark = uuid.uuid4().hex
    launcher = pair.launch("-np", "2", *SLEEP, variables={MARK: mark})
    launcher.out.wait_for("ready", 2)
    pair.agents["b"].end(signal.SIGKILL)
    assert launcher.wait() == 1
    assert until(lambda: not marked(mark))
    said = launcher.err.text
    assert "horovodrun: First failure: Rank 1 (host " in said
    assert "can't be reached: agent b on host" in said
    assert "is lost: nothing was heard of it for 2 s (its connection is broken)." in said
    assert pair.run("-np", "1", "true")[0] == 0


def test_an_agent_that_was_killed_may_come_back_at_once(pair: Cluster) -> None:
    launcher = pair.launch("-np", "2", *SLEEP)
    launcher.out.wait_for("ready", 2)
    pair.agents["b"].end(signal.SIGKILL)
    pair.agent("b", slots=1)
    assert launcher.wait() == 1
    assert "agent b on host" in launcher.err.text
    assert "is lost: it has begun a new session." in launcher.err.text
    assert pair.run("-np", "2", "true")[0] == 0


def test_an_agent_that_is_stopped_ends_its_ranks_and_takes_leave(pair: Cluster) -> None:
    mark = uuid.uuid4().hex
    script = "trap 'echo last words; exit 1' TERM; echo ready; while :; do sleep 0.1; done"
    launcher = pair.launch("-np", "2", "sh", "-c", script, variables={MARK: mark})
    launcher.out.wait_for("ready", 2)
    assert pair.agents["b"].end(signal.SIGTERM) == 0
    assert launcher.wait() == 1
    assert "agent b on host" in launcher.err.text
    assert "is lost: it was stopped by SIGTERM." in launcher.err.text
    assert launcher.out.text.count("last words") == 2
    assert not marked(mark)


def test_a_process_that_hangs_is_lost_and_may_come_back(pair: Cluster) -> None:
    mark = uuid.uuid4().hex
    launcher = pair.launch("-np", "2", *SLEEP, variables={MARK: mark})
    launcher.out.wait_for("ready", 2)
    pair.agents["b"].send(signal.SIGSTOP)
    assert launcher.wait() == 1
    assert "is lost: nothing was heard of it for 2 s (its connection is open)." in launcher.err.text
    pair.agents["b"].send(signal.SIGCONT)
    pair.agents["b"].err.wait_for("the coordinator has given this agent up")
    pair.agents["b"].err.wait_for("Connected with coordinator", 2)
    assert until(lambda: not marked(mark))
    assert pair.run("-np", "2", "true")[0] == 0


@pytest.fixture
def far(fresh: Cluster) -> Iterator[tuple[Cluster, Forwarder]]:
    """One agent behind a network that can be cut."""
    fresh.serve("--peer-timeout", "3")
    with Forwarder(fresh.address) as network:
        fresh.agent("a", address=network.address)
        yield fresh, network
        for agent in fresh.agents.values():
            agent.end()


def test_a_connection_that_is_cut_costs_nothing(far: tuple[Cluster, Forwarder]) -> None:
    cluster, network = far
    script = "i=0; while [ $i -lt 3000 ]; do i=$((i+1)); echo line $i; [ $((i % 50)) != 0 ] || sleep 0.02; done; exit 3"
    launcher = cluster.launch("-np", "2", "sh", "-c", script)
    for number in (200, 900, 1800):
        launcher.out.wait_for(f"line {number}$", 2)
        network.cut()
    assert launcher.wait() == 3
    for rank in range(2):
        lines = [line for line in launcher.out.text.splitlines() if line.startswith(f"[{rank}]")]
        assert lines[:1500] == [f"[{rank}]<stdout>:line {number}" for number in range(1, 1501)]
    assert "The session with the coordinator goes on." in cluster.agents["a"].err.text
    assert "lost" not in cluster.story()


def test_a_connection_that_stays_cut_ends_the_job_on_both_sides(far: tuple[Cluster, Forwarder]) -> None:
    cluster, network = far
    mark = uuid.uuid4().hex
    launcher = cluster.launch("-np", "2", *SLEEP, variables={MARK: mark})
    launcher.out.wait_for("ready", 2)
    network.cut(reopen=False)
    assert launcher.wait() == 1
    assert "nothing was heard of it for 3 s (its connection is broken)" in launcher.err.text
    network.open()
    cluster.agents["a"].err.wait_for("the coordinator has given this agent up")
    assert until(lambda: not marked(mark))
    cluster.agents["a"].err.wait_for("Connected with coordinator", 2)
    assert cluster.run("-np", "2", "true")[0] == 0


def test_agents_end_ranks_that_nobody_asks_for_and_find_the_next_coordinator(fresh: Cluster) -> None:
    mark = uuid.uuid4().hex
    first = fresh.serve("--peer-timeout", "1")
    fresh.agent("a", "--coordinator-timeout", "2")
    launcher = fresh.launch("--coordinator-timeout", "2", "-np", "2", *SLEEP, variables={MARK: mark})
    launcher.out.wait_for("ready", 2)
    first.end(signal.SIGKILL)
    assert launcher.wait() == 1
    assert f"The connection with coordinator {fresh.address} broke" in launcher.err.text
    assert "It was not started anew within 2 s, see --coordinator-timeout" in launcher.err.text
    fresh.agents["a"].err.wait_for("The ranks of job 1 are ended: no coordinator was heard for 6 s")
    assert until(lambda: not marked(mark))
    fresh.serve("--peer-timeout", "1", listen=fresh.address)
    fresh.agents["a"].err.wait_for("Connected with coordinator", 2)
    assert fresh.run("-np", "2", "true")[0] == 0


def test_a_coordinator_that_is_stopped_ends_its_job_and_says_so(pair: Cluster) -> None:
    mark = uuid.uuid4().hex
    launcher = pair.launch("-np", "2", *SLEEP, variables={MARK: mark})
    launcher.out.wait_for("ready", 2)
    waiting = pair.launch("-np", "2", "--wait", "true")
    waiting.err.wait_for("Waiting: a job runs already")
    assert pair.coordinator is not None
    assert pair.coordinator.end(signal.SIGTERM) == 0
    assert (launcher.wait(), waiting.wait()) == (1, 2)
    assert launcher.err.text == "horovodrun: The coordinator was stopped.\n"
    assert waiting.err.text.endswith("horovodrun: error: The coordinator was stopped.\n")
    assert until(lambda: not marked(mark))


def test_a_job_may_wait_for_its_agents(fresh: Cluster) -> None:
    fresh.serve()
    launcher = fresh.launch("-np", "2", "--wait", "echo", "hello")
    launcher.err.wait_for("Waiting: 2 ranks were asked for, but the agents have 0 slots.")
    fresh.agent("a", slots=1)
    fresh.agent("b", slots=1)
    assert launcher.wait() == 0
    assert launcher.out.text.count("hello") == 2


# ---- strangers at the port of the calls

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def http2(kind: int, flags: int, stream: int, payload: bytes, length: int = -1) -> bytes:
    """A frame; ``length`` if it is to lie about it."""
    size = len(payload) if length < 0 else length
    return size.to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def header(name: bytes, value: bytes) -> bytes:
    return bytes((0, len(name))) + name + bytes((len(value),)) + value


SETTINGS = PREFACE + http2(4, 0, 0, b"")
CALL = b"".join(
    header(name, value)
    for name, value in (
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", b"/hvd.control.Coordinator/Session"),
        (b":authority", b"x"),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
    )
)
WORDS = {
    "nothing": b"",
    "noise": b"\xff" * 5000,
    "another protocol": b"GET / HTTP/1.1\r\n\r\n",
    "half a preface": PREFACE[:10],
    "a preface": PREFACE,
    "a preface and noise": PREFACE + b"\xff" * 5000,
    "a connection without a call": SETTINGS,
    "a frame that is never whole": SETTINGS + http2(0, 0, 1, b"x" * 100, length=16_384),
    "a frame that is too long": SETTINGS + http2(0, 0, 1, b"x" * 100, length=0xFFFFFF),
    "headers without an end": SETTINGS + http2(1, 0, 1, CALL),
    "a call without a word": SETTINGS + http2(1, 4, 1, CALL),
    "a message of 4 GiB": SETTINGS + http2(1, 4, 1, CALL) + http2(0, 0, 1, b"\0\xff\xff\xff\xff" + b"x" * 1000),
    "a message of 60 MiB that never comes": SETTINGS
    + http2(1, 4, 1, CALL)
    + http2(0, 0, 1, b"\0\x03\xc0\0\0" + b"x" * 1000),
}


@pytest.fixture
def stranger() -> Iterator[Callable[[str, bytes], socket.socket]]:
    """``stranger(address, words)``: half-open, it has said this and stays."""
    with contextlib.ExitStack() as peers:

        def come(address: str, words: bytes) -> socket.socket:
            host, _, port = address.rpartition(":")
            peer = peers.enter_context(socket.create_connection((host, int(port))))
            with contextlib.suppress(OSError):
                peer.sendall(words)
            return peer

        yield come


def ended(peer: socket.socket) -> bool:
    """Reads to the end, if there is one within the limit."""
    peer.settimeout(WAIT_S)
    with contextlib.suppress(ConnectionError):
        while True:
            try:
                if not peer.recv(1 << 16):
                    break
            except TimeoutError:
                return False
    return True


def test_strangers_at_the_port_of_the_calls_harm_nobody(pair: Cluster, stranger: Stranger, tmp_path: Path) -> None:
    """Random bytes, huge lengths, half-open connections, slow ones: memory stays flat, the job goes on, the next one runs."""
    gate = tmp_path / "gate"
    launcher = pair.launch("-np", "2", "sh", "-c", f"echo ready; while [ ! -e {gate} ]; do sleep 0.1; done; echo done")
    launcher.out.wait_for("ready", 2)
    assert pair.coordinator is not None
    service = psutil.Process(pair.coordinator.pid)
    before = service.memory_info().rss
    peers = [stranger(pair.address, words) for _ in range(20) for words in WORDS.values()]
    for peer in peers:  # a byte at a time
        with contextlib.suppress(OSError):
            peer.sendall(b"\0")
    gate.touch()
    assert launcher.wait() == 0, pair.story()
    assert launcher.out.text.count("done") == 2
    assert pair.run("-np", "2", "true")[0] == 0
    assert service.memory_info().rss - before < 40 << 20
    assert "lost" not in pair.story()


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_strangers_do_not_stay(fresh: Cluster, stranger: Stranger) -> None:
    """However little they say: other callers need the descriptors that they hold."""
    service = psutil.Process(fresh.serve().pid)
    idle = service.num_fds()
    peers = {name: stranger(fresh.address, words) for name, words in WORDS.items()}
    assert {name for name, peer in peers.items() if not ended(peer)} == set()
    for peer in peers.values():
        peer.close()
    assert until(lambda: service.num_fds() <= idle + 3)


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_more_strangers_than_descriptors(fresh: Cluster, stranger: Stranger) -> None:
    coordinator = fresh.serve()
    resource.prlimit(coordinator.pid, resource.RLIMIT_NOFILE, (100, 100))
    for _ in range(200):
        stranger(fresh.address, b"")
    fresh.agent("a")
    assert fresh.run("-np", "2", "true")[0] == 0


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_twenty_jobs_leave_no_trace(fresh: Cluster) -> None:
    coordinator = fresh.serve()
    agent = fresh.agent("a")
    services = [psutil.Process(process.pid) for process in (coordinator, agent)]

    def held() -> list[tuple[int, int]]:
        return [(service.num_fds(), service.num_threads()) for service in services]

    def settled(before: list[tuple[int, int]]) -> bool:
        """Connections of the last job are closed a moment after its end."""
        return all(
            now <= then for pair, most in zip(held(), before, strict=True) for now, then in zip(pair, most, strict=True)
        )

    def run(count: int) -> None:
        for _ in range(count):
            assert fresh.run("-np", "2", "sh", "-c", "head -c 300000 /dev/zero")[0] == 0

    idle = held()
    run(5)
    agent.err.wait_for("is over here", 5)
    more = [(descriptors + 3, threads + 3) for descriptors, threads in idle]  # what grpc keeps once it was used
    assert until(lambda: settled(more)), (held(), idle)
    memory = [service.memory_info().rss for service in services]
    run(15)
    agent.err.wait_for("is over here", 20)
    assert until(lambda: settled(more)), (held(), idle)
    for before, service in zip(memory, services, strict=True):
        assert service.memory_info().rss <= before + (8 << 20)


def test_cuts_while_ranks_come_and_go_lose_no_report_and_no_order(far: tuple[Cluster, Forwarder]) -> None:
    cluster, network = far
    code = (
        "import horovod.common.basics as basics\nhvd = basics.HorovodBasics()\n"
        "for i in range(60):\n hvd.init(); hvd.shutdown(); print('epoch', i)"
    )
    services = [psutil.Process(process.pid) for process in (cluster.coordinator, cluster.agents["a"]) if process]
    idle = [service.num_fds() for service in services]
    launcher = cluster.launch("-np", "2", sys.executable, "-c", code)
    for number in range(3, 60, 8):
        launcher.out.wait_for(f"epoch {number}$")
        network.cut()
    assert launcher.wait() == 0, launcher.err.text
    expected = sorted(f"[{rank}]<stdout>:epoch {number}" for rank in range(2) for number in range(60))
    assert sorted(launcher.out.text.splitlines()) == expected
    assert cluster.agents["a"].err.text.count("The session with the coordinator goes on.") >= 3
    assert until(lambda: all(s.num_fds() <= most + 3 for s, most in zip(services, idle, strict=True)))


def test_a_pause_of_the_coordinator_costs_nothing(pair: Cluster) -> None:
    launcher = pair.launch("-np", "2", "sh", "-c", "echo ready; sleep 6; echo done")
    launcher.out.wait_for("ready", 2)
    assert pair.coordinator is not None
    pair.coordinator.send(signal.SIGSTOP)
    for agent in pair.agents.values():  # after its time-out of 2 s
        agent.err.wait_for("The coordinator can't be reached: it was silent for 2 s. Trying again.")
    pair.coordinator.send(signal.SIGCONT)
    assert launcher.wait() == 0, pair.story()
    assert launcher.out.text.count("done") == 2
