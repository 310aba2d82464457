"""The ring: the best one of few agents, a good one of many, and what is known of distances."""

from __future__ import annotations

import itertools
import math
import random

import pytest
from horovod.coordinator.core.commands import Host
from horovod.coordinator.core.distances import FRESH_S, LANDMARKS, Distances, landmarks, rounded
from horovod.coordinator.core.ring import MOST_STEPS, Cost, best_order, by_labels, good_order, length, order_ring
from horovod.coordinator.core.values import RoundTrip
from hypothesis import given
from hypothesis import strategies as st

FIVE = ("af", "bf", "cf", "df", "ef")


def names(ring: object) -> str:
    return "".join(host.agent for host in ring.hosts)  # type: ignore[attr-defined]


def agents(**labels: dict[str, str]) -> dict[str, tuple[Host, dict[str, str]]]:
    return {name: (Host(name, f"h{name}"), own) for name, own in labels.items()}


def measured(ways: dict[str, float]) -> Distances:
    """``{"ab": 0.1}``: a has measured b."""
    found = Distances()
    for pair, seconds in ways.items():
        found.learn(pair[0], [RoundTrip(pair[1], seconds)], "abcdefghij")
    found.check_invariants()
    return found


def shortest(count: int, cost: Cost) -> float:
    """The dumb twin: all rings."""
    return min(length((0, *rest), cost) for rest in itertools.permutations(range(1, count)))


def table(count: int, values: list[float]) -> Cost:
    ways = dict(zip(itertools.combinations(range(count), 2), values, strict=False))
    return lambda a, b: ways[min(a, b), max(a, b)]


def in_the_plane(count: int, seed: int) -> Cost:
    chance = random.Random(seed)
    places = [(chance.random(), chance.random()) for _ in range(count)]
    return lambda a, b: math.dist(places[a], places[b])


@given(st.integers(4, 7), st.lists(st.floats(0, 1), min_size=21, max_size=21))
def test_few_agents_get_the_shortest_ring(count: int, values: list[float]) -> None:
    cost = table(count, values)
    order = best_order(count, cost)
    assert sorted(order) == list(range(count))
    assert length(order, cost) <= shortest(count, cost) + 1e-9


@pytest.mark.parametrize("seed", range(40))
def test_a_good_ring_is_near_the_shortest_one(seed: int) -> None:
    cost = in_the_plane(8, seed)
    order = good_order(8, cost)
    assert sorted(order) == list(range(8))
    assert order[0] == 0
    assert length(order, cost) <= 1.1 * shortest(8, cost)


def test_the_order_stays_when_nothing_is_shorter() -> None:
    assert best_order(7, lambda a, b: 1.0) == list(range(7))
    assert good_order(30, lambda a, b: 1.0) == list(range(30))


def test_the_search_has_an_end() -> None:
    calls = 0
    near = in_the_plane(1000, 1)

    def cost(one: int, other: int) -> float:
        nonlocal calls
        calls += 1
        return near(one, other)

    assert sorted(good_order(1000, cost)) == list(range(1000))
    assert calls < 10 * MOST_STEPS


# ---- agents


def test_three_agents_stand_by_label_and_name() -> None:
    ring = order_ring(agents(c={}, a={"rack": "2"}, b={"rack": "1"}), measured({"ab": 1e-3}))
    assert (names(ring), ring.reason) == ("cba", "by label rack, then by name")


def test_near_agents_become_neighbours() -> None:
    near, far = 1e-4, 1e-2
    pairs = map("".join, itertools.combinations("abcdef", 2))
    ways = {pair: near if pair in ("ad", "be", "cf") else far for pair in pairs}
    ring = order_ring(agents(**{name: {} for name in "fedcba"}), measured(ways))
    neighbours = {frozenset(pair) for pair in itertools.pairwise(names(ring) + names(ring)[0])}
    assert {frozenset("ad"), frozenset("be"), frozenset("cf")} <= neighbours
    assert ring.reason == "by round trips (15 of 15 pairs measured), then by name"
    assert sorted(way for way in ring.round_trips_s if way is not None) == [near] * 3 + [far] * 3


def test_one_slow_link_is_left_out_of_the_ring() -> None:
    ways = {"".join(pair): 1e-4 for pair in itertools.combinations("abcd", 2)} | {"ab": 0.2}
    ring = order_ring(agents(a={}, b={}, c={}, d={}), measured(ways))
    assert ring.round_trips_s == (1e-4,) * 4
    assert names(ring)[0] == "a"


