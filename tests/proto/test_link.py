"""Numbered frames over connections that break: everything arrives once, in order."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import pytest
from horovod.proto.link import Link, LinkError
from hypothesis import given
from hypothesis import strategies as st


def taken(link: Link[str]) -> list[tuple[int, str]]:
    """All frames that may go out now."""
    found = []
    while (item := link.take()) is not None:
        found.append(item)
    link.check_invariants()
    return found


def pushed(*frames: str) -> Link[str]:
    link: Link[str] = Link()
    for frame in frames:
        link.push(frame, len(frame))
    return link


def test_frames_are_numbered_and_kept_until_they_are_confirmed() -> None:
    link = pushed("a", "bb", "ccc")
    assert taken(link) == [(1, "a"), (2, "bb"), (3, "ccc")]
    assert (link.kept_bytes, link.is_settled) == (6, False)
    assert link.acknowledge(2) == [1, 2]
    assert link.acknowledge(1) == []
    assert link.acknowledge(3) == [3]
    assert (link.kept_bytes, link.is_settled, link.pushed) == (0, True, 3)


def test_a_new_connection_begins_behind_what_was_received() -> None:
    link = pushed("a", "b", "c")
    taken(link)
    link.push("d", 1)
    assert link.resume(2) == [1, 1]
    assert taken(link) == [(3, "c"), (4, "d")]
    assert link.resume(2) == []
    assert taken(link) == [(3, "c"), (4, "d")]


def test_what_was_received_counts_although_the_sender_did_not_know_that_it_was_sent() -> None:
    link = pushed("a", "b")
    assert link.take() == (1, "a")
    assert link.resume(1) == [1]
    assert taken(link) == [(2, "b")]


def test_a_receiver_takes_each_number_once() -> None:
    link: Link[str] = Link()
    assert [link.accept(number) for number in (1, 2, 1, 2, 3)] == [True, True, False, False, True]
    with pytest.raises(LinkError, match="number 5 came after number 3"):
        link.accept(5)


def test_numbers_that_can_not_be_are_errors() -> None:
    link = pushed("a", "b")
    link.take()
    with pytest.raises(LinkError, match="number 2 is confirmed, but only 1 were sent"):
        link.acknowledge(2)
    with pytest.raises(LinkError, match="up to number 3, not 0 to 2"):
        link.resume(3)
    link.acknowledge(1)
    with pytest.raises(LinkError):
        link.resume(0)


@dataclass
class Side:
    """One end with its half of the channel; ``heard`` is what its caller got."""

    link: Link[int] = field(default_factory=Link)
    wire: deque[tuple[int, int, int]] = field(default_factory=deque)  # (seq, ack, frame) on their way to the other end
    said: int = 0
    heard: list[int] = field(default_factory=list)

    def say(self) -> None:
        self.said += 1
        self.link.push(self.said, self.said)

    def send(self) -> None:
        item = self.link.take()
        self.wire.append((*item, self.link.received) if item else (0, 0, self.link.received))

    def hear(self, other: Side) -> None:
        if not other.wire:
            return
        number, frame, ack = other.wire.popleft()
        self.link.acknowledge(ack)
        if number and self.link.accept(number):
            self.heard.append(frame)


ACTIONS = st.lists(
    st.tuples(st.sampled_from(["say", "send", "hear"]), st.sampled_from([0, 1]))
    | st.tuples(st.just("break"), st.just(0)),
    max_size=80,
)


@given(ACTIONS)
def test_any_breaks_lose_and_double_nothing(actions: list[tuple[str, int]]) -> None:
    ends = (Side(), Side())

    def reconnect() -> None:
        for end, other in (ends, ends[::-1]):
            end.wire.clear()
            end.link.resume(other.link.received)

    for action, index in actions:
        end, other = ends[index], ends[1 - index]
        {"say": end.say, "send": end.send, "hear": lambda e=end, o=other: e.hear(o), "break": reconnect}[action]()
        end.link.check_invariants()
    reconnect()
    while any(not end.link.is_settled for end in ends):
        for end, other in (ends, ends[::-1]):
            end.send()
            other.hear(end)
    for end, other in (ends, ends[::-1]):
        assert end.heard == list(range(1, other.said + 1))


def test_the_last_frame_may_grow_until_it_is_taken() -> None:
    link: Link[list[str]] = Link()
    assert link.last_unsent(100) is None
    link.push(["a"], 10)
    last = link.last_unsent(100)
    assert last == ["a"]
    assert link.last_unsent(10) is None  # large enough
    last.append("b")
    link.grow_last(10)
    link.check_invariants()
    assert (link.kept_bytes, link.take()) == (20, (1, ["a", "b"]))
    assert link.last_unsent(100) is None
    link.resume(0)  # it did not arrive, so it is sent again, and may have grown meanwhile
    assert link.last_unsent(100) == ["a", "b"]
