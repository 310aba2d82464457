"""Metrics as tables: a service lists what it exports, and a reader tells the values when somebody scrapes.

Nothing is counted here.  A value that a service does not have is left out, never made up; labels are bounded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import accumulate, islice
from typing import TypeVar

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

__all__ = [
    "MOST_LABELS",
    "Family",
    "Kind",
    "Metric",
    "Reader",
    "Sample",
    "StateCollector",
    "counter",
    "few",
    "gauge",
    "histogram",
    "registry",
]

MOST_LABELS = 1024  # values of one label; what is beyond has no series of its own
OTHERS = "other"

Key = TypeVar("Key", int, str)
Value = TypeVar("Value")
Family = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily


class Kind(Enum):
    """What Prometheus may do with the values."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    """One line of a table; ``help`` is a sentence."""

    name: str
    help: str
    kind: Kind
    labels: tuple[str, ...] = ()

    def at(self, value: float, *labels: str) -> Sample:
        """A value now."""
        return Sample(self, labels, value)

    def spread(self, counts: Sequence[tuple[float, int]], total: float, *labels: str) -> Sample:
        """A histogram: how many were at most each bound, and more than the bound before; the last has no bound, ``inf``."""
        below = list(accumulate(count for _, count in counts))
        bounds = ["+Inf" if bound == math.inf else f"{bound:.6g}" for bound, _ in counts]
        return Sample(self, labels, total, tuple(zip(bounds, below, strict=True)))

    def at_each(self, values: Mapping[Key, float]) -> Iterator[Sample]:
        """Values of a counter by its one label, smallest first; what is beyond the bound goes together."""
        items = sorted(values.items())
        for key, value in items[:MOST_LABELS]:
            yield self.at(value, str(key))
        if len(items) > MOST_LABELS:
            yield self.at(sum(value for _, value in items[MOST_LABELS:]), OTHERS)

    def family(self) -> Family:
        """What the client library calls it."""
        if self.kind is Kind.HISTOGRAM:
            return HistogramMetricFamily(self.name, self.help, labels=self.labels)
        if self.kind is Kind.COUNTER:
            return CounterMetricFamily(self.name, self.help, labels=self.labels)
        return GaugeMetricFamily(self.name, self.help, labels=self.labels)


@dataclass(frozen=True, slots=True)
class Sample:
    """A value of a metric; of a histogram the sum, and how many were at most each bound."""

    metric: Metric
    labels: tuple[str, ...]
    value: float
    buckets: tuple[tuple[str, int], ...] = ()


Reader = Callable[[], Iterable[Sample]]


def counter(name: str, text: str, *labels: str) -> Metric:
    """Only rises while the process lives."""
    return Metric(name, text, Kind.COUNTER, labels)


def gauge(name: str, text: str, *labels: str) -> Metric:
    """As it is now."""
    return Metric(name, text, Kind.GAUGE, labels)


def histogram(name: str, text: str, *labels: str) -> Metric:
    """How often what took how long."""
    return Metric(name, text, Kind.HISTOGRAM, labels)


def few(values: Mapping[Key, Value]) -> Iterator[tuple[Key, Value]]:
    """As many as may be labels, for values that can't be added up."""
    return islice(values.items(), MOST_LABELS)


class StateCollector(Collector):
    """Asks the reader at each scrape; what it says must be in the table."""

    def __init__(self, table: Sequence[Metric], read: Reader) -> None:
        self._table, self._read = table, read

    def describe(self) -> Iterator[Family]:
        """All that can ever come, without asking."""
        return (metric.family() for metric in self._table)

    def collect(self) -> Iterator[Family]:
        """The families that have values now, in the order of the table."""
        families = {metric.name: metric.family() for metric in self._table}
        for sample in self._read():
            family = families[sample.metric.name]
            if isinstance(family, HistogramMetricFamily):
                family.add_metric(sample.labels, sample.buckets, float(sample.value))
            else:
                family.add_metric(sample.labels, float(sample.value))
        return (family for family in families.values() if family.samples)


def registry(*collectors: Collector) -> CollectorRegistry:
    """A registry of these alone; ValueError when two of them have a name in common."""
    made = CollectorRegistry()
    for collector in collectors:
        made.register(collector)
    return made
