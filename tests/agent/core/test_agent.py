"""Ranks on an agent: who may speak for one, init and shutdown, deaths, orders that come late."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from horovod.agent.core import events as ev
from horovod.agent.core import values as v

from tests.agent.core.fakes import SUM, World, of, places, reports, to_rank


@pytest.fixture
def world() -> World:
    return World()


def test_start_says_who_the_agent_is(world: World) -> None:
    assert reports(world.core.start(), v.Register) == [v.Register("a", "host-a", 2)]


def test_ranks_start_with_their_own_environment(world: World) -> None:
    first, second = of(world.start(), ev.StartProcess)
    assert (first.rank, first.command, first.directory) == (0, ("python", "train.py"), "/home")
    wanted = {
        "PATH": "/bin",
        "HOROVOD_RANK": "1",
        "HOROVOD_SIZE": "2",
        "HOROVOD_LOCAL_RANK": "1",
        "HOROVOD_AGENT": "unix:@a",
    }
    assert wanted.items() <= second.environment.items()
    assert second.environment["HOROVOD_CONTROLLER"] == "gloo"
    assert first.environment["HVD_SLOT_NONCE"] != second.environment["HVD_SLOT_NONCE"]


def test_what_the_user_has_set_stays(world: World) -> None:
    environment = {"HOROVOD_CPU_OPERATIONS": "mpi", "HOROVOD_RANK": "9", "X": "a\nb"}
    (start,) = of(world.order(v.StartRanks(("x",), environment, "", 1, places("a"))), ev.StartProcess)
    assert (start.environment["HOROVOD_CPU_OPERATIONS"], start.environment["X"]) == ("mpi", "a\nb")
    assert start.environment["HOROVOD_RANK"] == "0"


def test_an_epoch_makes_the_board_before_anybody_is_welcome(world: World) -> None:
    commands = world.begin()
    assert commands[0] == ev.BoardCreate(1, (10, 11))
    welcome = to_rank(commands, v.Welcome)[1]
    assert (welcome.rank, welcome.size, welcome.local_rank, welcome.local_ranks) == (1, 2, 1, (0, 1))
    assert welcome.hosts == ("host-a", "host-a")
    assert welcome.homogeneous


def test_only_local_ranks_are_on_the_board() -> None:
    world = World(agents=("b", "a", "b"))
    commands = world.begin()
    assert of(commands, ev.BoardCreate) == [ev.BoardCreate(1, (11,), shared=True)]
    assert list(to_rank(commands, v.Welcome)) == [1]
    assert not to_rank(commands, v.Welcome)[1].homogeneous


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"protocol": 2}, "same version"),
        ({"nonce": "stolen"}, "does not belong to a slot"),
        ({"rank": 5}, "does not belong to a slot"),
        ({"descriptors": False}, "without its descriptors"),
    ],
)
def test_a_hello_that_makes_no_sense_is_rejected_with_advice(world: World, change: dict[str, Any], words: str) -> None:
    world.start()
    commands = world.tell(ev.FromRank(50, replace(world.hello(0), **change)))
    (answer,) = of(commands, ev.ToRank)
    assert isinstance(answer.body, v.Rejected)
    assert words in answer.body.reason
    assert not reports(commands, v.RankHello)


def test_a_subprocess_that_inherited_the_variables_is_rejected(world: World) -> None:
    world.begin()
    (answer,) = of(world.tell(ev.FromRank(50, world.hello(0, pid=999))), ev.ToRank)
    assert isinstance(answer.body, v.Rejected)
    assert "pid 100" in answer.body.reason
    assert world.rank(0, v.Join(1)) == [ev.ToCoordinator(1, v.JoinRequested(0, 1))]


def test_init_twice_without_shutdown_is_rejected(world: World) -> None:
    world.begin()
    assert "without shutdown" in to_rank(world.rank(0, world.hello(0)), v.Rejected)[0].reason


@pytest.mark.parametrize("body", [v.Announce(1, SUM), v.RetireAck((7,)), v.Join(1), v.Leave(1)])
def test_the_first_word_must_be_hello(world: World, body: v.WorkerBody) -> None:
    world.start()
    (close,) = of(world.rank(0, body), ev.CloseConnection)
    assert "before Hello" in close.reason


@pytest.mark.parametrize("body", [v.Announce(1, SUM), v.Join(1), v.Leave(1)])
def test_inside_init_nothing_else_is_said(world: World, body: v.WorkerBody) -> None:
    world.start()
    world.rank(0, world.hello(0))
    assert len(of(world.rank(0, body), ev.CloseConnection)) == 1


def test_words_that_were_slower_than_shutdown_do_no_harm(world: World) -> None:
    world.begin()
    world.rank(0, v.Leave(1))
    assert world.rank(0, v.RetireAck((7,))) == []
    assert world.rank(0, v.Announce(3, SUM)) == []
    world.rank(0, world.hello(0, generation=2))
    assert world.rank(0, v.RetireAck((7,))) == []


@pytest.mark.parametrize(
    "signature",
    [
        v.Signature(v.Kind.ALLREDUCE, "x", dtype=99, shapes=((1,),)),
        v.Signature(v.Kind.ALLREDUCE, "x", op=17, shapes=((1,),)),
        v.Signature(v.Kind.ALLREDUCE, "x", shapes=((-4,),)),
        v.Signature(v.Kind.ALLREDUCE, "x", shapes=((1 << 30, 1 << 30),)),
        v.Signature(v.Kind.ALLREDUCE, "x", shapes=((1 << 39,),) * 3),
    ],
)
def test_a_signature_that_makes_no_sense_ends_that_connection_only(world: World, signature: v.Signature) -> None:
    world.begin()
    (close,) = of(world.rank(0, v.Announce(1, signature)), ev.CloseConnection)
    assert close.connection == 10
    assert "'x'" in close.reason
    assert reports(world.rank(1, v.Announce(1, SUM)), v.Announcements)


def test_shutdown_is_answered_and_the_last_one_closes_the_board(world: World) -> None:
    world.begin()
    first = world.rank(0, v.Leave(1))
    assert to_rank(first, v.Closed) == {0: v.Closed(1)}
    assert reports(first, v.RankLeft) == [v.RankLeft(0, 1)]
    assert not of(first, ev.BoardClose)
    assert of(world.rank(1, v.Leave(1)), ev.BoardClose)
    assert reports(world.rank(0, v.Leave(1)), v.RankLeft) == []


def test_generations_follow_each_other(world: World) -> None:
    for epoch in (1, 2, 3):
        assert of(world.begin(epoch), ev.BoardCreate) == [ev.BoardCreate(epoch, (10, 11))]
        for rank in (0, 1):
            world.rank(rank, v.Leave(epoch))


def test_the_end_of_an_old_epoch_does_not_reject_the_next_init(world: World) -> None:
    world.begin()
    for rank in (0, 1):
        world.rank(rank, v.Leave(1))
    world.rank(0, world.hello(0, generation=2))
    assert world.order(v.EndEpoch(v.Error(v.ErrorKind.SHUT_DOWN, "rank 0 left")), 1) == []


def test_an_epoch_that_could_not_begin_here_ends_for_those_who_wait(world: World) -> None:
    world.start()
    for rank in (0, 1):
        world.rank(rank, world.hello(rank))
    world.tell(ev.ConnectionClosed(11))
    sets = (v.ProcessSet(0, (0, 1)),)
    assert world.order(v.EpochStart(places("a", "a"), sets)) == []
    commands = world.order(v.EndEpoch(v.Error(v.ErrorKind.LOST, "rank 1 was killed")))
    assert to_rank(commands, v.Rejected)[0].reason == "rank 1 was killed"


@pytest.mark.parametrize("connection_first", [True, False])
def test_a_death_is_reported_once_with_its_last_words(world: World, connection_first: bool) -> None:
    world.begin()
    events: list[ev.Event] = [ev.ConnectionClosed(11), ev.ProcessEnded(1, 137, 9, last_lines="Traceback")]
    commands = [command for event in (events if connection_first else events[::-1]) for command in world.tell(event)]
    assert reports(commands, v.RankExited) == [v.RankExited(1, 101, 137, 9, left=False, last_lines="Traceback")]
    assert of(commands, ev.RankDead) == [ev.RankDead(1)]
    assert world.tell(ev.ProcessEnded(1, 137, 9)) == []


def test_last_words_of_a_dead_process_are_nobodys(world: World) -> None:
    world.begin()
    world.order(v.EndEpoch(v.Error(v.ErrorKind.LOST, "gone")))
    world.tell(ev.ProcessEnded(1, 1))
    assert world.rank(1, v.Announce(1, SUM)) == []


@pytest.mark.parametrize(("left", "code"), [(True, 0), (False, 0), (False, 3)])
def test_an_exit_says_whether_the_rank_owed_something(world: World, left: bool, code: int) -> None:
    world.begin()
    if left:
        world.rank(1, v.Leave(1))
    (exited,) = reports(world.tell(ev.ProcessEnded(1, code)), v.RankExited)
    assert (exited.left, exited.code) == (left, code)


def test_a_rank_that_never_called_init_owes_nothing(world: World) -> None:
    world.start()
    (exited,) = reports(world.tell(ev.ProcessEnded(0, 127, start_error="no such file")), v.RankExited)
    assert (exited.left, exited.start_error) == (True, "no such file")


def test_a_live_process_without_connection_is_ended(world: World) -> None:
    world.begin()
    world.tell(ev.ConnectionClosed(11))
    assert not of(world.tell(ev.Tick()), ev.EndProcess)
    world.now = 1.5
    commands = world.tell(ev.Tick())
    assert of(commands, ev.EndProcess) == [ev.EndProcess(1, kill=True)]
    assert "Rank 1 closed its connection" in of(commands, ev.Show)[0].text
    assert not of(world.tell(ev.Tick()), ev.EndProcess)


def test_stop_ends_what_runs(world: World) -> None:
    world.begin()
    world.tell(ev.ProcessEnded(0, 0))
    assert of(world.order(v.StopRanks("rank 0 failed", 5.0)), ev.EndProcess) == [ev.EndProcess(1)]


def test_words_for_people_and_the_end_of_the_job(world: World) -> None:
    world.begin()
    assert world.order(v.Warn("slow")) == [ev.Show("slow")]
    assert world.order(v.JobFinished(3, "failed"), 0) == [ev.JobOver(3, "failed")]
    world.rank(0, v.Leave(1))
    assert of(world.start(), ev.StartProcess)


def test_orders_of_other_epochs_are_dropped(world: World) -> None:
    world.begin()
    assert world.order(v.Hold(7), epoch=2) == []
    assert world.order(v.EndEpoch(v.Error(v.ErrorKind.LOST, "old")), epoch=9) == []


def test_a_rejected_rank_may_try_again(world: World) -> None:
    world.start()
    world.rank(0, world.hello(0))
    answer = to_rank(world.order(v.RankRejected(0, "sets differ", retry=True), 0), v.Rejected)[0]
    assert (answer.reason, answer.retry) == ("sets differ", True)
    assert reports(world.rank(0, world.hello(0, generation=2)), v.RankHello)
    (exited,) = reports(world.tell(ev.ProcessEnded(1, 0)), v.RankExited)
    assert exited.left


# ---- the end of a program


def ended_early(world: World) -> list[v.RankLeft]:
    return reports(world.rank(1, v.Leave(1, finished=True)), v.RankLeft)


@pytest.mark.parametrize(
    ("code", "signal", "reason"), [(3, 0, "exited with code 3"), (130, 2, "was killed by signal 2"), (0, 0, "")]
)
def test_why_a_program_ended_is_told_with_its_exit(code: int, signal: int, reason: str) -> None:
    world = World()
    world.begin()
    assert ended_early(world) == []
    told = world.tell(ev.ProcessEnded(1, code, signal))
    assert reports(told, v.RankLeft) == [v.RankLeft(1, 1, reason)]
    assert [type(c.body) for c in of(told, ev.ToCoordinator)] == [v.RankLeft, v.RankExited]
    world.now = 5.0
    assert reports(world.tell(ev.Tick()), v.RankLeft) == []


def test_a_program_that_takes_long_to_end_is_not_waited_for() -> None:
    world = World()
    world.begin()
    assert ended_early(world) == []
    world.now = 0.9
    assert reports(world.tell(ev.Tick()), v.RankLeft) == []
    world.now = 1.0
    assert reports(world.tell(ev.Tick()), v.RankLeft) == [v.RankLeft(1, 1)]
    assert reports(world.tell(ev.ProcessEnded(1, 3)), v.RankLeft) == []


def test_an_exception_is_told_at_once() -> None:
    world = World()
    world.begin()
    left = world.rank(1, v.Leave(1, "raised KeyError: 'x'", finished=True))
    assert reports(left, v.RankLeft) == [v.RankLeft(1, 1, "raised KeyError: 'x'")]


def test_a_program_that_comes_back_all_the_same_has_left_before() -> None:
    world = World()
    world.begin()
    ended_early(world)
    back = world.rank(1, world.hello(1, generation=2))
    assert [type(c.body) for c in of(back, ev.ToCoordinator)] == [v.RankLeft, v.RankHello]
