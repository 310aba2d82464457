"""Clusters for tests: ``Cluster(n)``, hosts as network namespaces; ``LoopbackCluster(n)``, hosts as loopback addresses.

    with Cluster(3) as cluster:
        a, b, c = cluster
        server = a.python("-m", "some.server", "--listen", f"{a.name}:0")
        port = server.wait_for(r"listening on .*:(\\d+)$")[1]
        assert "hello" in b.run(["some-client", f"{a.name}:{port}"]).stdout
        a.cut()

``Cluster`` needs root, iproute2 and iptables; ``why_not()`` tells what is missing.
"""

from __future__ import annotations

from benchmarks.cluster.forwarder import Forwarder
from benchmarks.cluster.loopback import LoopbackCluster, LoopbackHost
from benchmarks.cluster.namespaces import why_not
from benchmarks.cluster.netcluster import Cluster, NetworkHost
from benchmarks.cluster.processes import Process

__all__ = ["Cluster", "Forwarder", "LoopbackCluster", "LoopbackHost", "NetworkHost", "Process", "why_not"]
