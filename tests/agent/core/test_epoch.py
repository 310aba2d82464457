"""An epoch on an agent: plans and their retirement, joins, ends, and what is observed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from horovod.agent.core import events as ev
from horovod.agent.core import values as v
from horovod.agent.core.plans import payload_bytes

from tests.agent.core.fakes import SUM, UNNAMED, World, of, reports, to_rank

LOST = v.Error(v.ErrorKind.LOST, "rank 1 was killed")
SHUT_DOWN = v.Error(v.ErrorKind.SHUT_DOWN, "rank 0 left")


@pytest.fixture
def world() -> World:
    world = World()
    world.begin()
    return world


def test_an_announcement_goes_on_with_its_contest(world: World) -> None:
    (batch,) = reports(world.rank(1, v.Announce(4, SUM, 7, 2)), v.Announcements)
    assert batch.items == (v.Announcement(1, 4, SUM, 7, 2),)


def test_a_plan_is_told_when_its_block_exists(world: World) -> None:
    commands = world.plan()
    (add,) = of(commands, ev.PlanAdd)
    assert (add.kind, add.op, add.nbytes, add.depth, add.members) == (0, 1, 12, 2, (0, 1))
    assert commands.index(add) < min(commands.index(c) for c in of(commands, ev.ToRank))
    assert to_rank(commands, v.PlanReady) == {r: v.PlanReady(7, 448, (1,), SUM) for r in (0, 1)}


def test_who_did_not_ask_is_not_told(world: World) -> None:
    assert list(to_rank(world.plan(requests=((0, 3),)), v.PlanReady)) == [0]


@pytest.mark.parametrize(
    ("kind", "op", "wanted"),
    [
        (v.Kind.ALLREDUCE, 0, (0, 1, 1.0)),  # Average is Sum, scaled
        (v.Kind.ALLREDUCE, 3, (0, 3, 2.0)),
        (v.Kind.REDUCESCATTER, 0, (1, 1, 1.0)),
        (v.Kind.ALLGATHER, 1, (1, 1, 2.0)),
        (v.Kind.BROADCAST, 1, (1, 1, 2.0)),
        (v.Kind.BARRIER, 1, (0, 1, 2.0)),
    ],
)
def test_blocks_by_kind(world: World, kind: v.Kind, op: int, wanted: tuple[int, int, float]) -> None:
    signature = v.Signature(kind, "x", shapes=((5,),), op=op, postscale=2.0)
    (add,) = of(world.plan(signature=signature), ev.PlanAdd)
    assert (add.kind, add.op, add.postscale) == wanted


def test_unnamed_plans_are_deep(world: World) -> None:
    (add,) = of(world.plan(signature=UNNAMED), ev.PlanAdd)
    assert add.depth == 1024


def test_groups_are_aligned() -> None:
    group = v.Signature(v.Kind.ALLREDUCE, "g", shapes=((3,), (20,), (0,), (1,)))
    assert payload_bytes(group) == 64 + 128 + 0 + 4


def test_hold_marks_and_then_reads(world: World) -> None:
    world.plan()
    world.arrivals = {0: 3, 1: 2}
    commands = world.order(v.Hold(7))
    assert commands[0] == ev.PlanLimit(7, 0, read=True)
    assert reports(commands, v.Held) == [v.Held(7, (v.RankCount(0, 3), v.RankCount(1, 2)))]


def test_a_plan_goes_when_everybody_has_acknowledged(world: World) -> None:
    world.plan()
    commands = world.order(v.RetirePlan(7, 2))
    assert commands[0] == ev.PlanLimit(7, 2, read=False)
    assert to_rank(commands, v.Retire) == {0: v.Retire(7, 2), 1: v.Retire(7, 2)}
    assert world.rank(0, v.RetireAck((7,))) == []
    commands = world.rank(1, v.RetireAck((7,)))
    assert of(commands, ev.PlanRemove) == [ev.PlanRemove(7)]
    assert reports(commands, v.PlanRetired) == [v.PlanRetired(7)]
    assert world.core.epoch is not None
    assert not world.core.epoch.plans
    assert not world.core.epoch.request_plans


def test_a_block_that_is_still_read_is_tried_again(world: World) -> None:
    world.plan()
    world.order(v.RetirePlan(7, 0))
    world.removable = False
    world.rank(0, v.RetireAck((7,)))
    assert not reports(world.rank(1, v.RetireAck((7,))), v.PlanRetired)
    world.removable = True
    assert reports(world.tell(ev.Tick()), v.PlanRetired) == [v.PlanRetired(7)]


def test_a_lower_limit_is_passed_on_to_those_who_have_not_acknowledged(world: World) -> None:
    world.plan()
    world.order(v.RetirePlan(7, 2))
    world.rank(0, v.RetireAck((7,)))
    assert to_rank(world.order(v.RetirePlan(7, 1)), v.Retire) == {1: v.Retire(7, 1)}


def test_a_plan_that_is_gone_is_retired_again_without_ado(world: World) -> None:
    assert reports(world.order(v.RetirePlan(9, 1)), v.PlanRetired) == [v.PlanRetired(9)]
    assert reports(world.order(v.Hold(9)), v.Held) == [v.Held(9, ())]


def test_the_dead_hold_up_nothing(world: World) -> None:
    world.plan()
    world.order(v.RetirePlan(7, 2))
    world.rank(0, v.RetireAck((7,)))
    assert reports(world.tell(ev.ProcessEnded(1, 137, 9)), v.PlanRetired) == [v.PlanRetired(7)]


@pytest.mark.parametrize("plans", [(99,), (7, 7), ()])
def test_an_acknowledgement_nobody_asked_for_changes_nothing(world: World, plans: tuple[int, ...]) -> None:
    world.plan()
    assert world.rank(0, v.RetireAck(plans)) == []


def test_refusals_reach_local_ranks(world: World) -> None:
    error = v.Error(v.ErrorKind.MISMATCH, "differs")
    commands = world.order(v.Refusal((v.RankRequest(0, 3), v.RankRequest(1, 4)), error))
    assert to_rank(commands, v.Refused) == {0: v.Refused(3, error), 1: v.Refused(4, error)}


@pytest.mark.parametrize(("error", "closed"), [(SHUT_DOWN, True), (LOST, False)])
def test_the_end_is_on_the_board_before_it_is_told(world: World, error: v.Error, closed: bool) -> None:
    commands = world.order(v.EndEpoch(error))
    assert commands[0] == ev.BoardFail(closed, error.text)
    assert to_rank(commands, v.EpochEnded) == {r: v.EpochEnded(1, error) for r in (0, 1)}
    assert to_rank(world.rank(0, v.Announce(5, SUM)), v.Refused) == {0: v.Refused(5, error)}
    assert to_rank(world.rank(0, v.Join(6)), v.Refused) == {0: v.Refused(6, error)}


def test_process_sets_are_asked_for_and_answered(world: World) -> None:
    assert reports(world.rank(0, v.AddProcessSet(2, (0,))), v.SetAddRequested) == [v.SetAddRequested(0, 2, (0,))]
    added = v.SetAdded(v.ProcessSet(1, (0,)), (v.RankRequest(0, 2), v.RankRequest(1, 2)))
    assert len(to_rank(world.order(added), v.ProcessSetReady)) == 2
    assert reports(world.rank(1, v.RemoveProcessSet(3, 1)), v.SetRemoveRequested) == [v.SetRemoveRequested(1, 3, 1)]
    removed = world.order(v.SetRemoved(1, (v.RankRequest(1, 3),)))
    assert to_rank(removed, v.ProcessSetRemoved) == {1: v.ProcessSetRemoved(3, 1)}


# ---- join


def test_zeros_stand_in_for_joined_ranks(world: World) -> None:
    world.plan()
    world.plan(8, v.Signature(v.Kind.ALLGATHER, "g", shapes=((-1,),)))
    commands = world.order(v.JoinedRanks((1,)))
    assert of(commands, ev.WatchArrivals) == [ev.WatchArrivals(True)]
    (sweep,) = of(commands, ev.Sweep)
    assert (sweep.plans, sweep.joined) == ((7,), (1,))
    assert of(world.tell(ev.Bell()), ev.Sweep) == [sweep]
    commands = world.order(v.JoinedRanks((), anybody=False))
    assert of(commands, ev.WatchArrivals) == [ev.WatchArrivals(False)]
    assert not of(commands, ev.Sweep)


def test_what_comes_in_a_burst_is_swept_together(world: World) -> None:
    """A sweep looks at every plan: one for each would make a join among many plans take seconds."""
    world.order(v.JoinedRanks((1,)))
    for event in (ev.PlanPlaced(7, 448), ev.Wanted(7, 0)):
        world.core.handle(ev.FromCoordinator(1, v.PlanMade(7, SUM, ())), 0.0)
        commands = world.core.handle(event, 0.0)
        assert (of(commands, ev.SweepSoon), of(commands, ev.Sweep)) == ([ev.SweepSoon()], [])


def test_quiet_is_reported_once_with_the_plans_that_had_zeros(world: World) -> None:
    world.plan()
    world.swept = ev.Swept((7,), False)
    world.order(v.JoinedRanks((0, 1)))
    assert not reports(world.order(v.AllJoined()), v.JoinQuiet)
    world.swept = ev.Swept((), True)
    assert reports(world.tell(ev.Tick()), v.JoinQuiet) == [v.JoinQuiet((7,))]
    assert not reports(world.tell(ev.Tick()), v.JoinQuiet)
    done = world.order(v.JoinDone(1, (v.RankRequest(0, 4), v.RankRequest(1, 5))))
    assert to_rank(done, v.Joined) == {0: v.Joined(4, 1), 1: v.Joined(5, 1)}


def test_an_agent_that_owes_zeros_keeps_the_block_until_the_join_is_over() -> None:
    world = World(agents=("a", "b"))
    world.begin()
    world.order(v.JoinedRanks((0,)))
    world.plan(requests=())
    assert not of(world.order(v.RetirePlan(7, 1)), ev.PlanRemove)
    assert of(world.tell(ev.Bell()), ev.Sweep) == [ev.Sweep((7,), (0,), left=((7, 1),))]
    assert reports(world.order(v.JoinedRanks((), anybody=False)), v.PlanRetired) == [v.PlanRetired(7)]


def test_in_extended_mode_joined_ranks_take_part_in_everything_but_what_needs_their_data(world: World) -> None:
    world.plan()
    world.plan(8, v.Signature(v.Kind.ALLGATHER, "g", shapes=((-1,),)))
    world.plan(9, v.Signature(v.Kind.BROADCAST, "from 1", root=1))
    world.plan(10, v.Signature(v.Kind.BROADCAST, "from 0", root=0))
    (sweep,) = of(world.order(v.JoinedRanks((1,), extended=True)), ev.Sweep)
    assert (sweep.plans, sweep.joined, sweep.absent) == ((7, 8, 10), (1,), True)


def test_rounds_that_nobody_here_waits_for_hold_up_no_join() -> None:
    """A rank of another host has left them; nobody here will arrive in them."""
    world = World(agents=("a", "b"))
    world.begin()
    world.order(v.JoinedRanks((0,)))
    world.plan(signature=v.Signature(v.Kind.ALLGATHER, "g", shapes=((-1,),)), requests=())
    world.removable = False
    assert of(world.order(v.RetirePlan(7, 3)), ev.PlanRemove) == [ev.PlanRemove(7)]
    assert of(world.tell(ev.Bell()), ev.Sweep)[0].left == ((7, 3),)


# ---- what is observed


def waiting(blocked: int = 1, tag: int = 7) -> ev.Seen:
    rounds = (ev.SeenRound(7, 4, 2.5, (1,), ()),)
    ranks = (ev.SeenRank(0, 9, blocked, tag, 2.0, "running"), ev.SeenRank(1, 8, 0, 0, 0.0, "stopped"))
    return ev.Seen(rounds, ranks)


def test_what_waits_is_reported_with_the_states_of_ranks(world: World) -> None:
    world.plan()
    world.seen = waiting()
    (seen,) = reports(world.tell(ev.Tick()), v.Observation)
    assert seen.rounds == (v.OpenRound(7, 4, 2.5, (1,), ()),)
    assert [state.process_state for state in seen.ranks] == ["running", "stopped"]
    assert seen.blocked_on == (v.BlockedOn(0, 7, 4, "allreduce.x"),)


def test_what_waits_for_other_hosts_is_reported_after_a_while() -> None:
    """All ranks here have arrived, so nobody is missing here; the coordinator sees who knows nothing of the round."""
    world = World(agents=("a", "b"))
    world.begin()
    world.plan()
    ranks = (ev.SeenRank(0, 9, 1, 7, 2.0, "running"),)
    world.seen = ev.Seen((ev.SeenRound(7, 4, 2.5, (), ()), ev.SeenRound(7, 5, 0.1, (), ())), ranks)
    (seen,) = reports(world.tell(ev.Tick()), v.Observation)
    assert seen.rounds == (v.OpenRound(7, 4, 2.5),)
    assert seen.blocked_on == (v.BlockedOn(0, 7, 4, "allreduce.x"),)
    world.seen = replace(world.seen, moved=True)
    (seen,) = reports(world.tell(ev.Tick()), v.Observation)
    assert seen.rounds == (v.OpenRound(7, 4, 2.5, travels=True),)


def test_a_wait_for_a_name_that_is_not_negotiated_is_named(world: World) -> None:
    world.rank(0, v.Announce(3, SUM))
    world.seen = ev.Seen((), (ev.SeenRank(0, 1, 1, 3, 1.0, "running"),))
    (seen,) = reports(world.tell(ev.Tick()), v.Observation)
    assert seen.blocked_on == (v.BlockedOn(0, 0, 0, "allreduce.x"),)


@pytest.mark.parametrize(
    ("body", "name"),
    [
        (v.AddProcessSet(5, (1, 0)), "add process set [0, 1]"),
        (v.RemoveProcessSet(5, 3), "remove process set 3"),
        (v.Join(5), "join"),
    ],
)
def test_who_waits_for_the_answer_to_a_call_is_blocked(world: World, body: v.WorkerBody, name: str) -> None:
    world.now = 1.0
    world.rank(0, body)
    world.now = 3.5
    world.seen = ev.Seen((), (ev.SeenRank(0, 4, 0, 0, 0.0, "running"), ev.SeenRank(1, 4, 0, 0, 0.0, "running")))
    (seen,) = reports(world.tell(ev.Tick()), v.Observation)
    assert seen.ranks == (v.RankState(0, 4, 1, 5, 2.5, "running"), v.RankState(1, 4, 0, 0, 0.0, "running"))
    assert seen.blocked_on == (v.BlockedOn(0, 0, 0, name, 5),)


def test_of_an_operation_and_a_call_the_longer_wait_counts(world: World) -> None:
    world.plan()
    world.now = 3.0
    world.rank(0, v.AddProcessSet(5, (0,)))
    world.now = 4.0
    world.seen = waiting()
    (seen,) = reports(world.tell(ev.Tick()), v.Observation)
    assert (seen.ranks[0].blocked, seen.blocked_on) == (2, (v.BlockedOn(0, 7, 4, "allreduce.x"),))
    world.now = 6.0
    (seen,) = reports(world.tell(ev.Tick()), v.Observation)
    assert seen.blocked_on == (v.BlockedOn(0, 0, 0, "add process set [0]", 5),)


@pytest.mark.parametrize(
    "answer",
    [
        v.SetAdded(v.ProcessSet(1, (0,)), (v.RankRequest(0, 5),)),
        v.Refusal((v.RankRequest(0, 5),), v.Error(v.ErrorKind.INVALID, "exists already")),
        v.JoinDone(0, (v.RankRequest(0, 5),)),
    ],
)
def test_an_answered_call_blocks_nobody(world: World, answer: object) -> None:
    world.rank(0, v.AddProcessSet(5, (0,)))
    assert reports(world.tell(ev.Tick()), v.Observation)
    world.order(answer)
    (last,) = reports(world.tell(ev.Tick()), v.Observation)
    assert last == v.Observation()
    assert not reports(world.tell(ev.Tick()), v.Observation)


def test_the_calls_of_the_dead_are_forgotten(world: World) -> None:
    world.rank(0, v.Join(5))
    world.tell(ev.ConnectionClosed(10))
    epoch = world.core.epoch
    assert epoch is not None
    assert not epoch.calls.open


def test_silence_is_reported_once(world: World) -> None:
    world.plan()
    world.seen = waiting()
    assert reports(world.tell(ev.Tick()), v.Observation)
    world.seen = ev.Seen((), ())
    assert reports(world.tell(ev.Tick()), v.Observation)
    assert not reports(world.tell(ev.Tick()), v.Observation)


def test_a_holder_that_outlasts_the_end_is_killed(world: World) -> None:
    world.plan()
    world.order(v.EndEpoch(LOST))
    world.seen = ev.Seen((ev.SeenRound(7, 0, 1.0, (), (1,)),), ())
    world.now = 1.0
    assert not of(world.tell(ev.Tick()), ev.EndProcess)
    world.now = 2.5
    assert of(world.tell(ev.Tick()), ev.EndProcess) == [ev.EndProcess(1, kill=True)]


def test_memory_stays_flat_over_many_names(world: World) -> None:
    for number in range(1, 200):
        for rank in (0, 1):
            world.rank(rank, v.Announce(number, v.Signature(v.Kind.ALLREDUCE, f"loss.{number}", shapes=((1,),))))
        world.plan(number, requests=((0, number), (1, number)))
        world.order(v.RetirePlan(number, 1))
        for rank in (0, 1):
            world.rank(rank, v.RetireAck((number,)))
    epoch = world.core.epoch
    assert epoch is not None
    assert (len(epoch.plans), len(epoch.names), len(epoch.request_plans)) == (0, 0, 0)
