"""The order in which agents pass data on: neighbours in the ring should be near each other.

Near is first who has the same labels, which somebody has set on purpose, then who answers soon.  Few agents get the best ring that
there is; more get a good one, looked for with a bounded number of steps, as an epoch waits for it.  Where nothing tells two agents
apart they stand by name, and the same input gives the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from horovod.coordinator.core.commands import Host
from horovod.coordinator.core.distances import FEWEST, FINEST_S, LANDMARKS, Distances, rounded

Labels = Mapping[str, str]
Cost = Callable[[int, int], float]

OTHER_LABEL_S = 1e3  # more than any way takes
MOST_EXACT = 8
MOST_STEPS = 50_000  # of the search for a good ring: about a tenth of a second
MOST_NEIGHBOURS = 12  # so far apart two places may be that the search joins, where there are many
LONGEST_MOVE = 3
WORTH = 0.8  # a ring must be shorter than so much of the one by label and name, else that one stays


@dataclass(frozen=True, slots=True)
class Ring:
    """Hosts in order, why in this order, and the measured round trip from each to the next, None where nobody measured."""

    hosts: tuple[Host, ...]
    reason: str
    round_trips_s: tuple[float | None, ...] = ()


def order_ring(
    agents: Mapping[str, tuple[Host, Labels]], distances: Distances | None = None, deterministic: bool = False
) -> Ring:
    """The ring of these agents; ``deterministic``: by name, whatever was measured."""
    distances = distances or Distances()
    keys = sorted({key for _, labels in agents.values() for key in labels})
    if deterministic:
        return _ring(agents, sorted(agents), "by name, as deterministic mode wants it", distances)
    names = by_labels({name: labels for name, (_, labels) in agents.items()})
    words = [f"label {key}" for key in keys]
    measured = sum(len(distances.ways.get(name, {}).keys() & agents.keys()) for name in names) // 2
    if len(names) >= FEWEST and measured:
        names = _near(names, {name: agents[name][1] for name in names}, keys, distances)
        pairs = len(names) * (len(names) - 1) // 2
        words.append(f"round trips ({measured} of {pairs} pairs measured)")
    return _ring(agents, names, f"by {', '.join(words)}, then by name" if words else "by name", distances)


def by_labels(labels: Mapping[str, Labels]) -> list[str]:
    """Agents with the same labels next to each other, by name where labels don't tell."""
    keys = sorted({key for own in labels.values() for key in own})
    return sorted(labels, key=lambda name: (tuple(labels[name].get(key, "") for key in keys), name))


def _ring(agents: Mapping[str, tuple[Host, Labels]], names: Sequence[str], reason: str, distances: Distances) -> Ring:
    following = [*names[1:], *names[:1]]
    trips = tuple(distances.measured(one, other) for one, other in zip(names, following, strict=True))
    return Ring(tuple(agents[name][0] for name in names), reason, trips)


def _near(names: list[str], labels: Mapping[str, Labels], keys: Sequence[str], distances: Distances) -> list[str]:
    """The names in a better order; they come sorted by label and name, and stay so where others would gain little."""
    start = names if len(names) <= MOST_EXACT else _by_landmarks(names, labels, keys, distances)
    ways = _Ways(start, labels, keys, distances)
    order = best_order(len(start), ways.cost) if len(start) <= MOST_EXACT else good_order(len(start), ways.cost)
    index = {name: number for number, name in enumerate(start)}
    before, after = length([index[name] for name in names], ways.cost), length(order, ways.cost)
    labels_apart = before // OTHER_LABEL_S * OTHER_LABEL_S
    if after - labels_apart > WORTH * (before - labels_apart):
        return names
    return [start[number] for number in order]


