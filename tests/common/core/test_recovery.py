"""What follows an attempt that did not return."""

from __future__ import annotations

import pytest
from horovod.common.core.recovery import FIRST_ATTEMPT, Attempt, GiveUp, Recovery, objection_of_fixed_job


def test_the_first_attempt_neither_resets_nor_skips() -> None:
    assert Attempt(resets=False, may_skip_sync=False, cause="") == FIRST_ATTEMPT


@pytest.mark.parametrize("skip", [False, True])
def test_after_an_update_the_state_stays(skip: bool) -> None:
    assert Recovery().after_update(skip) == Attempt(resets=True, may_skip_sync=skip, cause="")


def test_after_a_failure_all_synchronise() -> None:
    assert Recovery().after_failure(0, "", "RankLostError: gone") == Attempt(cause="RankLostError: gone")


def test_an_objection_is_the_advice() -> None:
    assert Recovery().after_failure(0, "because", "x") == GiveUp("because")


def test_a_failure_is_repeated_when_nothing_was_committed_since() -> None:
    recovery = Recovery()
    assert not recovery.is_repeated(0)
    recovery.after_failure(0, "", "x")
    assert recovery.is_repeated(0)
    assert not recovery.is_repeated(1)
    recovery.after_update(skip_sync=False)
    assert recovery.is_repeated(0)
    recovery.after_failure(3, "", "x")
    assert recovery.is_repeated(3)


def test_fixed_ranks_do_not_recover_and_one_rank_only_with_progress() -> None:
    assert "2 ranks of this job are fixed" in objection_of_fixed_job(2, is_repeated=False)
    assert objection_of_fixed_job(1, is_repeated=False) == ""
    assert "without a commit" in objection_of_fixed_job(1, is_repeated=True)
    for text in (objection_of_fixed_job(2, False), objection_of_fixed_job(1, True)):
        assert "checkpoint" in text
        assert "state.restore()" in text
