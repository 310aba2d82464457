"""Processes that others have started, on an agent: who waits, who gets a rank, what becomes of those that leave or die."""

from __future__ import annotations

from typing import Any

import pytest
from horovod.agent.core import AgentInfo
from horovod.agent.core import events as ev
from horovod.agent.core import values as v
from horovod.agent.core.guests import GuestCore

from tests.agent.core.fakes import World, of, places, reports, ring, to_rank

EVERYBODY = v.ProcessSet(0, (0, 1))


@pytest.fixture
def world() -> World:
    return World(core=GuestCore(AgentInfo("a", "host-a", 2, "unix:@a", "secret")))


def hello(pid: int = 100, **other: Any) -> v.Hello:
    fields: dict[str, Any] = {"protocol": 1, "nonce": "", "rank": -1, "pid": pid, "generation": 1}
    return v.Hello(**{**fields, **other})


def guest(number: int, pid: int = 100, rank: int = -1, size: int = 0) -> v.Guest:
    return v.Guest(number, pid, rank, size)


def form(world: World, *guests: int) -> list[ev.Command]:
    """The coordinator takes these guests."""
    mine = places("a", "a")[: len(guests)]
    return world.order(v.StartRanks((), {}, "", 2, mine, 1, guests), 0)


def begin(world: World) -> list[ev.Command]:
    """Two processes are ranks in an epoch."""
    world.rank(0, hello(100))
    world.rank(1, hello(101))
    form(world, 1, 2)
    return world.order(v.EpochStart(places("a", "a"), (EVERYBODY,), ring("a")))


def test_who_waits_is_reported_and_told_what_for(world: World) -> None:
    commands = world.rank(0, hello(rank=1, size=2))
    assert reports(commands, v.Guests) == [v.Guests((guest(1, rank=1, size=2),))]
    assert "waits for its answer" in to_rank(commands, v.Waiting)[0].text
    assert to_rank(world.order(v.Gathering("1 of 2"), 0), v.Waiting) == {0: v.Waiting("1 of 2")}
    assert to_rank(world.rank(1, hello(101)), v.Waiting) == {1: v.Waiting("1 of 2")}
    assert reports(world.tell(ev.ConnectionClosed(10)), v.Guests) == [v.Guests((guest(2, 101),))]
    assert reports(world.order(v.Registered(2), 0), v.Guests) == [v.Guests((guest(2, 101),))]


def test_guests_become_ranks_and_nothing_is_started(world: World) -> None:
    commands = begin(world)
    assert {rank: welcome.rank for rank, welcome in to_rank(commands, v.Welcome).items()} == {0: 0, 1: 1}
    hellos = reports(world.out, v.RankHello)
    assert [(body.rank, body.pid) for body in hellos] == [(0, 100), (1, 101)]
    assert not of(world.out, ev.StartProcess)
    assert reports(world.out, v.Guests)[-1] == v.Guests()
    assert world.order(v.StopRanks("why", 0.0), 0) == []


def test_one_that_went_away_before_the_beginning_is_reported(world: World) -> None:
    world.rank(0, hello())
    world.rank(1, hello(101))
    world.tell(ev.ConnectionClosed(11))
    commands = form(world, 1, 2)
    assert reports(commands, v.RankExited) == [v.RankExited(1, 0, 1, 0, False)]
    # The job dissolves: the other one waits again, as another guest.
    assert reports(world.order(v.JobFinished(0, ""), 0), v.Guests) == [v.Guests((guest(3),))]


def test_refusals(world: World) -> None:
    def reason(rank: int, said: v.Hello) -> str:
        return to_rank(world.rank(rank, said), v.Rejected)[rank].reason

    assert "protocol 7" in reason(0, hello(protocol=7))
    assert "Remove HVD_SLOT_NONCE" in reason(0, hello(nonce="x"))
    assert "without its descriptors" in reason(0, hello(descriptors=False))
    world.rank(0, hello())
    assert "twice" in reason(0, hello())
    world.rank(1, hello(101))
    full = reason(2, hello(102))
    assert "agent a has 2 slot(s), and they are taken by process 100, which waits, process 101, which waits." in full
    commands = world.order(v.GuestRejected(2, "no"), 0)
    assert to_rank(commands, v.Rejected) == {1: v.Rejected("no")}
    assert reports(commands, v.Guests) == [v.Guests((guest(1),))]
    assert world.order(v.GuestRejected(2, "no"), 0) == []


def test_slots_of_ranks_are_taken_until_they_leave(world: World) -> None:
    begin(world)
    refused = to_rank(world.rank(2, hello(102)), v.Rejected)[2].reason
    assert "rank 0 (pid 100), rank 1 (pid 101)" in refused
    world.rank(1, v.Leave(1))
    assert 2 in to_rank(world.rank(2, hello(102)), v.Waiting)


def test_a_rank_that_leaves_rests_before_it_is_said_that_it_left(world: World) -> None:
    begin(world)
    commands = world.rank(1, v.Leave(1, "", finished=True))
    bodies = [command.body for command in of(commands, ev.ToCoordinator)]
    assert bodies == [v.Guests((), 1), v.RankLeft(1, 1, "")]
    assert reports(world.tell(ev.ConnectionClosed(11)), v.Guests) == [v.Guests((), 0)]


def test_processes_come_back_to_their_places(world: World) -> None:
    begin(world)
    for rank in (0, 1):
        world.rank(rank, v.Leave(1))
    assert of(world.out, ev.BoardClose)
    world.order(v.JobFinished(0, ""), 0)
    world.rank(1, hello(101, generation=2))
    commands = world.rank(0, hello(100, generation=2))
    assert reports(commands, v.Guests) == [v.Guests((guest(4, 100), guest(3, 101)))]


