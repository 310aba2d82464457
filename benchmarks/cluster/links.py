"""What happens on a host's link: cuts that nobody is told of, a pulled cable, a rate.

A cut drops what arrives, never what is sent: a sender whose own rules drop its packets is told so (EPERM for UDP, no
retransmission timer for TCP), and one that gets no answer to ARP learns of "no route" within seconds.  So each
receiver drops what comes from the others, by hardware address (one rule for every protocol address), and lets
neighbour discovery pass: ARP is not iptables' matter, ICMPv6 is let through.
"""

from __future__ import annotations

from collections.abc import Collection

from benchmarks.cluster.namespaces import call

DEVICE = "eth0"
_FAMILIES = {"iptables": "", "ip6tables": "! -p ipv6-icmp"}
# A burst must hold the largest packet that segmentation offload makes; the rest of the queue is 50 ms of the rate.
_BUCKET = ("burst", "128kb", "latency", "50ms")


def drop_from(namespace: str, hardware_addresses: Collection[str]) -> None:
    """From now on the namespace hears nothing from these, and everything from all others."""
    for tool, match in _FAMILIES.items():
        rules = [f"-A INPUT -m mac --mac-source {address} {match} -j DROP" for address in sorted(hardware_addresses)]
        text = "\n".join(["*filter", ":INPUT ACCEPT [0:0]", *rules, "COMMIT", ""])
        _in(namespace, f"{tool}-restore", "-w", text=text)


def redirect_tcp(namespace: str, ports: dict[str, int]) -> None:
    """Connections that come from outside end at these ports (by tool: that is, by address family)."""
    for tool, port in ports.items():
        rule = f"-A PREROUTING -i {DEVICE} -p tcp -j REDIRECT --to-ports {port}"
        _in(namespace, f"{tool}-restore", "-w", text=f"*nat\n:PREROUTING ACCEPT [0:0]\n{rule}\nCOMMIT\n")


def limit(namespace: str, device: str, rate: str | None) -> None:
    """What leaves by this device: at most this rate (``"1gbit"``, as tc spells it); None: no limit."""
    if rate is None:
        call("tc", "-n", namespace, "qdisc", "replace", "dev", device, "root", "noqueue")
    else:
        call("tc", "-n", namespace, "qdisc", "replace", "dev", device, "root", "tbf", "rate", rate, *_BUCKET)


def _in(namespace: str, *argv: str, text: str) -> None:
    call("ip", "netns", "exec", namespace, *argv, text=text)
