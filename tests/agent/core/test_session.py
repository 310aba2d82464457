"""When an agent dials, goes on, gives up, and ends its ranks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from horovod.agent.core import session as s
from horovod.coordinator.core import sessions as coordinator_sessions
from hypothesis import given
from hypothesis import strategies as st

NEW = s.Welcomed(7, False, 10.0)
AGAIN = s.Welcomed(7, True, 10.0)


@pytest.fixture
def uplink() -> Iterator[s.Uplink]:
    made = s.Uplink()
    yield made
    made.check_invariants()


def up(uplink: s.Uplink, now: float = 0.0) -> s.Uplink:
    uplink.handle(s.Dialled(), now)
    assert uplink.handle(NEW, now) == [s.Begin()]
    uplink.handle(s.Heard(), now)
    return uplink


def test_both_sides_speak_one_protocol() -> None:
    assert s.PROTOCOL == coordinator_sessions.PROTOCOL


def test_a_session_goes_on_after_a_break(uplink: s.Uplink) -> None:
    up(uplink)
    said, dial = uplink.handle(s.Broken("reset", 1.0), 5.0)
    assert said == s.Tell("The coordinator can't be reached: reset. Trying again.")
    assert dial == s.Dial(0.1)
    uplink.handle(s.Dialled(), 5.1)
    assert uplink.handle(AGAIN, 5.2)[-1] == s.Resume()
    assert uplink.phase is s.Phase.UP


def test_pauses_grow_vary_and_are_bounded(uplink: s.Uplink) -> None:
    pauses = []
    for _ in range(12):
        uplink.handle(s.Dialled(), 0.0)
        *_, dial = uplink.handle(s.Broken("refused", 1.0), 0.0)
        assert isinstance(dial, s.Dial)
        pauses.append(dial.after_s)
    assert pauses[:4] == pytest.approx([0.1, 0.2, 0.4, 0.8])
    assert pauses[-1] == 5.0
    uplink.handle(s.Dialled(), 0.0)
    assert uplink.handle(s.Broken("refused", 0.0), 0.0) == [s.Dial(2.5)]


def test_advice_is_told_once_whenever_it_comes(uplink: s.Uplink) -> None:
    def told(reason: str, advice: bool) -> list[str]:
        uplink.handle(s.Dialled(), 0.0)
        said = uplink.handle(s.Broken(reason, advice=advice), 0.0)
        return [command.text for command in said if isinstance(command, s.Tell)]

    assert told("refused", False) == ["The coordinator can't be reached: refused. Trying again."]
    assert told("refused", False) == []
    assert told("it wants TLS", True) == ["The coordinator can't be reached: it wants TLS. Trying again."]
    assert told("it wants TLS", True) == []
    assert told("refused", False) == []
    assert told("another certificate", True) == ["The coordinator can't be reached: another certificate. Trying again."]


def test_a_stream_that_breaks_before_a_word_does_not_make_pauses_short_again(uplink: s.Uplink) -> None:
    up(uplink)
    uplink.handle(s.Broken("reset", 1.0), 0.0)
    uplink.handle(s.Dialled(), 0.0)
    uplink.handle(AGAIN, 0.0)
    assert uplink.handle(s.Broken("reset", 1.0), 0.0) == [s.Dial(0.2)]
    uplink.handle(s.Dialled(), 0.0)
    uplink.handle(AGAIN, 0.0)
    uplink.handle(s.Heard(), 0.0)
    assert uplink.handle(s.Broken("reset", 1.0), 0.0)[-1] == s.Dial(0.1)


def test_a_refusal_at_the_first_try_is_the_end(uplink: s.Uplink) -> None:
    uplink.handle(s.Dialled(), 0.0)
    assert uplink.handle(s.Refused("another name, please"), 0.0) == [s.GiveUp("another name, please")]
    assert uplink.handle(s.Broken("closed"), 0.0) == []


def test_a_later_refusal_is_tried_again(uplink: s.Uplink) -> None:
    up(uplink)
    uplink.handle(s.Broken("reset"), 1.0)
    uplink.handle(s.Dialled(), 1.0)
    assert uplink.handle(s.Refused("the name is in use", 1.0), 1.0) == [s.Tell("the name is in use"), s.Dial(5.0)]
    uplink.handle(s.Dialled(), 6.0)
    assert uplink.handle(s.Refused("the name is in use", 0.0), 6.0) == [s.Dial(2.5)]


def test_sides_that_count_differently_begin_anew(uplink: s.Uplink) -> None:
    up(uplink)
    abandon, *_, dial = uplink.handle(s.Broken("number 5 came after number 3", 1.0, confused=True), 1.0)
    assert (abandon, dial) == (s.Abandon("number 5 came after number 3"), s.Dial(0.1))
    uplink.handle(s.Dialled(), 1.1)
    assert uplink.handle(NEW, 1.1) == [s.Begin()]


def test_a_coordinator_that_was_started_anew_is_told_what_runs(uplink: s.Uplink) -> None:
    up(uplink)
    uplink.handle(s.Broken("reset"), 1.0)
    uplink.handle(s.Dialled(), 1.0)
    assert uplink.handle(s.Welcomed(8, False, 10.0), 1.0) == [s.Begin(presents=True)]


def test_who_waits_for_a_coordinator_dials_often(uplink: s.Uplink) -> None:
    up(uplink)
    pauses = []
    for _ in range(8):
        *_, dial = uplink.handle(s.Broken("refused", 1.0), 0.0)
        assert isinstance(dial, s.Dial)
        pauses.append(dial.after_s)
        uplink.handle(s.Dialled(), 0.0)
    assert max(pauses) == 2.5  # a quarter of the coordinator's time-out


def test_a_coordinator_that_has_given_the_agent_up_ends_what_ran(uplink: s.Uplink) -> None:
    up(uplink)
    uplink.handle(s.Broken("reset"), 1.0)
    uplink.handle(s.Dialled(), 1.0)
    assert uplink.handle(NEW, 1.0) == [s.Abandon("the coordinator has given this agent up"), s.Begin()]


@pytest.mark.parametrize("welcome", [s.Welcomed(6, False, 10.0), s.Welcomed(6, True, 10.0), s.Welcomed(9, True, 10.0)])
def test_an_older_coordinator_and_one_that_confuses_sessions_are_not_obeyed(
    uplink: s.Uplink, welcome: s.Welcomed
) -> None:
    up(uplink)
    uplink.handle(s.Broken("reset"), 1.0)
    uplink.handle(s.Dialled(), 1.0)
    (command,) = uplink.handle(welcome, 1.0)
    assert isinstance(command, s.HangUp)
    assert uplink.incarnation == 7


def test_a_silent_stream_is_given_up_and_a_silent_coordinator_leaves_orphans(uplink: s.Uplink) -> None:
    uplink.coordinator_timeout_s = 16.0
    up(uplink)
    for second in range(1, 11):
        assert uplink.handle(s.Tick(), float(second)) == []
    assert uplink.handle(s.Tick(), 10.5) == [s.HangUp("it was silent for 10 s")]
    uplink.handle(s.Broken("silent"), 10.5)
    found: list[s.Command] = []
    for second in range(11, 20):
        found += uplink.handle(s.Tick(), float(second))
    assert found == [s.Abandon("no coordinator was heard for 16 s, see --coordinator-timeout")]
    uplink.handle(s.Dialled(), 20.0)
    assert uplink.handle(NEW, 20.0) == [s.Begin()]


def test_a_hello_must_be_answered(uplink: s.Uplink) -> None:
    uplink.handle(s.Dialled(), 0.0)
    found = [command for second in range(12) for command in uplink.handle(s.Tick(), float(second))]
    assert found == [s.HangUp("it did not answer for 10 s")]


def test_a_pause_of_the_agent_itself_is_not_the_coordinator_s_silence(uplink: s.Uplink) -> None:
    up(uplink)
    uplink.handle(s.Tick(), 1.0)
    assert uplink.handle(s.Tick(), 60.0) == []


EVENTS = st.one_of(
    st.builds(s.Welcomed, st.integers(1, 3), st.booleans(), st.just(10.0)),
    st.builds(s.Refused, st.just("no")),
    st.builds(s.Broken, st.just("broken"), st.floats(0, 1)),
    st.sampled_from([s.Dialled(), s.Heard(), s.Tick()]),
)


@given(st.lists(st.tuples(EVENTS, st.floats(0, 30)), max_size=60))
def test_whatever_happens_there_is_one_session_and_a_way_on(story: list[tuple[s.Event, float]]) -> None:
    uplink, now, begun = s.Uplink(), 0.0, False
    for event, pause in story:
        now += pause
        before = uplink.phase
        commands = uplink.handle(event, now)
        uplink.check_invariants()
        for command in commands:
            assert not (isinstance(command, s.Begin) and begun)
            assert not (isinstance(command, s.Abandon | s.Resume) and not begun)
            begun = isinstance(command, s.Begin) or (begun and not isinstance(command, s.Abandon))
        left = before is not s.Phase.PAUSING and uplink.phase is s.Phase.PAUSING
        assert left == any(isinstance(command, s.Dial) for command in commands)
