"""Wrong calls and failing ranks: an error that names the culprit, everywhere, in bounded time."""

from __future__ import annotations

import os
import re

import pytest

from tests.multi.conftest import RunRanks

TEXTS = {
    "dtype": "Mismatched data types",
    "shape": "Mismatched ALLREDUCE tensor shapes",
    "op": "Mismatched reduction operation",
    "prescale": "Mismatched prescale and/or postscale factors",
    "postscale": "Mismatched prescale and/or postscale factors",
    "root": "Mismatched BROADCAST root ranks",
    "device": "Mismatched ALLREDUCE CPU/GPU device selection",
    "kind": "Mismatched operations",
}


@pytest.mark.parametrize("field", list(TEXTS))
def test_mismatch(run_ranks: RunRanks, field: str) -> None:
    run = run_ranks(2, "mismatch", field)
    first = [line for line in run.ranks[0] if line.startswith("error: ")]
    assert TEXTS[field] in first[0]
    assert first == [line for line in run.ranks[1] if line.startswith("error: ")]


def test_rank_raises(run_ranks: RunRanks) -> None:
    run = run_ranks(2, "fails", "raise", ok=False)
    assert run.code == 1
    assert "RuntimeError: on purpose" in run.said(1)
    assert "ShutDownError: allreduce.g: " in run.said(0)
    assert "ShutDownError: allreduce.later: " in run.said(0)
    assert run.said(0).count("rank 1 (host ") == run.said(0).count("raised RuntimeError: on purpose. Its output") == 2
    assert "join" not in run.said(0)


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ("code", "rank 1 (host {}) exited with code 3. Its output says more."),
        ("text", "rank 1 (host {}) exited with code 1. Its output says more."),
        ("thread", "rank 1 (host {}) raised KeyError: 'the cause'. Its output says more."),
        ("nothing", "rank 1 (host {}) called hvd.shutdown() or finished."),
    ],
)
def test_a_rank_that_ends_early_says_why(run_ranks: RunRanks, how: str, text: str) -> None:
    run = run_ranks(2, "tests.multi.departures.ends", how, ok=False, HVD_DEADLOCK_GRACE_SECONDS="0")
    heard = re.sub(r"\(host [^)]*\)", "(host {})", run.said(0))
    assert f"ShutDownError: allreduce.known: Horovod has been shut down: {text}" in heard, run.output
    assert ("join" in heard) == (how == "nothing")


def test_threads_go_on_when_the_main_thread_has_ended(run_ranks: RunRanks) -> None:
    run_ranks(2, "tests.multi.departures.main_ends_first")


@pytest.mark.parametrize(("how", "code"), [("exit", None), ("exit code", 7), ("kill", 137)])
def test_rank_dies(run_ranks: RunRanks, how: str, code: int | None) -> None:
    run = run_ranks(3, "fails", how, ok=False)
    assert run.code == code if code else run.code != 0, run.output
    for rank in (0, 1):
        assert run.said(rank).count("RankLostError") == 2, run.output
        assert "Rank 2" in run.said(rank)


def test_rank_is_killed_inside_a_round(run_ranks: RunRanks) -> None:
    run = run_ranks(2, "killed_inside_a_round", ok=False)
    assert run.code == 137, run.output
    assert "Rank 1" in run.said(0)


def test_stopped_rank_is_warned_about_and_fails_at_the_limit(run_ranks: RunRanks) -> None:
    limits = {"HOROVOD_STALL_CHECK_TIME_SECONDS": "1", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "3"}
    run = run_ranks(2, "fails", "stop", ok=False, **limits)
    assert run.code != 0
    assert "StalledError" in run.said(0), run.output
    assert "stopped" in run.output


def test_cycle_of_two_names_fails_after_the_grace(run_ranks: RunRanks) -> None:
    run = run_ranks(2, "tests.multi.deadlocks.cycle", "no", HVD_DEADLOCK_GRACE_SECONDS="1")
    for rank in (0, 1):
        assert "allreduce.a" in run.said(rank)
        assert "allreduce.b" in run.said(rank)


