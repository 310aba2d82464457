"""Shapes, statistics, verdicts and the worker's dialogue: everything of the benchmarks that does not measure."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.cases import Case, Unsupported, single
from benchmarks.gradients import added_s
from benchmarks.measure import Outcome
from benchmarks.report import format_s, percent_of_floor
from benchmarks.shapes import gpt2_small, layers, resnet50, small, total_bytes
from benchmarks.stats import Summary, slowest, summarize
from benchmarks.targets import ALLREDUCE, GRADIENTS, TENSORFLOW_FIT, AtLeast, AtMost, AtMostTimes, judge_all
from benchmarks.worker import Worker


@pytest.mark.parametrize(
    ("shapes", "count", "nbytes"),
    [
        (resnet50(), 161, 4 * 25_557_032),
        (gpt2_small(), 148, 4 * 124_439_808),
        (small(), 500, 500 * 4096),
        (layers(), 160, 84_049_920),
    ],
)
def test_shapes_are_those_of_the_networks(shapes: list[tuple[int, ...]], count: int, nbytes: int) -> None:
    assert (len(shapes), total_bytes(shapes)) == (count, nbytes)


def test_a_repetition_counts_as_its_slowest_rank() -> None:
    assert slowest([[1.0, 5.0], [2.0, 3.0]]) == [2.0, 5.0]


def test_summary() -> None:
    summary = summarize([4.0, 1.0, 2.0, 3.0, 5.0])
    assert (summary.median_s, summary.q1_s, summary.q3_s, summary.best_s, summary.samples) == (3.0, 2.0, 4.0, 1.0, 5)
    assert summary.spread == pytest.approx(2 / 3)
    assert summarize([2.0]).median_s == 2.0


def _outcome(**medians: float) -> Outcome:
    named = {name.replace("_", "-"): value for name, value in medians.items()}
    summaries = {name: Summary(value, value, value, value, 1) for name, value in named.items()}
    return Outcome(summaries, turns={name: [value] for name, value in named.items()})


def test_percent_of_floor() -> None:
    assert percent_of_floor(_outcome(hvd=4.0, hvd_arena=2.0, floor=1.0))["hvd-arena"] == 50
    assert percent_of_floor(_outcome(hvd=4.0)) == {}


def test_added_time_refers_to_the_same_ranks() -> None:
    added = added_s(_outcome(hvd_alone=1.0, hvd=1.5, gloo_alone=1.2, gloo=2.2, other=9.0))
    assert added == {"hvd": pytest.approx(0.5), "gloo": pytest.approx(1.0)}
    assert added_s(_outcome(hvd_single=1.0, hvd_alone=1.2, hvd=1.5), "single") == {"hvd": pytest.approx(0.5)}


def test_added_time_is_taken_turn_by_turn() -> None:
    """A machine that became slower in one turn of three, and had a hiccup in another."""
    outcome = _outcome(hvd_alone=1.0, hvd=1.5)
    outcome.turns = {"hvd-alone": [1.0, 3.0, 1.0], "hvd": [1.5, 3.5, 9.0]}
    assert added_s(outcome) == {"hvd": pytest.approx(0.5)}


@pytest.mark.parametrize(("ours", "is_met"), [(1.5, True), (1.6, False), (None, None)])
def test_a_ratio_that_may_not_be_exceeded(ours: float | None, is_met: bool | None) -> None:
    values = {"hvd": 1.0} | ({"keras": ours} if ours else {})
    assert AtMostTimes("text", "case", "keras", "hvd", 1.5).judge({"case": values}).is_met is is_met


@pytest.mark.parametrize(("theirs", "is_met"), [(8.0, True), (7.9, False), (None, None)])
def test_a_ratio(theirs: float | None, is_met: bool | None) -> None:
    values = {"hvd": 1.0} | ({"gloo": theirs} if theirs else {})
    assert AtLeast("text", "case", "hvd", "gloo", 8).judge({"case": values}).is_met is is_met


@pytest.mark.parametrize(("value", "is_met"), [(0.002, True), (0.0021, False)])
def test_a_limit(value: float, is_met: bool) -> None:
    verdict = AtMost("text", "case", "hvd", 2e-3, "ms", 1e-3).judge({"case": {"hvd": value}})
    assert verdict.is_met is is_met
    assert "at most 2 ms" in verdict.text


def test_targets_that_were_not_measured_are_not_missed() -> None:
    assert {verdict.is_met for verdict in judge_all([*ALLREDUCE, *GRADIENTS, *TENSORFLOW_FIT], {})} == {None}


@pytest.mark.parametrize(("seconds", "text"), [(2.0, "2 s"), (0.0042, "4.2 ms"), (1.25e-5, "12.5 us")])
def test_seconds_for_people(seconds: float, text: str) -> None:
    assert format_s(seconds) == text


class FakeTask:
    """Counts repetitions."""

    def __init__(self) -> None:
        self.runs: list[int] = []

    def check(self) -> None:
        """Always right."""

    def run(self, count: int) -> None:
        """Takes a note."""
        self.runs.append(count)


class FakeDriver:
    """Makes one kind of task."""

    rank, size = 0, 1

    def __init__(self) -> None:
        self.task = FakeTask()

    def make(self, case: Case) -> FakeTask:
        """Only float32."""
        if case.dtype != "float32":
            raise Unsupported("no other dtype")
        return self.task

    def settle(self) -> None:
        """Nothing."""

    def versions(self) -> dict[str, str]:
        """None."""
        return {}

    def close(self) -> None:
        """Nothing."""


def _prepare(dtype: str) -> dict[str, Any]:
    return {"do": "prepare", "name": "n", "case": single(64, dtype).to_json(), "warm_up": 3}


def test_a_worker_warms_up_and_repeats_as_told() -> None:
    driver = FakeDriver()
    worker = Worker(driver)
    assert worker.handle(_prepare("float32")) == {}
    answer = worker.handle({"do": "run", "name": "n", "inner": 7, "samples": 2})
    assert len(answer["seconds"]) == 2
    assert driver.task.runs == [3, 1, 7, 7]


class SelfTimed(FakeTask):
    """A task that times itself."""

    def timed(self, count: int) -> list[float]:
        """As many samples as were asked for."""
        return [0.25] * count


def test_a_task_may_time_itself() -> None:
    worker = Worker(FakeDriver())
    task = worker.tasks["fit"] = SelfTimed()
    assert worker.handle({"do": "run", "name": "fit", "inner": 7, "samples": 3}) == {"seconds": [0.25] * 3}
    assert task.runs == []


def test_a_worker_says_what_a_peer_cannot_do() -> None:
    assert Worker(FakeDriver()).handle(_prepare("float16")) == {"unsupported": "no other dtype"}


def test_a_worker_survives_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    assert "KeyError" in Worker(FakeDriver()).handle({"do": "run", "name": "n", "inner": 1, "samples": 1})["error"]
    assert "Traceback" in capsys.readouterr().err


def test_a_case_survives_the_wire() -> None:
    case = Case("async", resnet50())
    assert Case.from_json(case.to_json()) == case
