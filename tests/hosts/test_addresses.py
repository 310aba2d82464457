"""How agents find each other: address families, interfaces, port ranges, addresses that lead nowhere."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

import pytest

from tests.cluster.harness import Cluster
from tests.hosts.site import Options, Site
from tests.hosts.test_faults import data_port

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]
Network = Callable[[int], Cluster]
TOKEN = "t" * 32


def site_on(cluster: Cluster, *agent: str, listen: str = "") -> Site:
    """One slot on each host."""
    return Site(cluster.hosts, (1,) * len(cluster), Options(agent=agent, listen=listen, token=TOKEN))


def test_hosts_that_speak_ipv6_only(network: Network) -> None:
    cluster = network(3)
    for host in cluster:
        host.run(["ip", "addr", "del", f"{host.address}/24", "dev", "eth0"])
    site_on(cluster, listen=f"[{cluster[0].address6}]:0").check_ready()


def test_names_can_be_advertised(network: Network) -> None:
    cluster = network(2)
    options = [Options(agent=("--advertise", f"{host.name}-v6"), token=TOKEN) for host in cluster]
    site = Site(cluster.hosts, (1, 1), options[0], each=options)
    site.check_ready()


def test_an_interface_can_be_chosen(network: Network) -> None:
    cluster = network(2)
    for number, host in enumerate(cluster):
        host.run(["ip", "link", "add", "other0", "type", "veth", "peer", "other1"])
        host.run(["ip", "addr", "add", f"10.99.{number}.1/24", "dev", "other0"])
        host.run(["ip", "link", "set", "other0", "up"])
    site = site_on(cluster, "--interface", "eth0")
    site.check_ready()


def test_an_interface_that_is_missing_is_told(network: Network) -> None:
    cluster = network(1)
    agent = ["-m", "horovod.agent", "--coordinator", f"{cluster[0].address}:1", "--interface", "eth7"]
    process = cluster[0].python(*agent, env={"HVD_TOKEN": TOKEN})
    assert process.wait() == 2
    assert re.fullmatch(
        r"hvd-agent: error: There is no network interface 'eth7'; there are: .*eth0.*\n", process.output
    )


def test_ports_come_from_the_range(network: Network) -> None:
    cluster = network(2)
    site = site_on(cluster, "--data-ports", "7100-7101")
    assert [port_of(site, index) for index in range(2)] == [7100, 7100]
    site.check_ready()


def test_a_range_without_a_free_port_is_told(network: Network) -> None:
    cluster = network(1)
    site = site_on(cluster, "--data-ports", "7100-7100")
    where = ["--coordinator", site.address, "--name", "second", "--data-ports", "7100-7100"]
    second = cluster[0].python("-m", "horovod.agent", *where, env={"HVD_TOKEN": TOKEN})
    assert second.wait() == 2
    assert "hvd-agent: error: can't listen at any address, port 7100: " in second.output, second.output
    assert "--data-ports" in second.output


def test_an_address_that_leads_nowhere_costs_little(network: Network) -> None:
    """The first that is told swallows packets, as those of other networks often do."""
    cluster = network(3)
    for number, host in enumerate(cluster):
        host.run(["ip", "addr", "add", f"10.77.0.{100 + number}/24", "dev", "eth0"])
        ports = ["-p", "tcp", "--dport", "7100:7101"]
        host.run(["iptables", "-A", "INPUT", "-d", host.address, *ports, "-j", "DROP"])
    site = site_on(cluster, "--data-ports", "7100-7101")
    since = time.monotonic()
    site.check_ready()
    assert time.monotonic() - since < 12


def port_of(site: Site, index: int) -> int:
    """Where an agent listens for others."""
    return data_port(site.agents[index])[1]
