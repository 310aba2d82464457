"""Dataclasses to messages and back, by equal names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

import pytest
from horovod.coordinator.core import commands as cmd
from horovod.coordinator.core import events as ev
from horovod.coordinator.core import values as v
from horovod.proto import control_pb2, worker_pb2
from horovod.proto.codec import by_field, fill, read, snake, unwrap, wrap
from hypothesis import given, settings
from hypothesis import strategies as st

NAMES = st.text(max_size=8)
RANKS = st.integers(-1, 2**31 - 1)
COUNTS = st.integers(0, 2**64 - 1)
SHAPES = st.lists(st.lists(st.integers(-1, 2**40), max_size=3).map(tuple), max_size=3).map(tuple)
SIGNATURES = st.builds(
    v.Signature,
    kind=st.sampled_from(v.Kind),
    name=NAMES,
    unnamed=st.booleans(),
    dtype=st.integers(0, 10),
    shapes=SHAPES,
    tensor_names=st.lists(NAMES, max_size=3).map(tuple),
    op=st.integers(0, 5),
    prescale=st.floats(allow_nan=False),
    postscale=st.floats(allow_nan=False),
    root=RANKS,
    process_set=st.integers(0, 2**32 - 1),
    device=st.integers(0, 1),
)
ANNOUNCEMENTS = st.builds(v.Announcement, RANKS, COUNTS, SIGNATURES, COUNTS, COUNTS)
REQUESTS = st.lists(st.builds(v.RankRequest, RANKS, COUNTS), max_size=3).map(tuple)
LABELS = st.dictionaries(NAMES, NAMES, max_size=3)
ROUNDS = st.builds(v.OpenRound, COUNTS, COUNTS, st.floats(0, 1e9), st.just((1, 2)), st.just(()))


@settings(max_examples=60, deadline=None)
@given(st.lists(ANNOUNCEMENTS, max_size=3).map(tuple))
def test_reports_survive_the_way(items: tuple[v.Announcement, ...]) -> None:
    sent = control_pb2.AgentReport(epoch=3)
    wrap(sent, ev.Announcements(items))
    received = control_pb2.AgentReport.FromString(sent.SerializeToString())
    assert unwrap(received, by_field(*ev.BODIES)) == ev.Announcements(items)
    assert received.epoch == 3


@settings(max_examples=60, deadline=None)
@given(SIGNATURES, REQUESTS)
def test_orders_survive_the_way(signature: v.Signature, requests: tuple[v.RankRequest, ...]) -> None:
    body = cmd.PlanMade(1 << 40, signature, requests)
    order = control_pb2.Order()
    wrap(order, body)
    assert unwrap(control_pb2.Order.FromString(order.SerializeToString()), by_field(cmd.PlanMade)) == body


@settings(max_examples=30, deadline=None)
@given(LABELS, st.lists(ROUNDS, max_size=2).map(tuple))
def test_maps_and_lists_of_messages(labels: Mapping[str, str], rounds: tuple[v.OpenRound, ...]) -> None:
    for body in (ev.Register("a", "alpha", 2, labels), ev.Observation(rounds, plans_used=(7,))):
        report = control_pb2.AgentReport()
        wrap(report, body)
        assert unwrap(report, by_field(*ev.BODIES)) == body


def test_enums_come_back_as_enums() -> None:
    message = worker_pb2.Error(kind=worker_pb2.LOST, text="gone")
    error = read(v.Error, message)
    assert error.kind is v.ErrorKind.LOST
    back = worker_pb2.Error()
    fill(back, error)
    assert back == message


def test_an_unknown_enum_value_is_an_error() -> None:
    with pytest.raises(ValueError, match="99"):
        read(v.Error, worker_pb2.Error.FromString(b"\x08\x63"))


def test_a_body_without_fields_is_still_there() -> None:
    order = control_pb2.Order()
    wrap(order, cmd.AllJoined())
    received = control_pb2.Order.FromString(order.SerializeToString())
    assert received.WhichOneof("body") == "all_joined"
    assert unwrap(received, by_field(cmd.AllJoined)) == cmd.AllJoined()


def test_a_missing_or_unknown_body_is_a_key_error() -> None:
    with pytest.raises(KeyError, match="Order has no body"):
        unwrap(control_pb2.Order(), by_field(cmd.AllJoined))
    order = control_pb2.Order(hold=control_pb2.Hold(plan=1))
    with pytest.raises(KeyError, match="hold"):
        unwrap(order, by_field(cmd.AllJoined))


@dataclass(frozen=True, slots=True)
class Tagged:
    """A message with something beside it that is not sent."""

    rank: int
    generation: int = 0
    connection: int = field(default=0)


def test_fields_beside_the_message_come_as_arguments() -> None:
    message = control_pb2.RankLeft(rank=1, generation=2)
    assert read(Tagged, message, connection=9) == Tagged(1, 2, 9)
    back = control_pb2.RankLeft()
    fill(back, Tagged(1, 2, 9))
    assert back == message


@pytest.mark.parametrize(
    ("name", "expected"), [("PlanReady", "plan_ready"), ("Hold", "hold"), ("AddProcessSet", "add_process_set")]
)
def test_snake(name: str, expected: str) -> None:
    assert snake(name) == expected


@pytest.mark.parametrize("kind", [*ev.BODIES, *cmd.Body.__args__], ids=lambda kind: kind.__name__)
def test_dataclasses_have_the_fields_of_their_messages(kind: type) -> None:
    message = getattr(control_pb2, kind.__name__)
    assert {item.name for item in fields(kind)} == {item.name for item in message.DESCRIPTOR.fields}
