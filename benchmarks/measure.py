"""Measuring one case on several groups of ranks in turn."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from statistics import median

from benchmarks.cases import Case, Unsupported
from benchmarks.group import Group, PeerFailed
from benchmarks.peers import Peer
from benchmarks.stats import Summary, slowest, summarize

SAMPLE_S = 0.002  # a sample repeats a fast operation until it is about that long


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is measured: turns per series, seconds per turn, repetitions before the first."""

    rounds: int = 5
    budget_s: float = 0.4
    warm_up: int = 3
    fewest: int = 3
    most: int = 50


@dataclass(slots=True)
class Series:
    """One line of a result: what a group does with a case."""

    name: str
    group: Group
    case: Case
    samples: list[float] = field(default_factory=list)
    turns: list[float] = field(default_factory=list)  # the median of each
    inner: int = 1
    count: int = 1

    def prepare(self, effort: Effort) -> None:
        """Makes the tensors and finds how often to repeat."""
        self.group.order("prepare", name=self.name, case=self.case.to_json(), warm_up=effort.warm_up)
        probe_s = max(self._run(inner=1, samples=3))
        self.inner = max(1, min(5000, math.ceil(SAMPLE_S / max(probe_s, 1e-7))))
        self.count = max(effort.fewest, min(effort.most, int(effort.budget_s / (self.inner * max(probe_s, 1e-7)))))

    def take_turn(self) -> None:
        """Adds this turn's samples."""
        found = self._run(inner=self.inner, samples=self.count)
        self.samples += found
        self.turns.append(median(found))

    def _run(self, inner: int, samples: int) -> list[float]:
        answers = self.group.order("run", name=self.name, inner=inner, samples=samples)
        return slowest([answer["seconds"] for answer in answers])


@dataclass(slots=True)
class Outcome:
    """Summaries by name of the series, the medians of its turns, and reasons for those that are missing."""

    summaries: dict[str, Summary] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    turns: dict[str, list[float]] = field(default_factory=dict)

    def median_difference(self, name: str, base: str) -> float:
        """The median of what ``name`` took more than ``base`` in the same turn: a machine that slows down slows both."""
        return median(one - other for one, other in zip(self.turns[name], self.turns[base], strict=True))


@contextmanager
def _awake(group: Group) -> Iterator[None]:
    group.resume()
    try:
        yield
    finally:
        group.pause()


def measure(series: Sequence[Series], effort: Effort) -> Outcome:
    """Measures all series, in turns that start with another one each time."""
    outcome = Outcome()
    ready: list[Series] = []
    for one in series:
        with _awake(one.group):
            try:
                one.prepare(effort)
                ready.append(one)
            except (Unsupported, PeerFailed) as error:
                outcome.skipped[one.name] = str(error)
    for turn in range(effort.rounds):
        order = ready if turn % 2 else ready[::-1]  # neighbours stay neighbours, and each is the first of two in turn
        for position in range(len(ready)):
            one = order[(turn + position) % len(ready)]
            if one.name not in outcome.skipped:
                _take_turn(one, outcome)
    _drop_all(series)
    whole = [one for one in ready if one.name not in outcome.skipped]
    outcome.summaries = {one.name: summarize(one.samples) for one in whole}
    outcome.turns = {one.name: one.turns for one in whole}
    return outcome


def _take_turn(one: Series, outcome: Outcome) -> None:
    with _awake(one.group):
        try:
            one.take_turn()
        except PeerFailed as error:
            outcome.skipped[one.name] = str(error)


def _drop_all(series: Sequence[Series]) -> None:
    for group in {id(one.group): one.group for one in series}.values():
        with _awake(group), suppress(PeerFailed):
            group.order("drop")


@contextmanager
def running(peers: Sequence[Peer], size: int, threads: int) -> Iterator[tuple[dict[str, Group], dict[str, str]]]:
    """The groups that could be started, by name, and the reasons of the others."""
    with ExitStack() as stack:
        groups: dict[str, Group] = {}
        skipped = {peer.name: peer.missing for peer in peers if peer.missing}
        for peer in peers:
            if peer.missing:
                continue
            try:
                group = Group(peer, size, threads)
            except PeerFailed as error:
                skipped[peer.name] = str(error)
                continue
            stack.callback(group.close)
            groups[peer.name] = group
            group.pause()
        yield groups, skipped
