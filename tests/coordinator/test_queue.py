"""Which job runs, which ones wait, which are refused."""

from __future__ import annotations

from horovod.coordinator.core.queue import JobQueue, Refuse, Start, Wait, Wanted
from hypothesis import given
from hypothesis import strategies as st


def wanted(ticket: int, size: int = 2, may_wait: bool = False) -> Wanted:
    return Wanted(ticket, size, ("python", "train.py"), "me@here", may_wait)


def test_a_job_that_fits_starts_at_once() -> None:
    queue = JobQueue()
    assert queue.submit(wanted(1), 2) == Start(1)
    assert queue.over(1)
    assert not queue.over(1)
    assert queue.submit(wanted(2), 2) == Start(2)


def test_the_refusal_names_the_job_that_runs() -> None:
    queue = JobQueue()
    queue.submit(wanted(1), 2)
    assert queue.submit(wanted(2), 2) == Refuse(
        "A job runs already: 2 ranks of python train.py (me@here). Queue behind it with --wait, or try again later."
    )
    assert queue.next(2) is None


def test_too_few_slots() -> None:
    assert JobQueue().submit(wanted(1, 5), 4) == Refuse(
        "5 ranks were asked for, but the agents have 4 slots. Ask for fewer, or use --wait."
    )


def test_jobs_start_in_the_order_in_which_they_came() -> None:
    queue = JobQueue()
    queue.submit(wanted(1), 2)
    answer = queue.submit(wanted(2, may_wait=True), 2)
    assert answer == Wait("Waiting: a job runs already: 2 ranks of python train.py (me@here).")
    assert "and 1 more wait" in str(queue.submit(wanted(3, may_wait=True), 2))
    queue.over(1)
    assert queue.next(2) == Start(2)
    assert queue.next(2) is None
    queue.over(2)
    assert queue.next(2) == Start(3)


def test_a_large_job_at_the_head_is_not_overtaken() -> None:
    queue = JobQueue()
    queue.submit(wanted(1, 8, True), 4)
    assert isinstance(queue.submit(wanted(2, 1), 4), Refuse)
    assert isinstance(queue.submit(wanted(3, 1, True), 4), Wait)
    assert queue.next(4) is None
    assert queue.next(8) == Start(1)


def test_a_long_command_is_shown_in_short_and_on_one_line() -> None:
    shown = str(Wanted(1, 1, ("python", "-c", "print(1)\n" * 50)))
    assert shown.startswith("1 rank of python -c print(1) print(1) ")
    assert shown.endswith("...")
    assert len(shown) < 100


STEPS = st.lists(
    st.tuples(st.just("submit"), st.integers(1, 6), st.booleans())
    | st.tuples(st.just("over"), st.integers(1, 12), st.just(False))
    | st.tuples(st.just("next"), st.just(0), st.just(False)),
    max_size=40,
)


@given(STEPS, st.integers(0, 6))
def test_one_job_at_a_time_and_nobody_is_forgotten(steps: list[tuple[str, int, bool]], slots: int) -> None:
    queue, alive, ticket = JobQueue(), set[int](), 0
    for step, number, may_wait in steps:
        if step == "submit":
            ticket += 1
            if not isinstance(queue.submit(wanted(ticket, number, may_wait), slots), Refuse):
                alive.add(ticket)
        elif step == "over":
            assert queue.over(number) == (number in alive)
            alive.discard(number)
        else:
            queue.next(slots)
        queue.check_invariants()
        held = {job.ticket for job in [queue.running, *queue.waiting] if job is not None}
        assert held == alive
