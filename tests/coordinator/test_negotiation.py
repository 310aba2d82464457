"""Negotiation against a dumb twin: whatever the order of announcements, the same names are planned and refused."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest
from horovod.coordinator.core import Coordinator, JobSubmitted, Report
from horovod.coordinator.core import commands as cmd
from horovod.coordinator.core import events as ev
from horovod.coordinator.core.values import Announcement, ErrorKind, Kind, Signature
from hypothesis import given, settings
from hypothesis import strategies as st

VARIANTS = (
    Signature(Kind.ALLREDUCE, "", shapes=((4,),)),
    Signature(Kind.ALLREDUCE, "", shapes=((5,),)),
    Signature(Kind.ALLREDUCE, "", dtype=8, shapes=((4,),)),
    Signature(Kind.ALLGATHER, "", shapes=((-1,),)),
)
Uses = dict[str, list[list[int]]]  # name -> one list of variants for each rank, in its program order


def started(size: int, agents: int = 2) -> Coordinator:
    """A coordinator with one running epoch, ranks spread over agents."""
    core = Coordinator()
    for index in range(agents):
        core.handle(Report(f"a{index}", 0, ev.Register(f"a{index}", f"host{index}", -(-size // agents))), 0.0)
    core.handle(JobSubmitted(size, ("train",)), 0.0)
    for rank in range(size):
        core.handle(Report("a0", 0, ev.RankHello(rank, 1, 100 + rank)), 0.0)
    assert core.epoch is not None
    return core


@pytest.fixture
def core() -> Iterator[Coordinator]:
    made = started(3)
    yield made
    made.check_invariants()


@st.composite
def programs(draw: st.DrawFn) -> tuple[int, Uses]:
    size = draw(st.integers(1, 4))
    names = draw(st.lists(st.sampled_from("uvwxyz"), unique=True, min_size=1, max_size=4))
    uses = {}
    for name in names:
        count = draw(st.integers(1, 3))
        rounds = [
            draw(st.lists(st.sampled_from((0, 0, 0, 1, 2, 3)), min_size=size, max_size=size)) for _ in range(count)
        ]
        uses[name] = [[variants[rank] for variants in rounds] for rank in range(size)]
    return size, uses


def twin(size: int, uses: Uses) -> dict[tuple[str, int], bool]:
    """(name, n) -> whether the n-th use of the name by all ranks agrees."""
    return {
        (name, n): len({per_rank[rank][n] for rank in range(size)}) == 1
        for name, per_rank in uses.items()
        for n in range(len(per_rank[0]))
    }


class Ranks:
    """Ranks that announce in a random order; a name is in flight once per rank, as clients see to it."""

    def __init__(self, size: int, uses: Uses) -> None:
        self.size, self.uses = size, uses
        self.core = started(size)
        self.done: dict[tuple[int, str], int] = {(rank, name): 0 for rank in range(size) for name in uses}
        self.flying: dict[tuple[int, int], tuple[str, int]] = {}  # (rank, request) -> (name, n)
        self.outcome: dict[tuple[str, int], set[tuple[int, str]]] = {}
        self.requests = 0

    def ready(self) -> list[tuple[int, str]]:
        busy = {(rank, name) for (rank, _), (name, _) in self.flying.items()}
        return [key for key, n in self.done.items() if key not in busy and n < len(self.uses[key[1]][key[0]])]

    def announce(self, rank: int, name: str) -> None:
        n = self.done[rank, name]
        self.requests += 1
        self.flying[rank, self.requests] = (name, n)
        signature = replace(VARIANTS[self.uses[name][rank][n]], name=name)
        body = ev.Announcements((Announcement(rank, self.requests, signature),))
        for send in cmd.sends(self.core.handle(Report("a0", 1, body), 0.0)):
            self.take(send.body)
        self.core.check_invariants()

    def take(self, body: object) -> None:
        assert isinstance(body, (cmd.PlanMade, cmd.Refusal)), body
        said = f"plan {body.plan}" if isinstance(body, cmd.PlanMade) else body.error.text
        for item in body.requests:
            name, n = self.flying.pop((item.rank, item.request))
            self.outcome.setdefault((name, n), set()).add((item.rank, said))
            self.done[item.rank, name] += 1


@settings(max_examples=300, deadline=None)
@given(programs(), st.randoms(use_true_random=False))
def test_outcome_does_not_depend_on_the_order(program: tuple[int, Uses], rng: random.Random) -> None:
    size, uses = program
    ranks = Ranks(size, uses)
    while ready := ranks.ready():
        ranks.announce(*rng.choice(ready))
    assert not ranks.flying
    agrees = twin(size, uses)
    assert set(ranks.outcome) == set(agrees)
    for key, said in ranks.outcome.items():
        assert {rank for rank, _ in said} == set(range(size)), key
        assert len({text for _, text in said}) == 1, key  # one plan, or the same words for everybody
        assert all(text.startswith("plan ") == agrees[key] for _, text in said), key
    assert ranks.core.epoch is not None
    assert not ranks.core.epoch.negotiation.entries
    assert not ranks.core.epoch.negotiation.tombstones


def announce(core: Coordinator, rank: int, signature: Signature, now: float = 0.0) -> list[object]:
    """Bodies of what is sent."""
    body = ev.Announcements((Announcement(rank, 1, signature),))
    return [send.body for send in cmd.sends(core.handle(Report("a0", 1, body), now))]


def test_plan_ids_carry_the_incarnation() -> None:
    old, new = started(1), started(1)
    assert new.epoch is not None
    new.epoch.plans.prefix = 2
    (first,) = announce(old, 0, VARIANTS[0])
    (second,) = announce(new, 0, VARIANTS[0])
    assert isinstance(first, cmd.PlanMade)
    assert isinstance(second, cmd.PlanMade)
    assert first.plan >> 40 == 1
    assert second.plan >> 40 == 2


def test_a_set_of_another_id_is_another_name(core: Coordinator) -> None:
    announce(core, 0, replace(VARIANTS[0], name="x"))
    said = announce(core, 1, replace(VARIANTS[0], name="x", process_set=3))
    assert [body.error.kind for body in said if isinstance(body, cmd.Refusal)] == [ErrorKind.INVALID]


def test_groups_may_be_named_on_one_side_only(core: Coordinator) -> None:
    group = Signature(Kind.ALLREDUCE, "g", shapes=((1,), (2,)))
    announce(core, 0, group)
    announce(core, 1, replace(group, tensor_names=("a", "b")))
    said = announce(core, 2, group)
    assert [type(body) for body in said] == [cmd.PlanMade, cmd.PlanMade]


def test_memory_stays_flat_over_many_names() -> None:
    core = started(1, agents=1)
    core.config = replace(core.config, cache_capacity=64)
    assert core.epoch is not None
    plans = core.epoch.plans
    plans.capacity = 64
    for number in range(3000):
        now = number * 0.01
        for body in announce(core, 0, replace(VARIANTS[0], name=f"loss.{number}"), now):
            if isinstance(body, cmd.Hold):
                core.handle(Report("a0", 1, ev.Held(body.plan, ())), now)
                core.handle(Report("a0", 1, ev.PlanRetired(body.plan)), now)
    assert len(plans.table) < 64 + 1.0 / 0.01 + 16
    core.check_invariants()


def test_twin_can_disagree() -> None:
    assert twin(2, {"x": [[0, 0], [0, 1]]}) == {("x", 0): True, ("x", 1): False}
