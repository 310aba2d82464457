"""Programs that the self tests run, each in a process of its own: ``python -m tests.cluster.programs NAME ...``."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.cluster.harness import Cluster, LoopbackCluster

ROOT = Path(__file__).resolve().parents[2]


def command(*args: str) -> list[str]:
    """To be run in ROOT."""
    return [sys.executable, "-m", "tests.cluster.programs", *args]


def echo(address: str) -> None:
    """Says where it listens, then sends back what each connection, one after the other, sends."""
    with socket.create_server((address, 0)) as listener:
        print(f"{socket.gethostname()} listens on {listener.getsockname()[1]}", flush=True)
        while True:
            client, _ = listener.accept()
            with client:
                while data := client.recv(1 << 16):
                    client.sendall(data)


def ask(address: str, port: str) -> None:
    """Sends a word and says what came back."""
    with socket.create_connection((address, int(port)), timeout=20) as server:
        server.sendall(b"word")
        print(f"{socket.gethostname()} got {server.recv(4).decode()}", flush=True)


def family() -> None:
    """A process with a child that cares for neither hang-ups nor its environment."""
    child = subprocess.Popen(["env", "-i", "setsid", "nohup", "sleep", "1000"], stdin=subprocess.DEVNULL)
    print(f"child {child.pid}", flush=True)
    signal.pause()


def own(kind: str) -> None:
    """Owns a cluster with a process on each host until it is killed."""
    cluster: Cluster | LoopbackCluster = Cluster(2) if kind == "Cluster" else LoopbackCluster(2)
    with cluster:
        pids = [host.start(["sleep", "1000"]).pid for host in cluster]
        print(cluster.name, *pids, flush=True)
        signal.pause()


def traces() -> str:
    """What a cluster could leave on the machine: namespaces, interfaces, addresses, rules, queues."""
    commands = (
        "ip netns",
        "ip link",
        "ip addr",
        "ip route",
        "iptables-save -t filter",
        "ip6tables-save -t filter",
        "tc qdisc",
    )
    outputs = [subprocess.run(one.split(), capture_output=True, text=True, check=True).stdout for one in commands]
    lines = [line for output in outputs for line in output.splitlines() if not line.startswith("#")]
    return "\n".join([*lines, f"/etc/netns: {Path('/etc/netns').exists()}"])


def leave_nothing() -> None:
    """Uses all that changes the machine, in a block that fails; run it where nobody else changes anything."""
    before = traces()
    try:
        with Cluster(3) as cluster:
            cluster[0].python("-m", "tests.cluster.programs", "family").wait_for("child")
            cluster[0].cut()
            cluster[1].unplug()
            cluster[2].limit("1gbit")
            cluster[2].intercept().stall()
            print(len(cluster[0].pids()), "processes", flush=True)
            raise ZeroDivisionError
    except ZeroDivisionError:
        print("the same" if traces() == before else f"before:\n{before}\nafter:\n{traces()}", flush=True)


if __name__ == "__main__":
    PROGRAMS: dict[str, Callable[..., None]] = {one.__name__: one for one in (echo, ask, family, own, leave_nothing)}
    PROGRAMS[sys.argv[1]](*sys.argv[2:])
