"""Messages by the thousand: an order for many agents is serialised once, equal signatures are read once.

What protobuf promises makes that possible: a message may be written as pieces one behind the other, and the reader merges them.
So an agent's copy of an order is what all copies have in common, then its own requests.
"""

from __future__ import annotations

from collections.abc import Iterator

from horovod.coordinator.core import Cast
from horovod.coordinator.core import events as ev
from horovod.coordinator.core.values import Announcement, Signature
from horovod.proto import control_pb2
from horovod.proto.codec import read, wrap

__all__ = ["Reader", "cast_items", "order_item", "orders_frame"]

_MOST_SIGNATURES = 1 << 15
_ITEM = control_pb2.Orders.DESCRIPTOR.fields_by_name["items"].number << 3 | 2
_ORDERS = control_pb2.CoordinatorFrame.DESCRIPTOR.fields_by_name["orders"].number << 3 | 2


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


_SHORT = tuple(bytes((_ITEM,)) + _varint(size) for size in range(4096))  # heads of items, by size


def _head(size: int) -> bytes:
    return _SHORT[size] if size < len(_SHORT) else bytes((_ITEM,)) + _varint(size)


def order_item(order: control_pb2.Order) -> bytes:
    """An order as a piece of Orders; pieces are joined."""
    data = order.SerializeToString()
    return _head(len(data)) + data


def cast_items(cast: Cast) -> Iterator[tuple[str, bytes]]:
    """Each agent and its copy."""
    order = control_pb2.Order(epoch=cast.epoch)
    wrap(order, cast.body)
    common, answers = order.SerializeToString(), cast.answers
    whole = _head(len(common)) + common
    if not answers:
        yield from ((agent, whole) for agent in cast.agents)
        return
    own, body = control_pb2.Order(), str(order.WhichOneof("body"))
    requests = getattr(own, body).requests
    for agent in cast.agents:
        mine = answers.get(agent)
        if not mine:
            yield agent, whole
            continue
        del requests[:]
        for item in mine:
            requests.add(rank=item.rank, request=item.request)
        data = own.SerializeToString()
        yield agent, b"".join((_head(len(common) + len(data)), common, data))


def orders_frame(number: int, ack: int, items: bytes) -> bytes:
    """A CoordinatorFrame with these pieces of Orders."""
    head = control_pb2.CoordinatorFrame(seq=number, ack=ack).SerializeToString()
    return b"".join((head, bytes((_ORDERS,)), _varint(len(items)), items))


class Reader:
    """Reads announcements.  All ranks of a job send the same signatures: equal ones become one object."""

    def __init__(self) -> None:
        self._signatures: dict[bytes, Signature] = {}

    def announcements(self, message: control_pb2.Announcements) -> ev.Announcements:
        """KeyError or ValueError when a signature makes no sense."""
        return ev.Announcements(tuple(map(self._item, message.items)))

    def _item(self, item: control_pb2.Announcement) -> Announcement:
        return Announcement(
            item.rank,
            item.request,
            self._signature(item.signature),
            item.contested_plan,
            item.contested_round,
            item.no_room_bytes,
            item.input_gone,
        )

    def _signature(self, message: object) -> Signature:
        assert hasattr(message, "SerializeToString")
        data = message.SerializeToString()
        known = self._signatures.get(data)
        if known is None:
            if len(self._signatures) >= _MOST_SIGNATURES:
                self._signatures.clear()
            known = self._signatures[data] = read(Signature, message)  # type: ignore[arg-type]
        return known