class _Ways:
    """What it costs to be neighbours; each pair is worked out once."""

    def __init__(
        self, names: Sequence[str], labels: Mapping[str, Labels], keys: Sequence[str], distances: Distances
    ) -> None:
        self._names, self._distances = names, distances
        self._marks = [tuple(labels[name].get(key, "") for key in keys) for name in names]
        measured = sorted(way for name in names for way in distances.ways.get(name, {}).values())
        self._middle = measured[len(measured) // 2]  # for pairs of which nothing is known
        self._known: dict[tuple[int, int], float] = {}

    def cost(self, one: int, other: int) -> float:
        """Of two places in the list of names."""
        pair = (one, other) if one < other else (other, one)
        if pair not in self._known:
            guess = self._distances.guess(self._names[one], self._names[other])
            apart = sum(a != b for a, b in zip(self._marks[one], self._marks[other], strict=True))
            way = max(self._middle if guess is None else guess, FINEST_S)
            self._known[pair] = apart * OTHER_LABEL_S + way
        return self._known[pair]


def _by_landmarks(
    names: list[str], labels: Mapping[str, Labels], keys: Sequence[str], distances: Distances
) -> list[str]:
    """Agents that see the landmarks alike next to each other."""
    marks = sorted(names, key=lambda name: -len(distances.ways.get(name, ())))[:LANDMARKS]

    def place(name: str) -> tuple[tuple[str, ...], int, tuple[float, ...]]:
        ways = distances.ways.get(name, {})
        seen = tuple(0.0 if mark == name else rounded(ways[mark]) if mark in ways else float("inf") for mark in marks)
        return tuple(labels[name].get(key, "") for key in keys), seen.index(min(seen)), seen

    return sorted(names, key=place)


def length(order: Sequence[int], cost: Cost) -> float:
    """Of a ring, all the way round."""
    return sum(cost(order[index - 1], order[index]) for index in range(len(order)))


def best_order(count: int, cost: Cost) -> list[int]:
    """The shortest ring, 0 first; the order as it is when nothing is shorter."""
    ways: dict[tuple[int, int], tuple[float, tuple[int, ...]]] = {
        (1, 0): (0.0, (0,))
    }  # (visited, last) -> shortest way
    for _ in range(count - 1):
        longer: dict[tuple[int, int], tuple[float, tuple[int, ...]]] = {}
        for (visited, last), (so_far, way) in ways.items():
            for after in range(1, count):
                if visited >> after & 1:
                    continue
                key, found = (visited | 1 << after, after), (so_far + cost(last, after), (*way, after))
                if key not in longer or found[0] < longer[key][0]:
                    longer[key] = found
        ways = longer
    best = list(min(ways.values(), key=lambda found: found[0] + cost(found[1][-1], 0))[1])
    asis = list(range(count))
    return best if length(best, cost) < length(asis, cost) - 1e-12 else asis


def good_order(count: int, cost: Cost, most_steps: int = MOST_STEPS) -> list[int]:
    """A ring that no small change makes shorter, or the best one after that many steps; begins with the order as it is."""
    order, steps, improved = list(range(count)), 0, True
    reach = count if count * count <= most_steps // 8 else MOST_NEIGHBOURS
    while improved and steps < most_steps:
        improved = False
        for start in range(count - 1):
            for end in range(start + 1, min(count, start + 1 + reach)):
                steps += 1
                improved |= _turn(order, start, end, cost)
            for size in range(1, LONGEST_MOVE + 1):
                steps += reach
                improved |= _move(order, start, size, reach, cost)
            if steps >= most_steps:
                break
    first = order.index(0)
    return order[first:] + order[:first]


def _turn(order: list[int], start: int, end: int, cost: Cost) -> bool:
    """Turns a part of the ring round, if that makes it shorter."""
    before, after = order[start - 1], order[(end + 1) % len(order)]
    first, last = order[start], order[end]
    if before == last or cost(before, last) + cost(first, after) >= cost(before, first) + cost(last, after) - 1e-12:
        return False
    order[start : end + 1] = order[start : end + 1][::-1]
    return True


def _move(order: list[int], start: int, size: int, reach: int, cost: Cost) -> bool:
    """Moves a few neighbours to the best place within reach, if that makes the ring shorter."""
    part, rest = order[start : start + size], order[:start] + order[start + size :]
    if len(part) < size or len(rest) < 2:
        return False
    gained = (
        cost(order[start - 1], part[0])
        + cost(part[-1], rest[start % len(rest)])
        - cost(rest[start - 1], rest[start % len(rest)])
    )
    places = range(max(0, start - reach), min(len(rest), start + reach))
    price, at = min(
        (cost(rest[at - 1], part[0]) + cost(part[-1], rest[at]) - cost(rest[at - 1], rest[at]), at) for at in places
    )
    if price >= gained - 1e-12:
        return False
    order[:] = rest[:at] + part + rest[at:]
    return True


__all__ = [
    "LONGEST_MOVE",
    "MOST_EXACT",
    "MOST_NEIGHBOURS",
    "MOST_STEPS",
    "OTHER_LABEL_S",
    "WORTH",
    "Ring",
    "best_order",
    "by_labels",
    "good_order",
    "length",
    "order_ring",
]
