"""Hosts as network namespaces on one bridge, and what can be done to their links.

    hvdtest-PID-START-N-net: bridge br0 ── v0, v1, ...      hvdtest-PID-START-N-hI: eth0, the other end of vI

The bridge has a namespace of its own, so nothing of a cluster is in the machine's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import TypeVar

from benchmarks.cluster import links, namespaces, owners
from benchmarks.cluster.forwarder import Forwarder, original_target
from benchmarks.cluster.hosts import BaseCluster, Host, environment

T = TypeVar("T")
MOST_HOSTS = 200
# A host has its own name, for programs that ask the system for it.
_NAMED = ("unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"')


class NetworkHost(Host):
    """A namespace ``namespace`` with ``eth0``: ``address`` and ``address6``, names ``hI`` and ``hI-v6`` on all hosts."""

    def __init__(self, cluster: Cluster, index: int) -> None:
        super().__init__(f"h{index}", f"10.77.0.{index + 1}")
        self.address6 = f"fd77::{index + 1:x}"
        self.hardware_address = f"02:77:00:00:00:{index + 1:02x}"
        self.namespace = f"{cluster.name}-{self.name}"
        self._cluster = cluster
        self._port = f"v{index}"  # the link's end at the bridge
        self._rate: str | None = None

    def cut(self) -> None:
        """From now on nothing passes to or from other hosts, and nobody is told: no reset, no link down, no "no route"."""
        self._cluster.cut([(self, other) for other in self._cluster.hosts if other is not self])

    def heal(self) -> None:
        """Undoes all cuts of this host, and ``unplug()``."""
        namespaces.configure(self._cluster.bridge, [f"link set {self._port} up"])
        self._cluster.forget_cuts(self)

    def unplug(self) -> None:
        """Pulls the cable out at the bridge: this host sees its link down, others see nothing."""
        namespaces.configure(self._cluster.bridge, [f"link set {self._port} down"])

    def limit(self, rate: str | None) -> None:
        """At most this rate (``"1gbit"``) to this host and, separately, from it; None: as fast as it goes."""
        if rate != self._rate:
            links.limit(self.namespace, links.DEVICE, rate)
            links.limit(self._cluster.bridge, self._port, rate)
            self._rate = rate

    def intercept(self) -> Forwarder:
        """A forwarder through which all new TCP connections from other hosts to this host go, whatever their port.

        Programs here see them coming from this host.  Once per host; it holds until the cluster ends.
        """
        forwarder = self._keep(Forwarder([("0.0.0.0", 0), ("::", 0)], original_target, self._enter))
        links.redirect_tcp(self.namespace, dict(zip(("iptables", "ip6tables"), forwarder.ports, strict=True)))
        return forwarder

    def inside(self, work: Callable[[], T]) -> T:
        return namespaces.inside(self.namespace, work)

    def pids(self) -> list[int]:
        return namespaces.pids(self.namespace)

    def wrapped(self, argv: Sequence[str]) -> list[str]:
        return ["ip", "netns", "exec", self.namespace, *_NAMED, self.name, *argv]

    def _environment(self, more: Mapping[str, str] | None) -> dict[str, str]:
        return environment(more)

    def _enter(self) -> None:
        namespaces.enter(self.namespace)


class Cluster(BaseCluster[NetworkHost]):
    """``n`` hosts ``h0``, ``h1``, ... that reach each other over IPv4 and IPv6, and nothing else.

    Entering also removes what clusters of dead processes have left.
    """

    def __init__(self, n: int) -> None:
        if not 1 <= n <= MOST_HOSTS:
            raise ValueError(f"a cluster has 1 to {MOST_HOSTS} hosts, not {n}")
        super().__init__(n)
        self.name = owners.new_cluster_name()
        self.bridge = f"{self.name}-net"
        self._cuts: set[frozenset[NetworkHost]] = set()

    def __enter__(self) -> Cluster:
        super().__enter__()
        return self

    def cut_between(self, a: NetworkHost, b: NetworkHost) -> None:
        """As ``cut()`` of a host, between two hosts only."""
        self.cut([(a, b)])

    def cut(self, pairs: Iterable[tuple[NetworkHost, NetworkHost]]) -> None:
        """As ``cut_between()`` for many pairs, such as those of a cluster that falls into two parts."""
        added = {frozenset(pair) for pair in pairs}
        self._cuts |= added
        self._apply([host for host in self.hosts if any(host in pair for pair in added)])

    def heal(self) -> None:
        """Undoes all cuts, and all ``unplug()``."""
        namespaces.configure(self.bridge, [f"link set v{index} up" for index in range(self.n)])
        self._cuts.clear()
        self._apply(self.hosts)

    def forget_cuts(self, host: NetworkHost) -> None:
        """Undoes the cuts of one host."""
        self._cuts = {pair for pair in self._cuts if host not in pair}
        self._apply(self.hosts)

    def _apply(self, changed: Sequence[NetworkHost]) -> None:
        for host in changed:
            lost = {other for pair in self._cuts if host in pair for other in pair - {host}}
            links.drop_from(host.namespace, [other.hardware_address for other in lost])

    def _begin(self, stack: ExitStack) -> None:
        if reason := namespaces.why_not():
            raise RuntimeError(reason)
        namespaces.sweep()
        hosts = [NetworkHost(self, index) for index in range(self.n)]
        names = _hosts_file(hosts)
        for name in (self.bridge, *(host.namespace for host in hosts)):
            stack.callback(namespaces.remove, name)
            namespaces.add(name, names)
        for host in hosts:
            stack.callback(host.end)
        self._connect(hosts)
        self.hosts = hosts

    def _connect(self, hosts: Sequence[NetworkHost]) -> None:
        bridge = ["link add br0 type bridge forward_delay 0 mcast_snooping 0", "link set br0 up"]
        for index, host in enumerate(hosts):
            peer = f"peer name {links.DEVICE} address {host.hardware_address} netns {host.namespace}"
            bridge += [f"link add v{index} type veth {peer}", f"link set v{index} master br0 up"]
        namespaces.configure(self.bridge, bridge)
        for host in hosts:
            namespaces.configure(host.namespace, _addresses(host))


def _addresses(host: NetworkHost) -> list[str]:
    return [
        "link set lo up",
        f"addr add {host.address}/24 dev {links.DEVICE}",
        f"addr add {host.address6}/64 dev {links.DEVICE} nodad",
        f"link set {links.DEVICE} up",
    ]


def _hosts_file(hosts: Sequence[NetworkHost]) -> str:
    lines = [f"{host.address} {host.name}\n{host.address6} {host.name}-v6\n" for host in hosts]
    return "127.0.0.1 localhost\n::1 localhost\n" + "".join(lines)
