"""Who is measured, how its ranks are started, and why it may be missing."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from benchmarks.cluster.hosts import Host

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Peer:
    """``launch(size)`` is what stands before the worker's command; no launch: the parent starts the ranks itself.

    ``hosts``: where it starts them, in turn, or the launcher on the first.
    """

    name: str
    python: str = sys.executable
    launch: Callable[[int], list[str]] | None = None
    missing: str = ""
    works_when_idle: bool = False
    hosts: Sequence[Host] = ()
    variables: dict[str, str] = field(default_factory=dict)

    def commands(self, size: int, threads: int, folder: Path) -> list[list[str]]:
        """The commands that bring up all ranks."""
        worker = [self.python, "-m", "benchmarks.worker", "--peer", self.name]
        worker += ["--control", str(folder / "control"), "--threads", str(threads)]
        if self.launch is not None:
            return [self._on(0, [*self.launch(size), *worker])]
        group = ["--size", str(size), "--store", str(folder / "store")]
        return [self._on(rank, [*worker, *group, "--rank", str(rank)], is_rank=True) for rank in range(size)]

    def _on(self, index: int, command: list[str], is_rank: bool = False) -> list[str]:
        if not self.hosts:
            return command
        host = self.hosts[index % len(self.hosts)]
        return host.wrapped([*command, "--address", host.address] if is_rank else command)

    def environment(self) -> dict[str, str]:
        """Ours, with this repository importable."""
        path = os.pathsep.join(part for part in (str(ROOT), os.environ.get("PYTHONPATH", "")) if part)
        return {**os.environ, "PYTHONPATH": path, **self.variables}


def _missing_module(module: str, hint: str) -> str:
    return "" if importlib.util.find_spec(module) else f"{module} is not installed ({hint})"


def hvd(variables: dict[str, str] | None = None) -> Peer:
    """Ours, with these variables in the environment of launcher and ranks."""

    def launch(size: int) -> list[str]:
        return [sys.executable, "-m", "horovod.runner", "-np", str(size)]

    return Peer("hvd", launch=launch, missing=_missing_module("horovod", "make setup"), variables=variables or {})


def gloo() -> Peer:
    """torch.distributed with Gloo over the loopback device."""
    missing = _missing_module("torch", "pip install torch")
    return Peer("gloo", missing=missing, variables={"GLOO_SOCKET_IFNAME": "lo"})


def raw(hosts: Sequence[Host] = ()) -> Peer:
    """Plain sockets, from each host to the next."""
    return Peer("raw", hosts=hosts)


def openmpi() -> Peer:
    """Open MPI through mpi4py."""

    def launch(size: int) -> list[str]:
        root = ["--allow-run-as-root"] if os.getuid() == 0 else []
        return ["mpirun", *root, "--oversubscribe", "-np", str(size)]

    missing = "" if shutil.which("mpirun") else "mpirun is not installed (apt-get install openmpi-bin libopenmpi-dev)"
    return Peer("openmpi", launch=launch, missing=missing or _missing_module("mpi4py", "pip install mpi4py"))


def original(python: str) -> Peer:
    """The original Horovod, under an interpreter that has it."""

    def launch(size: int) -> list[str]:
        return [python, "-m", "horovod.runner.launch", "-np", str(size)]

    missing = "" if shutil.which(python) else f"there is no interpreter at {python}"
    # Its background thread wakes every millisecond, so its ranks are stopped while others are measured.
    return Peer("horovod", python=python, launch=launch, missing=missing, works_when_idle=True)


_TENSORFLOW = "pip install tensorflow"
_QUIET = {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "-1"}
_MOST_WORKERS = 16


def _free_ports(count: int) -> list[int]:
    """Ports that nobody listened on a moment ago."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [one.getsockname()[1] for one in sockets]


def keras() -> Peer:
    """Ours, with Keras on TensorFlow."""
    return replace(hvd(), name="keras", missing=_missing_module("tensorflow", _TENSORFLOW), variables=_QUIET)


def mirrored() -> Peer:
    """tf.distribute with two workers or more, over the loopback device."""
    missing = _missing_module("tensorflow", _TENSORFLOW)
    cluster = json.dumps({"cluster": {"worker": [f"127.0.0.1:{port}" for port in _free_ports(_MOST_WORKERS)]}})
    return Peer("mirrored", missing=missing, variables={**_QUIET, "TF_CONFIG": cluster})


PEERS = {"gloo": gloo, "openmpi": openmpi, "mirrored": mirrored}


def chosen(names: str, peer_python: str | None, with_ours: bool = True) -> list[Peer]:
    """The peers of a command line; ValueError for a name that is not known."""
    wanted = [name for name in names.split(",") if name]
    unknown = [name for name in wanted if name not in PEERS]
    if unknown:
        raise ValueError(f"unknown peer {', '.join(unknown)}; known: {', '.join(PEERS)}")
    peers = [hvd()] if with_ours else []
    peers += [PEERS[name]() for name in wanted]
    return peers + ([original(peer_python)] if peer_python else [])
