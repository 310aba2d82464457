"""What is written in pieces reads as if it had been written whole."""

from __future__ import annotations

import pytest
from horovod.coordinator import sessions
from horovod.coordinator.core import Cast
from horovod.coordinator.core import commands as cmd
from horovod.coordinator.core import events as ev
from horovod.coordinator.core.values import Announcement, Error, ErrorKind, Kind, ProcessSet, RankRequest, Signature
from horovod.coordinator.wire import Reader, cast_items, order_item, orders_frame
from horovod.proto import control_pb2
from horovod.proto.codec import wrap

ANSWERS = {"a": (RankRequest(0, 1), RankRequest(1, 1 << 40)), "b": (RankRequest(2, 7),)}
BODIES: list[cmd.Body] = [
    cmd.PlanMade(1 << 40, Signature(Kind.ALLREDUCE, "x" * 5000, shapes=((3, 4),)), ()),
    cmd.Refusal((), Error(ErrorKind.MISMATCH, "they differ")),
    cmd.JoinDone(2, ()),
    cmd.SetAdded(ProcessSet(1, (0, 2)), ()),
    cmd.SetRemoved(1, ()),
]


def whole(cast: Cast) -> list[tuple[str, control_pb2.Order]]:
    orders = []
    for send in cast.sends():
        order = control_pb2.Order(epoch=send.epoch)
        wrap(order, send.body)
        orders.append((send.agent, order))
    return orders


@pytest.mark.parametrize("body", BODIES, ids=lambda body: type(body).__name__)
def test_every_agent_gets_its_own_requests(body: cmd.Body) -> None:
    cast = Cast(("a", "b", "c"), 3, body, ANSWERS)
    orders = whole(cast)
    got = [(agent, control_pb2.Orders.FromString(item)) for agent, item in cast_items(cast)]
    assert got == [(agent, control_pb2.Orders(items=[order])) for agent, order in orders]


def test_an_order_without_requests_is_one_object_for_all() -> None:
    items = [item for _, item in cast_items(Cast(("a", "b"), 3, cmd.Hold(7)))]
    assert items[0] is items[1]


def test_a_frame_holds_all_orders_in_order() -> None:
    orders = [control_pb2.Order(epoch=n, hold=control_pb2.Hold(plan=n)) for n in range(1, 300)]
    read = control_pb2.CoordinatorFrame.FromString(orders_frame(7, 300, b"".join(map(order_item, orders))))
    assert (read.seq, read.ack, read.WhichOneof("body")) == (7, 300, "orders")
    assert list(read.orders.items) == orders


def test_long_batches_are_cut_and_large_orders_go_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "_FRAME_BYTES", 10)
    items = [b"aaaa", b"bbbb", b"cccc", b"d" * 30, b"ee"]
    assert list(sessions._frames(items)) == [b"aaaabbbb", b"cccc", b"d" * 30, b"ee"]


def test_equal_signatures_become_one_object() -> None:
    reader = Reader()
    sent = control_pb2.AgentReport()
    signature = Signature(Kind.ALLGATHER, "g", shapes=((-1, 3),), tensor_names=("a", "b"))
    wrap(sent, ev.Announcements((Announcement(0, 1, signature, 5, 6, 7), Announcement(1, 2, signature))))
    first, second = reader.announcements(sent.announcements).items
    assert (first, second) == (Announcement(0, 1, signature, 5, 6, 7), Announcement(1, 2, signature))
    assert first.signature is second.signature
