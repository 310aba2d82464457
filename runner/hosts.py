"""Hosts and their slots, as ``-H`` and host files name them.  Only this machine: others have agents."""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass
from pathlib import Path

from horovod.runner.settings import UsageProblem

__all__ = ["HostInfo", "local_slots", "parse_host_files", "parse_hosts"]

_ITEM = re.compile(r"^[\w.-]+:[0-9]+$")
_LINE = re.compile(r"^(?P<name>[\w.-]+)\s+slots\s*=\s*(?P<slots>[0-9]+)$")


@dataclass(frozen=True, slots=True)
class HostInfo:
    """A host and how many ranks it may run."""

    hostname: str
    slots: int


def parse_hosts(text: str) -> list[HostInfo]:
    """``h1:2,h2:4``; a ValueError for anything else."""
    hosts = []
    for item in text.split(","):
        if not _ITEM.match(item.strip()):
            raise UsageProblem(f"the host {item!r} must be written <host>:<slots>, for example localhost:2")
        name, _, slots = item.strip().partition(":")
        hosts.append(HostInfo(name, int(slots)))
    return hosts


def parse_host_files(path: str) -> list[HostInfo]:
    """Lines ``<name> slots=<n>``; blank lines and comments are skipped."""
    try:
        lines = Path(path).read_text().splitlines()
    except OSError as error:
        raise UsageProblem(f"the host file {path} can't be read: {error.strerror or error}") from error
    hosts = []
    for number, line in enumerate(lines, 1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        match = _LINE.match(text)
        if match is None:
            raise UsageProblem(f"{path}, line {number}: {text!r} must be written <host> slots=<n>")
        hosts.append(HostInfo(match["name"], int(match["slots"])))
    return hosts


def local_slots(hosts: list[HostInfo], num_proc: int) -> int:
    """The slots of this machine; UsageProblem for other machines, or when there are fewer than ranks."""
    own = socket.gethostname()
    names = {"localhost", "localhost.localdomain", "127.0.0.1", own, own.partition(".")[0]}
    for host in hosts:
        if host.hostname not in names:
            raise UsageProblem(
                f"the host {host.hostname} is not this machine ({own}): use -H localhost:{num_proc}, or start hvd-agent "
                "there and give --coordinator instead of hosts"
            )
    slots = sum(host.slots for host in hosts)
    if slots < num_proc:
        raise UsageProblem(f"the hosts have {slots} slots, but {num_proc} ranks were asked for: add slots or lower -np")
    return slots
