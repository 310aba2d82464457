"""Places of ranks by columns: what goes in comes out, in few bytes, and columns that do not fit are refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from horovod.agent.core import values as agent
from horovod.coordinator.core import commands as cmd
from horovod.coordinator.core.job import place_ranks
from horovod.coordinator.core.values import RankPlace
from horovod.proto import control_pb2
from horovod.proto.codec import by_field, unwrap, wrap
from horovod.proto.places import pack, unpack
from hypothesis import given
from hypothesis import strategies as st

KINDS = by_field(agent.EpochStart, agent.StartRanks)
counts = st.integers(0, 9)


@given(st.lists(st.tuples(st.sampled_from("abc"), counts, counts, counts, counts), max_size=9))
def test_any_places_come_out_as_they_went_in(rows: list[tuple[str, int, int, int, int]]) -> None:
    """Also where others than the coordinator have numbered the ranks."""
    places = tuple(RankPlace(rank, row[0], f"host-{row[0]}", *row[1:]) for rank, row in enumerate(rows))
    order = control_pb2.Order()
    wrap(order, cmd.EpochStart(places, (), (), b""))
    found = unwrap(control_pb2.Order.FromString(order.SerializeToString()), KINDS)
    assert type(found) is agent.EpochStart
    assert [place.__class__ for place in found.places] == [agent.RankPlace] * len(places)
    assert unpack(RankPlace, order.epoch_start.places) == places


def test_texts_are_told_once() -> None:
    """A thousand agents with eight ranks each: the order goes to each of the thousand."""
    slots = {f"worker-{number:04d}": (f"node-{number:04d}.cluster.local", 8) for number in range(1024)}
    places = place_ranks(8192, slots)
    assert not isinstance(places, str)
    order = control_pb2.Order()
    wrap(order, cmd.StartRanks(("train",), {}, "", 8192, tuple(places), 1))
    assert order.ByteSize() * 2 < sum(len(place.agent) + len(place.host) for place in places)
    assert unpack(RankPlace, order.start_ranks.places) == tuple(places)


def break_index(message: control_pb2.RankPlaces) -> None:
    message.agent[0] = 7


def break_column(message: control_pb2.RankPlaces) -> None:
    message.local_size.append(1)


def break_hosts(message: control_pb2.RankPlaces) -> None:
    del message.hosts[:]


@pytest.mark.parametrize("break_it", [break_index, break_column, break_hosts])
def test_columns_that_do_not_fit_are_refused(break_it: Callable[[control_pb2.RankPlaces], None]) -> None:
    message = control_pb2.RankPlaces()
    pack(message, [RankPlace(0, "a", "host-a", 0, 1, 0, 1)])
    break_it(message)
    with pytest.raises(ValueError, match="places whose columns have"):
        unpack(RankPlace, message)
