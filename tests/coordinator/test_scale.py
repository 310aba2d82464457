"""What the coordinator does for n agents grows with n, not with its square: counted, not timed."""

from __future__ import annotations

from functools import cache

import pytest
from horovod.coordinator.core import Coordinator, JobSubmitted, Report, Tick
from horovod.coordinator.core import events as ev
from horovod.coordinator.core.commands import sends
from horovod.coordinator.core.values import Announcement, BlockedOn, Kind, RankState, Signature

from benchmarks.model import Model, Step, run_all

SIZES = (10, 100, 1000)
PER_AGENT = {  # orders that an agent gets in each step
    "agents come": 1,
    "a job is submitted": 1,
    "ranks start": 0,
    "the epoch begins": 1,
    "a tensor is negotiated": 1,
    "ranks that wait are observed": 0,
    "a tick while ranks wait": 0,
    "heartbeats": 0,
    "ranks join": 3,  # the first join, its own, that all have
    "agents are quiet": 2,  # no zeros any more, and: be quiet again; plans that had zeros: none
    "join returns": 1,
    "an agent is lost": 1,  # StopRanks comes with a later tick
    "ranks exit": 1,
}
WHOLE_JOB = {"a job is submitted", "the epoch begins"}  # each agent is told of all others


@cache
def steps(agents: int) -> dict[str, Step]:
    return {step.name: step for step in run_all(agents).steps}


@pytest.mark.parametrize("agents", SIZES)
def test_orders_per_agent_do_not_depend_on_how_many_there_are(agents: int) -> None:
    counted = {name: round(step.orders / agents) for name, step in steps(agents).items()}
    lost = {"an agent is lost", "ranks exit"}  # one agent less
    assert {name: n for name, n in counted.items() if name not in lost} == {
        name: n for name, n in PER_AGENT.items() if name not in lost
    }
    assert steps(agents)["an agent is lost"].orders == agents - 1
    assert steps(agents)["ranks exit"].orders == agents - 1


@pytest.mark.parametrize("name", sorted(PER_AGENT.keys() - WHOLE_JOB))
def test_bytes_per_agent_do_not_depend_on_how_many_there_are(name: str) -> None:
    few, many = (steps(agents)[name].order_bytes / agents for agents in (SIZES[0], SIZES[-1]))
    assert many <= 1.25 * few + 16


@pytest.mark.parametrize("name", ["a tensor is negotiated", "the epoch begins", "an agent is lost"])
def test_what_all_agents_hear_is_one_command(name: str) -> None:
    assert steps(SIZES[-1])[name].commands <= 2


class CountedSet(dict[int, int]):
    """Counts how often somebody looks at a member."""

    looks = 0

    def __contains__(self, key: object) -> bool:
        CountedSet.looks += 1
        return super().__contains__(key)


@pytest.mark.parametrize("agents", SIZES)
def test_an_announcement_looks_at_few_members(agents: int) -> None:
    model = Model(agents)
    model.begin()
    assert model.core.epoch is not None
    signature = Signature(Kind.ALLREDUCE, "x")
    first, *others = (Announcement(rank, 1, signature) for rank in range(agents))
    model.play("first", [Report("a00000", 1, ev.Announcements((first,)))])
    entry = model.core.epoch.negotiation.entries[signature.key]
    entry.announced = CountedSet(entry.announced)  # type: ignore[assignment]
    CountedSet.looks = 0
    model.play("others", [Report(model.names[item.rank], 1, ev.Announcements((item,))) for item in others])
    assert model.core.epoch.plans.made == 1
    assert 0 < CountedSet.looks <= 2 * agents


def test_a_cycle_of_very_many_ranks_is_found() -> None:
    size = 1500
    core = Coordinator()
    names = [f"a{rank}" for rank in range(size)]

    def tell(rank: int, body: ev.Body, epoch: int = 1) -> None:
        core.handle(Report(names[rank], epoch, body), 0.0)

    for rank in range(size):
        tell(rank, ev.Register(names[rank], "h", 1), 0)
    core.handle(JobSubmitted(size, ("train",)), 0.0)
    for rank in range(size):
        tell(rank, ev.RankHello(rank, 1), 0)
    assert core.epoch is not None
    for rank in range(size):  # each waits for the next two, in a set of their own
        ring = core.epoch.sets.add(tuple(sorted({rank, (rank + 1) % size, (rank + 2) % size})))
        assert not hasattr(ring, "kind")
        signature = Signature(Kind.ALLREDUCE, f"x{rank}", process_set=ring.id)  # type: ignore[union-attr]
        tell(rank, ev.Announcements((Announcement(rank, 2, signature),)))
    said = []
    for _ in range(2):
        for rank in range(size):
            state = RankState(rank, 1, 1, 2, 1.0)
            tell(rank, ev.Observation((), (state,), (), (BlockedOn(rank, 0, 0, f"x{rank}"),)))
        said += [send.body for send in sends(core.handle(Tick(), 1.0))]
    assert [type(body).__name__ for body in said] == ["Warn"]