def test_one_that_dies_is_reported_and_leaves_the_board(world: World) -> None:
    begin(world)
    commands = world.tell(ev.ConnectionClosed(11, "the process is gone"))
    assert of(commands, ev.RankDead) == [ev.RankDead(1)]
    assert reports(commands, v.RankExited) == [v.RankExited(1, 101, 1, 0, False)]
    world.now += 10
    assert not of(world.tell(ev.Tick()), ev.EndGuest)


def test_one_that_was_turned_away_and_ends_is_no_rank_any_more(world: World) -> None:
    begin(world)
    world.rank(0, v.Leave(1))
    assert reports(world.tell(ev.ConnectionClosed(10)), v.RankExited) == [v.RankExited(0, 100, 0, 0, True)]


def test_without_a_coordinator_the_epoch_fails_and_nobody_is_listed_until_it_is_left(world: World) -> None:
    begin(world)
    commands = world.tell(ev.Abandoned("nobody coordinates"))
    ended = to_rank(commands, v.EpochEnded)
    assert {rank: body.error.text for rank, body in ended.items()} == dict.fromkeys((0, 1), "nobody coordinates")
    assert not of(commands, ev.EndProcess)
    world.order(v.Registered(2), 0)
    world.rank(0, v.Leave(1))
    assert reports(world.rank(0, hello(100, generation=2)), v.Guests) == [v.Guests((), 0)]
    commands = world.rank(1, v.Leave(1))
    assert not reports(commands, v.RankLeft)
    assert reports(commands, v.Guests) == [v.Guests((guest(3, 100),), 1)]


def test_those_that_wait_outlive_the_coordinator(world: World) -> None:
    world.rank(0, hello())
    form(world, 1)
    commands = world.tell(ev.Abandoned("gone"))
    assert reports(commands, v.Guests) == [v.Guests((guest(2),))]
    assert to_rank(commands, v.Waiting) == {0: v.Waiting("gone")}


def test_who_holds_up_the_others_is_ended_by_its_handle(world: World) -> None:
    begin(world)
    world.plan()
    world.order(v.EndEpoch(v.Error(v.ErrorKind.LOST, "rank 0 died")))
    world.seen = ev.Seen((ev.SeenRound(7, 0, 9.0, (), (1,)),), ())
    world.now += 10
    commands = world.tell(ev.Tick())
    assert of(commands, ev.EndGuest) == [ev.EndGuest(11)]
    assert not of(commands, ev.EndProcess)


def test_warnings_are_heard_by_the_first_rank_here(world: World) -> None:
    begin(world)
    commands = world.order(v.Warn("slow"), 0)
    assert of(commands, ev.Show) == [ev.Show("slow")]
    assert to_rank(commands, v.Warning) == {0: v.Warning("slow")}


def test_a_coordinator_that_was_started_anew_is_told_of_the_job(world: World) -> None:
    world.rank(0, hello(100))
    mine = places("a", "b")
    start = v.StartRanks((), {}, "", 2, mine, 1, (1, 5), "/7.1", 7)
    assert [body.rank for body in reports(world.order(start, 0), v.RankHello)] == [0]  # the other one is not here
    told = world.core.presented(9.0)
    assert (told.start, told.last_job, told.last_epoch) == ((start,), "/7.1", 0)
    (fact,) = told.ranks
    assert (fact.rank, fact.pid, [said.pid for said in fact.hello], fact.epoch) == (0, 100, [100], 0)
    world.order(v.JobFinished(0, ""), 0)
    assert world.core.presented(9.0).finished == ()  # it never began


def test_one_that_was_not_there_any_more_is_told_to_the_next_coordinator(world: World) -> None:
    form(world, 3)
    (fact,) = world.core.presented(0.0).ranks
    assert fact.exited == (v.RankExited(0, 0, 1, 0, False),)


def test_what_has_happened_to_ranks_is_told_too(world: World) -> None:
    begin(world)
    world.now = 5.0
    world.rank(0, v.Leave(1))
    world.now = 6.0
    world.tell(ev.ConnectionClosed(11))
    first, second = world.core.presented(8.0).ranks
    assert (first.left, first.left_epoch, first.left_s, first.epoch) == ((v.RankLeft(0, 1),), 1, 3.0, 0)
    assert (second.exited, second.exited_s, second.epoch) == ((v.RankExited(1, 101, 1, 0, False),), 2.0, 1)
    world.order(v.JobFinished(1, "Rank 1 is gone.", 1), 0)
    (end,) = world.core.presented(8.0).finished
    assert (end.code, end.text, end.rank, end.started) == (1, "Rank 1 is gone.", 1, 0)


def test_ranks_of_a_job_that_was_given_up_are_told_and_may_wait_again(world: World) -> None:
    begin(world)
    world.order(v.StopRanks("It did not come back in time.", 0.0), 0)
    commands = world.order(v.JobFinished(1, "It did not come back in time."), 0)
    assert [body.error.text for body in to_rank(commands, v.EpochEnded).values()] == [
        "It did not come back in time."
    ] * 2
    assert not of(commands, ev.EndProcess)
    world.rank(0, v.Leave(1))
    world.rank(0, hello(100, generation=2))
    assert reports(world.out, v.Guests)[-1].items == ()
    world.rank(1, v.Leave(1))
    assert [item.pid for item in reports(world.out, v.Guests)[-1].items] == [100]