def test_second_thread_that_submits_in_time_prevents_it(run_ranks: RunRanks) -> None:
    run_ranks(2, "tests.multi.deadlocks.cycle", "yes", HVD_DEADLOCK_GRACE_SECONDS="1")


@pytest.mark.parametrize(("other", "name"), [("allreduce", "allreduce.a"), ("gather", "allgather.a"), ("join", "join")])
def test_cycle_with_a_process_set_call_fails_after_the_grace(run_ranks: RunRanks, other: str, name: str) -> None:
    variables = {"HOROVOD_DYNAMIC_PROCESS_SETS": "1", "HVD_DEADLOCK_GRACE_SECONDS": "1"}
    run = run_ranks(2, "tests.multi.deadlocks.cycle_of_calls", other, **variables)
    for rank in (0, 1):
        assert "waits for 'add process set [0]'" in run.said(rank)
        assert f"waits for {name!r}" in run.said(rank)


@pytest.mark.parametrize("what", ["nothing", "shape", "dtype", "prescale", "root", "kind"])
def test_cycle_with_a_name_that_was_used_for_something_else(run_ranks: RunRanks, what: str) -> None:
    run = run_ranks(2, "tests.multi.deadlocks.cycle_after_a_change", what, HVD_DEADLOCK_GRACE_SECONDS="1")
    for rank in (0, 1):
        assert "rank 1 (host " in run.said(rank)
        assert "waits for 'x.known'" in run.said(rank)


@pytest.mark.parametrize("first", ["new", "known"])
def test_cycle_with_an_operation_behind_another_one(run_ranks: RunRanks, first: str) -> None:
    run = run_ranks(2, "tests.multi.deadlocks.cycle_behind_another_operation", first, HVD_DEADLOCK_GRACE_SECONDS="1")
    for rank in (0, 1):
        assert "waits for 'allreduce.noname'" in run.said(rank)


SMALL_ARENA = {"HVD_ARENA_BYTES": str(1 << 20), "HVD_DEADLOCK_GRACE_SECONDS": "2"}


@pytest.mark.parametrize("name", ["g", ""])
@pytest.mark.parametrize("warm", [0, 3])
@pytest.mark.parametrize("np", [1, 3])
def test_a_rank_without_room_is_named_on_all_ranks(run_ranks: RunRanks, np: int, warm: int, name: str) -> None:
    run = run_ranks(np, "no_room", name, str(warm), **SMALL_ARENA)
    for rank in range(np):
        assert f"rank {np - 1} (host " in run.said(rank), run.output
        assert "no room for 100000 bytes" in run.said(rank)
        assert f"error: 'allreduce.{name or 'noname'}" in run.said(rank)


def test_a_rank_without_room_to_publish_is_named_on_all_ranks(run_ranks: RunRanks) -> None:
    run = run_ranks(2, "no_room_to_publish", **SMALL_ARENA)
    for rank in (0, 1):
        assert "'allgather.rows' was refused on all ranks: rank 1" in run.said(rank), run.output
        assert "'allreduce.blocking' was refused on all ranks: rank 1" in run.said(rank)


def test_what_is_too_large_for_every_arena_is_refused_and_the_next_works(run_ranks: RunRanks) -> None:
    run = run_ranks(2, "too_large_for_the_arena", **SMALL_ARENA)
    for rank in (0, 1):
        assert "no room for 4000000 bytes" in run.said(rank), run.output


def test_process_that_only_inherited_its_rank(run_ranks: RunRanks) -> None:
    run_ranks(2, "stranger")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can start a process of another user: THIS CHECK DID NOT RUN")
def test_process_of_another_user(run_ranks: RunRanks) -> None:
    run = run_ranks(2, "other_user")
    for rank in (0, 1):
        assert "runs as user 65534, the agent of this host as user 0" in run.said(rank), run.output
