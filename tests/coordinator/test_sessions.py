"""Who may have a session, whether it goes on, and when an agent is lost."""

from __future__ import annotations

from dataclasses import replace

import pytest
from horovod.coordinator.core.sessions import Hello, Refusal, SessionBook, Welcome

HELLO = Hello(1, "0.1", "a", "alpha", 4, "first", 0)


@pytest.fixture
def book() -> SessionBook:
    made = SessionBook(incarnation=7, peer_timeout_s=10.0)
    assert made.hello(HELLO, 1, 0.0) == Welcome(False)
    return made


def refusal(book: SessionBook, hello: Hello, stream: int = 2, now: float = 1.0) -> str:
    answer = book.hello(hello, stream, now)
    book.check_invariants()
    assert isinstance(answer, Refusal), answer
    return answer.text


def test_a_broken_stream_is_followed_by_another_one(book: SessionBook) -> None:
    book.broken("a", 1)
    assert book.hello(replace(HELLO, incarnation=7), 2, 5.0) == Welcome(True)
    assert book.heard("a", 2, 6.0)
    assert not book.heard("a", 1, 6.0)


def test_the_next_stream_may_come_before_the_end_of_the_last(book: SessionBook) -> None:
    assert book.hello(replace(HELLO, incarnation=7), 2, 5.0) == Welcome(True)
    book.broken("a", 1)
    assert book.sessions["a"].stream == 2


def test_all_agents_move_data_by_the_same_plane() -> None:
    book = SessionBook(incarnation=7, peer_timeout_s=10.0)
    assert book.hello(replace(HELLO, plane="tcp"), 1, 0.0) == Welcome(False)
    other = replace(HELLO, name="b", instance="other", plane="gloo")
    text = refusal(book, other)
    assert "Agent b moves data between hosts by the plane gloo, agent a by tcp" in text
    assert "--plane" in text
    assert book.hello(replace(other, plane="tcp"), 2, 1.0) == Welcome(False)
    assert book.end("b", 2)
    assert book.end("a", 1)
    assert book.hello(other, 3, 2.0) == Welcome(False)


def test_an_agent_that_has_given_its_session_up_begins_anew(book: SessionBook) -> None:
    assert book.hello(HELLO, 2, 5.0) == Welcome(False, "it has begun a new session")


def test_a_session_with_an_older_coordinator_does_not_go_on(book: SessionBook) -> None:
    assert book.hello(replace(HELLO, name="b", instance="x", incarnation=6), 2, 1.0) == Welcome(False)


def test_a_name_in_use_is_refused(book: SessionBook) -> None:
    text = refusal(book, replace(HELLO, host="beta", instance="second"))
    assert text.startswith("An agent named a on host alpha is there already. Give this one another name with --name")
    assert "after 10 s of silence" in text
    assert book.heard("a", 1, 1.0)


def test_an_agent_started_anew_on_its_host_takes_over_when_the_old_one_has_no_stream(book: SessionBook) -> None:
    again = replace(HELLO, instance="second")
    assert "there already" in refusal(book, again)
    book.broken("a", 1)
    assert "there already" in refusal(book, replace(again, host="beta"))
    assert book.hello(again, 3, 2.0) == Welcome(False, "it has begun a new session")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"protocol": 2}, "speaks protocol 2, the coordinator 1: install the same version of hvd on both"),
        ({"name": ""}, "can't be used: give the agent another one with --name"),
        ({"name": "a\nb"}, "can't be used"),
        ({"name": "x" * 300}, "can't be used"),
        ({"instance": "", "name": "b"}, "can't be used"),
        ({"slots": 0}, "offers 0 slots: it must offer 1 to 65536"),
        ({"slots": 1 << 20}, "offers 1048576 slots"),
    ],
)
def test_hellos_that_make_no_sense(book: SessionBook, change: dict[str, object], said: str) -> None:
    assert said in refusal(book, replace(HELLO, **change))  # type: ignore[arg-type]


def test_silence_for_the_time_out_is_a_loss(book: SessionBook) -> None:
    for second in range(1, 11):
        assert book.overdue(float(second)) == []
    assert book.overdue(10.5) == [("a", "nothing was heard of it for 10 s (its connection is open)")]
    assert book.overdue(11.0) == []
    assert not book.heard("a", 1, 11.0)


def test_heartbeats_keep_an_agent(book: SessionBook) -> None:
    for second in range(1, 100):
        assert book.heard("a", 1, float(second))
        assert book.overdue(float(second)) == []


def test_a_pause_of_the_coordinator_itself_is_nobody_s_silence(book: SessionBook) -> None:
    book.overdue(1.0)
    book.broken("a", 1)
    assert book.overdue(60.0) == []
    for second in range(61, 70):
        assert book.overdue(float(second)) == []
    assert book.overdue(70.0) == [("a", "nothing was heard of it for 10 s (its connection is broken)")]


def test_who_takes_leave_is_gone_at_once(book: SessionBook) -> None:
    assert not book.end("a", 9)
    assert book.end("a", 1)
    assert not book.end("a", 1)
    assert book.hello(replace(HELLO, instance="second", host="beta"), 2, 1.0) == Welcome(False)
