"""Epochs over several hosts, as one agent sees them: the plane is opened first, plans have members elsewhere, peers are lost."""

from __future__ import annotations

import dataclasses

import pytest
from horovod.agent.core import events as ev
from horovod.agent.core import values as v

from tests.agent.core.fakes import SUM, World, of, reports, ring, to_rank

AGENTS = ("b", "a", "c", "a")
LOST = v.Error(v.ErrorKind.LOST, "host c is lost")
SHUT_DOWN = v.Error(v.ErrorKind.SHUT_DOWN, "rank 0 left")
GATHER = v.Signature(v.Kind.ALLGATHER, "allgather.x", shapes=((-1, 3),))


@pytest.fixture
def world() -> World:
    return World(agents=AGENTS)


def test_ranks_are_let_in_when_all_hosts_are_connected(world: World) -> None:
    world.connects = False
    commands = world.begin()
    assert of(commands, ev.BoardCreate) == [ev.BoardCreate(1, (11, 13), shared=True)]
    assert of(commands, ev.PlaneOpen) == [ev.PlaneOpen(1, ring(*AGENTS), 0, b"key")]
    assert not of(commands, ev.ToRank)
    assert list(to_rank(world.tell(ev.PlaneReady(1)), v.Welcome)) == [1, 3]


def test_orders_that_come_before_the_plane_is_open_wait(world: World) -> None:
    world.connects = False
    world.begin()
    assert world.order(v.JoinedRanks((0,))) == []
    commands = world.tell(ev.PlaneReady(1))
    assert of(commands, ev.WatchArrivals) == [ev.WatchArrivals(True)]
    assert commands.index(ev.WatchArrivals(True)) > commands.index(of(commands, ev.ToRank)[-1])


def test_an_epoch_that_ends_before_the_plane_is_open_is_told_to_who_waits(world: World) -> None:
    world.connects = False
    world.begin()
    assert reports(world.tell(ev.PlaneLost(1, 2, "connection refused")), v.PeerLost) == [
        v.PeerLost("c", "connection refused")
    ]
    commands = world.order(v.EndEpoch(LOST))
    assert to_rank(commands, v.Rejected) == {1: v.Rejected(LOST.text), 3: v.Rejected(LOST.text)}
    assert of(commands, ev.BoardClose) == [ev.BoardClose()]
    assert world.tell(ev.PlaneReady(1)) == []  # too late


def test_ranks_get_in_although_others_were_in_and_have_left_already(world: World) -> None:
    world.connects = False
    world.begin()
    assert world.order(v.EndEpoch(SHUT_DOWN)) == []
    commands = world.tell(ev.PlaneReady(1))
    assert list(to_rank(commands, v.Welcome)) == [1, 3]
    assert to_rank(commands, v.EpochEnded)[1] == v.EpochEnded(1, SHUT_DOWN)
    assert of(commands, ev.BoardFail) == [ev.BoardFail(True, SHUT_DOWN.text)]


def test_others_that_left_before_they_could_be_reached_are_lost(world: World) -> None:
    world.connects = False
    world.begin()
    world.order(v.EndEpoch(SHUT_DOWN))
    assert reports(world.tell(ev.PlaneLost(1, 2, "connection refused")), v.PeerLost)
    assert list(to_rank(world.order(v.EndEpoch(LOST)), v.Rejected)) == [1, 3]


def test_a_rank_that_dies_before_the_plane_is_open_leaves_nobody_half_inside(world: World) -> None:
    world.connects = False
    world.begin()
    world.tell(ev.ConnectionClosed(11, "gone"))
    assert world.tell(ev.PlaneReady(1)) == [ev.BoardClose()]
    assert list(to_rank(world.order(v.EndEpoch(LOST)), v.Rejected)) == [3]


def test_a_lost_peer_ends_the_epoch_here_at_once(world: World) -> None:
    world.begin()
    commands = world.tell(ev.PlaneLost(1, 1, "silent for 10 s"))
    text = "Host host-b (agent b) can't be reached any more: silent for 10 s."
    assert reports(commands, v.PeerLost) == [v.PeerLost("b", "silent for 10 s")]
    assert of(commands, ev.BoardFail) == [ev.BoardFail(False, text)]
    ended = v.EpochEnded(1, v.Error(v.ErrorKind.LOST, text))
    assert to_rank(commands, v.EpochEnded) == {1: ended, 3: ended}
    assert world.tell(ev.PlaneLost(1, 2, "reset")) == []  # the first reason stands


def test_what_another_host_ended_is_the_coordinator_s_to_explain(world: World) -> None:
    world.begin()
    assert world.tell(ev.PlaneAborted(1, 1, "ranks wait for each other")) == []
    stalled = v.Error(v.ErrorKind.STALLED, "Ranks 0, 1 wait for each other.")
    assert to_rank(world.order(v.EndEpoch(stalled)), v.EpochEnded)[1] == v.EpochEnded(1, stalled)


def test_a_coordinator_that_does_not_explain_it_is_not_waited_for(world: World) -> None:
    world.begin()
    world.tell(ev.PlaneAborted(1, 1, "rank 0 was killed"))
    assert not to_rank(world.tell(ev.Tick()), v.EpochEnded)
    world.now = 3.0
    text = "Host host-b (agent b) has ended the epoch: rank 0 was killed"
    assert to_rank(world.tell(ev.Tick()), v.EpochEnded)[3] == v.EpochEnded(1, v.Error(v.ErrorKind.LOST, text))


def test_reductions_list_local_members_and_where_the_others_are(world: World) -> None:
    world.begin()
    (add,) = of(world.plan(requests=((1, 1), (3, 1))), ev.PlanAdd)
    assert (add.members, add.remote) == ((0, 1), ev.RemotePart((0, 1, 2)))


def test_pulls_list_all_members(world: World) -> None:
    world.begin()
    (add,) = of(world.plan(signature=GATHER, requests=((1, 1), (3, 1))), ev.PlanAdd)
    assert add.members == (2, 0, 2, 1)  # two local ranks: 2 stands for who is elsewhere
    assert add.remote == ev.RemotePart((0, 1, 2), (1, 0, 2, 0))


def test_a_set_on_one_host_needs_no_other(world: World) -> None:
    world.begin()
    world.order(v.SetAdded(v.ProcessSet(4, (1, 3)), ()))
    in_set = dataclasses.replace(SUM, process_set=4)
    (add,) = of(world.plan(signature=in_set, requests=((1, 1), (3, 1))), ev.PlanAdd)
    assert (add.members, add.remote) == ((0, 1), None)


def test_averages_divide_by_all_members(world: World) -> None:
    world.begin()
    average = v.Signature(v.Kind.ALLREDUCE, "x", op=0, shapes=((3,),))
    (add,) = of(world.plan(signature=average, requests=((1, 1), (3, 1))), ev.PlanAdd)
    assert add.postscale == 0.25
