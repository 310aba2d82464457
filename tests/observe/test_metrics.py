"""Tables, labels, and what every daemon exports of itself."""

from __future__ import annotations

import asyncio
import math
import os

import pytest
from horovod.agent.metrics import TABLE as AGENT
from horovod.coordinator.metrics import TABLE as COORDINATOR
from horovod.observe.loop import LoopWatch
from horovod.observe.metrics import MOST_LABELS, Kind, Metric, StateCollector, counter, gauge, histogram, registry
from horovod.observe.process import TABLE as PROCESS
from horovod.observe.process import process_collector
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families as parse

from tests.aio import in_loop
from tests.observe.values import values_of

pytestmark = pytest.mark.timeout(30)

ALL = (*COORDINATOR, *AGENT, *PROCESS)
UNITS = ("seconds", "bytes")
# A word of a name that tells a unit which Prometheus would not have.
WRONG_UNITS = ("ms", "millis", "us", "kb", "mb", "percent", "minutes")
FEW_VALUES = {"state", "reason", "result", "collective", "plane", "phase", "stream", "kind"}
FEW_VALUES |= {"service", "version", "algorithm", "stage", "direction"}
CAPPED = {"agent", "rank", "neighbour"}  # by MOST_LABELS


@pytest.mark.parametrize("metric", ALL, ids=lambda metric: metric.name)
def test_names_follow_the_rules(metric: Metric) -> None:
    words = metric.name.split("_")
    assert words[0] == "hvd"
    assert (words[-1] == "total") == (metric.kind is Kind.COUNTER)
    assert not set(words) & set(WRONG_UNITS)
    assert metric.help.endswith(".")
    assert set(metric.labels) <= FEW_VALUES | CAPPED
    for unit in UNITS:
        assert unit not in words or words[-1] == unit or words[-2:] == [unit, "total"]


def test_names_are_told_once() -> None:
    for table in ((*COORDINATOR, *PROCESS), (*AGENT, *PROCESS)):
        assert len({metric.name for metric in table}) == len(table)
    # A name that coordinator and agents had in common would be added up by whoever forgets to tell them apart.
    assert not {metric.name for metric in COORDINATOR} & {metric.name for metric in AGENT}


def test_a_value_outside_the_table_is_an_error() -> None:
    known, unknown = gauge("hvd_known", "Known."), gauge("hvd_unknown", "Unknown.")
    with pytest.raises(KeyError):
        values_of(StateCollector((known,), lambda: [unknown.at(1)]))


def test_two_collectors_with_one_name_are_an_error() -> None:
    one = gauge("hvd_one", "One.")
    with pytest.raises(ValueError, match="Duplicated"):
        registry(StateCollector((one,), list), StateCollector((one,), list))


def test_registering_asks_nobody() -> None:
    def fail() -> list[object]:
        raise AssertionError("asked before a scrape")

    registry(StateCollector((gauge("hvd_one", "One."),), fail))  # type: ignore[arg-type]


def test_labels_are_escaped_and_values_keep_their_digits() -> None:
    metric = counter("hvd_x_total", 'With "quotes"\nand lines.', "agent")
    strange = 'a"b\\c\nd{}'
    text = generate_latest(registry(StateCollector((metric,), lambda: [metric.at(2**53 - 1, strange)]))).decode()
    (family,) = list(parse(text))
    (sample,) = family.samples
    assert (sample.name, sample.labels, sample.value) == ("hvd_x_total", {"agent": strange}, 2**53 - 1)


def test_a_histogram_counts_upwards() -> None:
    metric = histogram("hvd_x_seconds", "X.", "stage")
    sample = metric.spread([(0.001, 2), (0.5, 0), (math.inf, 3)], 7.5, "copy")
    text = generate_latest(registry(StateCollector((metric,), lambda: [sample]))).decode()
    (family,) = list(parse(text))
    assert family.type == "histogram"
    found = {(part.name, part.labels.get("le")): part.value for part in family.samples}
    assert found == {
        ("hvd_x_seconds_bucket", "0.001"): 2,
        ("hvd_x_seconds_bucket", "0.5"): 2,
        ("hvd_x_seconds_bucket", "+Inf"): 5,
        ("hvd_x_seconds_count", None): 5,
        ("hvd_x_seconds_sum", None): 7.5,
    }


def test_what_is_beyond_the_bound_goes_together() -> None:
    metric = counter("hvd_x_total", "X.", "rank")
    values = values_of(StateCollector((metric,), lambda: metric.at_each(dict.fromkeys(range(MOST_LABELS + 5), 1.5))))
    assert len(values) == MOST_LABELS + 1
    assert values['hvd_x_total{rank="other"}'] == 7.5


def test_a_process_says_what_it_uses() -> None:
    now = 10.0
    collector = process_collector("agent", lambda: now, lambda: 0.25)
    now = 12.5
    values = values_of(collector)
    assert (values["hvd_uptime_seconds"], values["hvd_loop_lag_seconds"]) == (2.5, 0.25)
    assert values["hvd_process_resident_bytes"] > 1 << 20
    assert values["hvd_process_cpu_seconds_total"] > 0
    before = values["hvd_process_open_descriptors"]
    descriptor = os.dup(0)
    assert values_of(collector)["hvd_process_open_descriptors"] == before + 1
    os.close(descriptor)
    (build,) = [name for name in values if name.startswith("hvd_build_info")]
    assert 'service="agent"' in build
    assert "hvd_loop_lag_seconds" not in values_of(process_collector("agent", lambda: now))


@in_loop
async def test_a_busy_loop_is_seen_and_forgotten() -> None:
    loop = asyncio.get_running_loop()
    watch = LoopWatch(period_s=0.001)
    assert watch.lag_s == 0
    end = loop.time() + 0.05
    while loop.time() < end:  # nothing else can run
        pass
    while watch.lag_s == 0:
        await asyncio.sleep(0)
    assert 0.04 < watch.lag_s < 5
    watch.close()
