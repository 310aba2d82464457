"""Network namespaces: making, entering, finding their processes, removing them and what dead owners left.

Everything lives in namespaces, the bridge too: the machine's own interfaces, addresses and rules are never touched, and
two clusters use the same addresses without meeting.
"""

from __future__ import annotations

import ctypes
import functools
import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import TypeVar

from benchmarks.cluster import owners, processes

T = TypeVar("T")
FOLDER = Path("/run/netns")
ETC = Path("/etc/netns")  # `ip netns exec` binds the files of ETC/NAME over those of /etc
TOOLS = ("ip", "tc", "iptables-restore", "ip6tables-restore", "unshare", "hostname")
_CLONE_NEWNET = 0x40000000
_TOOL_LIMIT_S = 30.0


def call(*argv: str, text: str = "") -> str:
    """Runs a tool, with ``text`` as its input, and returns what it printed; a failure tells the tool's own words."""
    done = subprocess.run(argv, input=text, capture_output=True, text=True, timeout=_TOOL_LIMIT_S, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(argv)}: exit code {done.returncode}: {done.stderr.strip()}\n{text}".strip())
    return done.stdout


@functools.cache
def why_not() -> str | None:
    """Why this process can't make namespaces; None if it can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if missing := [tool for tool in TOOLS if not shutil.which(tool)]:
        return f"{', '.join(missing)} not found: apt-get install iproute2 iptables"
    name = owners.new_cluster_name()
    try:
        call("ip", "netns", "add", name)
        remove(name)
    except RuntimeError as problem:
        return f"network namespaces don't work here: {problem}"
    return None


def add(name: str, hosts_file: str) -> None:
    """A namespace; ``hosts_file`` is what its processes see as /etc/hosts."""
    _make(ETC / name)
    (ETC / name / "hosts").write_text(hosts_file)
    call("ip", "netns", "add", name)


def _make(folder: Path) -> None:
    while not folder.exists():
        try:
            folder.mkdir(parents=True)
        except FileNotFoundError:  # another cluster's end has just removed the parent
            continue


def configure(name: str, lines: Sequence[str]) -> None:
    """Commands of ``ip`` inside the namespace."""
    call("ip", "-n", name, "-batch", "-", text="".join(f"{line}\n" for line in lines))


def remove(name: str) -> None:
    """Ends the processes of a namespace and removes it.  Somebody else may be removing it too."""
    processes.end(lambda: pids(name))
    try:
        call("ip", "netns", "del", name)
    except RuntimeError:
        if (FOLDER / name).exists():
            raise
    shutil.rmtree(ETC / name, ignore_errors=True)
    with suppress(OSError):  # others use it, or it is gone
        ETC.rmdir()


def sweep() -> list[str]:
    """Removes the namespaces whose owners are dead; returns their names."""
    found = {path.name for folder in (FOLDER, ETC) if folder.is_dir() for path in folder.iterdir()}
    stale = sorted(name for name in found if owners.is_stale(name))
    for name in stale:
        remove(name)
    return stale


def pids(name: str) -> list[int]:
    """Processes whose network is this namespace's.  Threads of this process that have entered it are not among them."""
    try:
        wanted = (FOLDER / name).stat()
    except OSError:
        return []
    return [pid for pid in processes.all_pids() if pid != os.getpid() and _is_in(pid, wanted)]


def _is_in(pid: int, wanted: os.stat_result) -> bool:
    try:
        return os.path.samestat(os.stat(f"/proc/{pid}/ns/net"), wanted)
    except OSError:
        return False


def enter(name: str) -> None:
    """Moves the calling thread into a namespace for good: call it only in a thread made for that."""
    descriptor = os.open(FOLDER / name, os.O_RDONLY | os.O_CLOEXEC)
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(descriptor, _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"can't enter {name}")
    finally:
        os.close(descriptor)


def inside(name: str, work: Callable[[], T]) -> T:
    """What ``work`` returns in a thread inside the namespace.  Sockets stay in the namespace that they are made in."""
    result: Future[T] = Future()

    def body() -> None:
        try:
            enter(name)
            result.set_result(work())
        except BaseException as problem:
            result.set_exception(problem)

    thread = Thread(target=body, name=f"inside {name}")
    thread.start()
    thread.join()
    return result.result()