def test_labels_count_more_than_what_was_measured() -> None:
    ways = {"ac": 1e-4, "bd": 1e-4, "ab": 0.5, "cd": 0.5, "ad": 0.5, "bc": 0.5}
    racks = agents(a={"rack": "1"}, b={"rack": "1"}, c={"rack": "2"}, d={"rack": "2"})
    ring = order_ring(racks, measured(ways))
    assert names(ring) == "abdc"  # racks stay together; inside, the short ways are used
    assert ring.reason.startswith("by label rack, round trips (6 of 6")


def test_noise_does_not_shuffle_the_ring() -> None:
    chance = random.Random(7)
    for _ in range(20):
        ways = {"".join(p): 1e-3 * (1 + chance.random() / 20) for p in itertools.combinations("abcdefg", 2)}
        assert names(order_ring(agents(**{name: {} for name in "abcdefg"}), measured(ways))) == "abcdefg"


def test_deterministic_mode_goes_by_name() -> None:
    ways = {"".join(pair): 1e-4 for pair in itertools.combinations("abcd", 2)} | {"ab": 0.2}
    ring = order_ring(agents(d={}, a={"rack": "2"}, c={}, b={"rack": "1"}), measured(ways), deterministic=True)
    assert (names(ring), ring.reason) == ("abcd", "by name, as deterministic mode wants it")
    assert ring.round_trips_s[0] == 0.2


def test_many_agents_in_three_places_stay_together() -> None:
    """What landmarks tell is enough: 60 agents measure 8 of them, and each place is one part of the ring."""
    all_names = [f"n{number:02}" for number in range(60)]
    place = {name: index % 3 for index, name in enumerate(all_names)}
    known = Distances()
    for name, others in known.wanted(all_names, 0.0).items():
        assert len(others) <= LANDMARKS
        known.learn(name, [RoundTrip(o, 1e-4 if place[o] == place[name] else 5e-3) for o in others], all_names)
    ring = order_ring({name: (Host(name, name), {}) for name in all_names}, known)
    order = [place[host.agent] for host in ring.hosts]
    assert sum(before != after for before, after in zip(order, order[1:] + order[:1], strict=True)) == 3


# ---- distances


def test_pairs_are_asked_once_and_again_when_they_are_old() -> None:
    known = Distances()
    first = known.wanted("abcde", 0.0)
    pairs = [frozenset((name, other)) for name, others in first.items() for other in others]
    assert len(pairs) == len(set(pairs)) == 10
    assert known.wanted("abcde", 1.0) == {}
    new = known.wanted("abcdef", 1.0)
    assert {frozenset((name, other)) for name, others in new.items() for other in others} == set(map(frozenset, FIVE))
    known.forget("a")
    again = known.wanted("abcdef", 2.0)
    assert all("a" in (name, *others) for name, others in again.items())
    assert sum(map(len, again.values())) == 5
    assert sum(map(len, known.wanted("abcde", FRESH_S + 3).values())) == 10
    known.check_invariants()


def test_rings_that_can_not_differ_are_not_measured() -> None:
    assert Distances().wanted("abc", 0.0) == {}


def test_landmarks_are_spread_over_all() -> None:
    assert landmarks("abc") == ("a", "b", "c")
    assert landmarks([str(n) for n in range(80)]) == ("0", "10", "20", "30", "40", "50", "60", "70")


def test_what_is_not_measured_is_guessed() -> None:
    known = measured({"ac": 0.010, "bc": 0.002, "ad": 0.001, "bd": 0.008})
    assert known.guess("a", "b") == pytest.approx(0.008)
    assert known.guess("a", "c") == 0.010
    assert known.guess("a", "z") is None
    assert known.measured("a", "b") is None


def test_senseless_reports_are_not_believed() -> None:
    known = Distances()
    known.learn("a", [RoundTrip("a", 1.0), RoundTrip("z", 1.0), RoundTrip("b", -1.0), RoundTrip("c", math.nan)], "abc")
    known.learn("z", [RoundTrip("a", 1.0)], "abc")
    assert known.ways == {}


def test_close_times_are_the_same_time() -> None:
    assert rounded(1e-6) == rounded(4e-5) == 5e-5
    assert rounded(1.02e-3) == rounded(0.98e-3) != rounded(2e-3)


def test_labels_of_some_agents() -> None:
    assert by_labels({"b": {}, "a": {"rack": "1"}, "c": {}}) == ["b", "c", "a"]
