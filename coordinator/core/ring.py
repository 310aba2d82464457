"""The order in which agents pass data on: neighbours in the ring should be near each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from horovod.coordinator.core.commands import Host

Labels = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Ring:
    """Hosts in order, and why in this order."""

    hosts: tuple[Host, ...]
    reason: str


def order_ring(agents: Mapping[str, tuple[Host, Labels]]) -> Ring:
    """Agents with the same labels next to each other, by name where labels don't tell; the same input gives the same order."""
    keys = sorted({key for _, labels in agents.values() for key in labels})

    def place(name: str) -> tuple[tuple[str, ...], str]:
        labels = agents[name][1]
        return tuple(labels.get(key, "") for key in keys), name

    hosts = tuple(agents[name][0] for name in sorted(agents, key=place))
    return Ring(hosts, f"by {', '.join(f'label {key}' for key in keys)}, then by name" if keys else "by name")
