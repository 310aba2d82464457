"""Places of many ranks as columns of a message, with the text of each agent and host once: RankPlaces in control.proto.

A cluster's places go to all of its agents whenever ranks start or an epoch begins, so their size counts twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

__all__ = ["pack", "unpack"]

_COLUMNS = ("rank", "local_rank", "local_size", "cross_rank", "cross_size")
T = TypeVar("T")


def pack(message: Any, places: Sequence[Any]) -> None:
    """Adds places, dataclasses, to an empty message.  An agent has one host."""
    message.SetInParent()
    hosts = {place.agent: place.host for place in places}
    message.agents.extend(hosts)
    message.hosts.extend(hosts.values())
    indices = {agent: index for index, agent in enumerate(hosts)}
    message.agent.extend(indices[place.agent] for place in places)
    for name in _COLUMNS:
        getattr(message, name).extend(getattr(place, name) for place in places)


def unpack(kind: type[T], message: Any) -> tuple[T, ...]:
    """The places as dataclasses of that kind; ValueError where the columns do not fit each other."""
    columns = [list(getattr(message, name)) for name in _COLUMNS]
    agents, hosts, indices = list(message.agents), list(message.hosts), list(message.agent)
    lengths = {len(column) for column in columns} | {len(indices)}
    if len(lengths) != 1 or len(agents) != len(hosts) or max(indices, default=-1) >= len(agents):
        raise ValueError(
            f"places whose columns have {sorted(lengths)} ranks, with {len(agents)} agents on {len(hosts)} hosts"
        )
    make: Any = kind
    return tuple(
        make(rank, agents[index], hosts[index], *others) for index, rank, *others in zip(indices, *columns, strict=True)
    )
