"""A coordinator that was started anew: whom it waits for, what it takes over, whom it sends away."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import replace

import pytest
from horovod.coordinator.core import (
    Command,
    Config,
    Coordinator,
    JobAdopted,
    JobEnded,
    JobSubmitted,
    Report,
    Send,
    Tick,
)
from horovod.coordinator.core import commands as cmd
from horovod.coordinator.core import events as ev
from horovod.coordinator.core.job import RankPhase
from horovod.coordinator.core.selfstart import SelfStart
from horovod.coordinator.core.sessions import PROTOCOL, Hello, Refusal, SessionBook, Welcome
from horovod.coordinator.core.values import (
    Announcement,
    Error,
    ErrorKind,
    Guest,
    Kind,
    ProcessSet,
    RankPlace,
    RankRequest,
    Signature,
)
from horovod.coordinator.http import coordinator_pages
from horovod.observe.http import Pages

PLACES = (RankPlace(0, "a", "host-a", 0, 1, 0, 2), RankPlace(1, "b", "host-b", 0, 1, 1, 2))
START = cmd.StartRanks(("train",), {}, "", 2, PLACES, 3, (), "job", 7, "me@here", Config(stall_check_s=5.0))
GLOBAL = ProcessSet(0, (0, 1))
EPOCH = cmd.EpochStart(PLACES, (GLOBAL,), (cmd.Host("a", "host-a"), cmd.Host("b", "host-b")), b"key")
X, Y = (Signature(Kind.ALLREDUCE, f"allreduce.{name}", shapes=((4,),)) for name in "xy")
PLAN = (7 << 40) + 5


def rank(number: int, **other: object) -> ev.RankPresented:
    fields = {"pid": 100 + number, "epoch": 4, "hello": (ev.RankHello(number, 1),), **other}
    return ev.RankPresented(number, **fields)  # type: ignore[arg-type]


def part(**other: object) -> ev.EpochPresented:
    return ev.EpochPresented(**{"sets": (GLOBAL,), **other})  # type: ignore[arg-type]


def presented(number: int, epoch: ev.EpochPresented | None = None, **other: object) -> ev.Presented:
    fields = {"ranks": (rank(number),), "last_epoch": 4, "epoch_start": (EPOCH,), **other}
    return ev.Presented("job", (START,), epoch=(epoch or part(),), **fields)  # type: ignore[arg-type]


class Started:
    """A coordinator that knows nothing yet."""

    def __init__(self) -> None:
        self.core = Coordinator(incarnation=9, patience_s=15.0)
        self.now = 100.0

    def tell(self, event: ev.Event) -> list[Command]:
        said = self.core.handle(event, self.now)
        self.core.check_invariants()
        return said

    def come(self, agent: str, presents: bool = True) -> list[Command]:
        return self.tell(Report(agent, 0, ev.Register(agent, f"host-{agent}", 1, presents=presents)))

    def present(self, agent: str, body: ev.Presented) -> list[Command]:
        return self.come(agent) + self.tell(Report(agent, 0, body))


def orders(commands: Iterable[Command]) -> list[tuple[str, object]]:
    sent = [(send.agent, send.body) for send in cmd.sends(commands)]
    return [(agent, body) for agent, body in sent if not isinstance(body, cmd.Registered)]


def test_nothing_is_ordered_before_all_agents_of_the_job_are_back() -> None:
    world = Started()
    assert world.present("a", presented(0)) == []
    announced = ev.Announcements((Announcement(0, 1, X),))
    assert world.tell(Report("a", 4, announced)) == []
    assert world.core.adoption is not None
    said = world.present("b", presented(1, part(announcements=(Announcement(1, 8, X),))))
    (adopted,) = (c for c in said if isinstance(c, JobAdopted))
    assert adopted == JobAdopted("job", 3, 2, ("train",), "me@here", ("a", "b"), world.core.handled)
    made = [body for _, body in orders(said) if isinstance(body, cmd.PlanMade)]
    assert {body.requests for body in made} == {(RankRequest(0, 1),), (RankRequest(1, 8),)}
    assert world.core.job is not None
    assert world.core.epoch is not None
    assert (world.core.epoch.number, world.core.jobs, world.core.tally.jobs_adopted) == (4, 3, 1)
    assert world.core.config.stall_check_s == 5.0


def test_an_agent_that_does_not_come_back_is_lost_and_sent_away_later() -> None:
    world = Started()
    world.present("a", presented(0))
    world.now += 14.9
    assert world.tell(Tick()) == []
    world.now += 0.2
    said = orders(world.tell(Tick()))
    assert any(isinstance(body, cmd.EndEpoch) for _, body in said)
    late = orders(world.present("b", presented(1)))
    assert [type(body) for _, body in late[-2:]] == [cmd.StopRanks, cmd.JobFinished]


def test_an_agent_that_was_started_anew_too_has_lost_its_ranks() -> None:
    world = Started()
    world.present("a", presented(0))
    said = world.come("b", presents=False)
    assert any(isinstance(body, cmd.EndEpoch) for _, body in orders(said))
    assert world.core.job is not None
    assert world.core.job.ranks[1].phase is RankPhase.GONE


def test_a_rank_of_which_nobody_knows_the_process_is_named_without_one() -> None:
    world = Started()
    world.present("a", presented(0))
    world.now += 15.1
    ended = [body.error.text for _, body in orders(world.tell(Tick())) if isinstance(body, cmd.EndEpoch)]
    assert len(ended) == 1
    assert ended[0].startswith(
        "Rank 1 (host host-b) can't be reached: agent b on host host-b is lost: it did not come back"
    )


def test_limits_are_not_those_of_the_job_before() -> None:
    core = Coordinator(Config(stall_check_s=7.0))
    core.handle(Report("a", 0, ev.Register("a", "host-a", 1)), 0.0)
    core.handle(JobSubmitted(1, ("train",), {}, "", Config(stall_check_s=1.0)), 0.0)
    assert core.config.stall_check_s == 1.0
    core.handle(Report("a", 0, ev.RankExited(0, 5, 0)), 0.0)
    core.handle(JobSubmitted(1, ("train",), {}), 0.0)
    assert core.job is not None
    assert core.config.stall_check_s == 7.0


def test_what_one_agent_was_told_is_told_to_the_other() -> None:
    world = Started()
    plan = ev.PlanPresented(PLAN, X, (0, 1))
    world.present("a", presented(0, part(plans=(plan,), highest_plan=PLAN)))
    mine = (Announcement(1, 8, X), Announcement(1, 9, Y))
    said = orders(world.present("b", presented(1, part(announcements=mine))))
    assert said == [("b", cmd.PlanMade(PLAN, X, (RankRequest(1, 8),)))]
    made = orders(world.tell(Report("a", 4, ev.Announcements((Announcement(0, 3, Y),)))))
    assert all(isinstance(body, cmd.PlanMade) and body.plan > PLAN + (1 << 39) for _, body in made)


def test_a_limit_that_one_agent_knows_holds_for_all_even_if_its_plan_is_gone_there() -> None:
    world = Started()
    world.present("a", presented(0, part(highest_plan=PLAN, retired=(cmd.RetirePlan(PLAN, 6),))))
    held = ev.PlanPresented(PLAN, X, (0, 1), held=True)
    said = orders(world.present("b", presented(1, part(plans=(held,), highest_plan=PLAN))))
    assert said == [("b", cmd.RetirePlan(PLAN, 6))]


def test_a_plan_on_its_way_to_a_limit_is_held_again() -> None:
    world = Started()
    live, held = (ev.PlanPresented(PLAN, X, (0, 1), held=state) for state in (False, True))
    world.present("a", presented(0, part(plans=(live,), highest_plan=PLAN)))
    said = orders(world.present("b", presented(1, part(plans=(held,), highest_plan=PLAN))))
    assert sorted(said, key=str) == [("a", cmd.Hold(PLAN)), ("b", cmd.Hold(PLAN))]


def test_the_first_failure_is_the_one_that_happened_first() -> None:
    world = Started()
    late = rank(0, exited=(ev.RankExited(0, 100, 1, left=False),), exited_s=1.0)
    first = rank(1, exited=(ev.RankExited(1, 101, 137, 9, left=False),), exited_s=8.0)
    world.present("a", presented(0, ranks=(late,)))
    (end,) = (c for c in world.present("b", presented(1, ranks=(first,))) if isinstance(c, JobEnded))
    assert (end.code, end.rank, end.signal) == (137, 1, 9)


@pytest.mark.parametrize("ends", [False, True])
def test_ranks_have_time_to_show_an_error_that_came_before_the_coordinator_was_killed(ends: bool) -> None:
    world = Started()
    error = Error(ErrorKind.LOST, "Rank 1 was killed.")
    first = rank(1, exited=(ev.RankExited(1, 101, 137, 9, left=False),), exited_s=1.9)
    world.present("a", presented(0, part(ended=(error,))))
    said = orders(world.present("b", presented(1, ranks=(first,))))
    assert not any(isinstance(body, cmd.StopRanks) for _, body in said)
    assert orders(world.tell(Tick())) == []
    if ends:
        said = world.tell(Report("a", 4, ev.RankExited(0, 100, 1, left=False)))
        assert [c.code for c in said if isinstance(c, JobEnded)] == [137]
        return
    world.now += 2.0
    assert [type(body) for _, body in orders(world.tell(Tick()))] == [cmd.StopRanks, cmd.StopRanks]


def test_an_agent_that_never_heard_of_the_job_starts_its_ranks() -> None:
    world = Started()
    fresh = ev.RankPresented(0, 100)
    world.present("a", ev.Presented("job", (START,), ranks=(fresh,)))
    said = orders(world.present("b", ev.Presented("an earlier one")))
    assert [(agent, type(body)) for agent, body in said] == [("b", cmd.StartRanks)]


def test_the_end_of_a_job_is_remembered_for_its_launcher() -> None:
    world = Started()
    finished = ev.FinishedJob(
        "job", 3, "Rank 1 exited with code 3.", 1, "host-b", 101, has_output=True, job=3, started=7
    )
    world.present("a", ev.Presented("job", finished=(finished,)))
    said = world.present("b", presented(1))
    assert [type(c) for c in said if not isinstance(c, Send | cmd.Cast)] == [JobAdopted, JobEnded]
    assert ("b", cmd.JobFinished(3, "Rank 1 exited with code 3.", 1, "host-b", 101)) in orders(said)
    assert world.core.results["job"].code == 3
    assert world.tell(JobSubmitted(1, ("next",))) != []


def hello(incarnation: int, name: str = "a") -> Hello:
    return Hello(PROTOCOL, "x", name, f"host-{name}", 1, f"instance-{name}", incarnation)


def test_a_clock_that_was_set_back_does_not_keep_agents_away() -> None:
    book = SessionBook(50, 10.0)
    assert isinstance(book.hello(hello(70), 1, 0.0), Welcome)
    assert book.incarnation == 71


def test_a_coordinator_that_was_replaced_does_not_take_agents_back() -> None:
    book = SessionBook(50, 10.0)
    assert isinstance(book.hello(hello(0), 1, 0.0), Welcome)
    refusal = book.hello(hello(70, "b"), 2, 0.0)
    assert isinstance(refusal, Refusal)
    assert "started later" in refusal.text
    assert book.incarnation == 50


def test_it_is_not_ready_while_it_waits() -> None:
    async def reason() -> tuple[str, str]:
        world = Started()
        pages: Pages = coordinator_pages(world.core, lambda: world.now, lambda: True)
        before = pages.reason_not_ready()
        world.present("a", presented(0))
        return before, pages.reason_not_ready()

    assert asyncio.run(reason()) == ("", "agents of an earlier coordinator are awaited")


# ---- jobs of processes that others have started


def self_started(number: int, id: str = "/7.3", **other: object) -> ev.Presented:
    start = cmd.StartRanks((), {}, "", 2, PLACES, 3, (4, 9), id, 7, "me@here" if id[0] != "/" else "")
    fields = {"ranks": (rank(number),), "last_epoch": 4, "epoch_start": (EPOCH,), **other}
    return ev.Presented(id, (start,), epoch=(part(),), **fields)  # type: ignore[arg-type]


def waits(world: Started, agent: str, *numbers: int, resting: int = 0) -> list[Command]:
    items = tuple(Guest(number, 100 + number) for number in numbers)
    return world.tell(Report(agent, 0, ev.Guests(items, resting)))


def test_a_job_of_processes_that_others_have_started_goes_on_and_the_next_one_follows() -> None:
    world = Started()
    world.core.selfstart = SelfStart(2)
    world.present("a", self_started(0))
    said = world.present("b", self_started(1))
    assert [c for c in said if isinstance(c, JobAdopted)] == [JobAdopted("", 3, 2, (), "", (), world.core.handled)]
    assert orders(said) == []
    core = world.core
    assert core.job is not None
    assert (core.job.attached, core.job.guests, core.job.phases[RankPhase.READY]) == (True, (4, 9), 2)
    full = orders(waits(world, "a", 5))
    assert [type(body) for _, body in full] == [cmd.GuestRejected]
    world.tell(Report("a", 4, ev.RankLeft(0, 1)))
    said = world.tell(Report("b", 4, ev.RankLeft(1, 1)))
    assert [c.code for c in said if isinstance(c, JobEnded)] == [0]
    waits(world, "a", 6)
    (start, _) = orders(waits(world, "b", 10))
    assert isinstance(start[1], cmd.StartRanks)
    assert (start[1].id, start[1].guests, start[1].started) == ("/9.4", (6, 10), 9)


def test_its_launcher_has_its_next_jobs_too() -> None:
    world = Started()
    world.present("a", self_started(0, "mine/7.3"))
    said = world.present("b", self_started(1, "mine/7.3"))
    assert [(c.id, c.launcher, c.agents) for c in said if isinstance(c, JobAdopted)] == [("mine", "me@here", ())]
    world.tell(Report("a", 4, ev.RankLeft(0, 1)))
    waits(world, "a", resting=1)
    said = world.tell(Report("b", 4, ev.RankLeft(1, 1)))
    assert not any(isinstance(c, JobEnded) for c in said)
    waits(world, "a", 6)
    (start, _) = orders(waits(world, "b", 10))
    assert isinstance(start[1], cmd.StartRanks)
    assert (start[1].id, start[1].launcher) == ("mine/9.4", "me@here")


def test_processes_that_one_agent_has_not_heard_to_be_taken_get_their_places() -> None:
    world = Started()
    world.core.selfstart = SelfStart(2)
    waiting = ev.RankPresented(0, 104, hello=(ev.RankHello(0, 1),))
    world.present("a", self_started(0, ranks=(waiting,), last_epoch=0, epoch_start=()))
    said = orders(world.present("b", ev.Presented("an earlier one")))
    assert [(agent, type(body), body.guests) for agent, body in said if isinstance(body, cmd.StartRanks)] == [
        ("b", cmd.StartRanks, (4, 9))
    ]
    assert waits(world, "b", 9) == []  # it was written before that order came
    said = orders(world.tell(Report("b", 0, ev.RankHello(1, 1))))
    assert [type(body) for _, body in said] == [cmd.EpochStart] * 2


def test_what_has_happened_to_self_started_ranks_meanwhile_is_their_end() -> None:
    world = Started()
    world.core.selfstart = SelfStart(2)
    left = rank(0, epoch=0, hello=(), left_epoch=4, left=(ev.RankLeft(0, 1),), left_s=5.0)
    gone = replace(left, exited=(ev.RankExited(0, 100, 0),), exited_s=4.0)
    other = rank(1, epoch=0, hello=(), left_epoch=4, left=(ev.RankLeft(1, 1),), left_s=6.0)
    world.present("a", self_started(0, ranks=(gone,)))
    said = world.present("b", self_started(1, ranks=(other,)))
    assert [(c.code, c.text) for c in said if isinstance(c, JobEnded)] == [(0, "")]
    assert [type(body) for _, body in orders(said)][-2:] == [cmd.JobFinished] * 2
    assert world.core.job is None


def test_a_rank_that_died_before_the_beginning_dissolves_its_job() -> None:
    world = Started()
    world.core.selfstart = SelfStart(2)
    waiting = ev.RankPresented(0, 104, hello=(ev.RankHello(0, 1),))
    dead = ev.RankPresented(1, 0, exited=(ev.RankExited(1, 0, 1, left=False),), exited_s=1.0)
    nothing = {"last_epoch": 0, "epoch_start": ()}
    world.present("a", self_started(0, ranks=(waiting,), **nothing))
    said = world.present("b", self_started(1, ranks=(dead,), **nothing))
    assert [body for _, body in orders(said)] == [cmd.JobFinished(0, "")] * 2
    assert world.core.job is None
