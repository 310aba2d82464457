"""Random programs of ranks, and the dumb twin that says what must become of every operation.

A job is a list of phases that all ranks go through.  In a phase each rank submits the same operations (named ones in an
order of its own), then waits for all.  Deviations are drawn explicitly, so that the twin knows them.
"""

from __future__ import annotations

import random
from collections.abc import Generator
from dataclasses import dataclass

from horovod.agent.core import values as v
from horovod.common.core import CollectiveKind, Signature
from hypothesis import strategies as st

from tests.model.rank import Condition, Rank, RankOp
from tests.model.world import World

NAMES = ("x", "y", "z")
SIZES = (1, 2)
Thread = Generator[Condition, None, None]


@dataclass(frozen=True)
class Call:
    """One operation as all members make it; ``odd`` submits another size, and so all are refused."""

    kind: CollectiveKind
    name: str | None
    size: int
    set_index: int = 0
    odd: int = -1


@dataclass(frozen=True)
class Phase:
    """``action``: what happens after the calls."""

    calls: tuple[Call, ...]
    shuffle: int = 0
    threads: int = 1
    action: str = ""  # "", "add", "remove", "join", "again" (shutdown and init)
    rank: int = 0  # who joins first, and how much later the others do
    extra: int = 0


@dataclass(frozen=True)
class Job:
    """``fate``: at the start of which phase which rank dies or leaves early; -1 never."""

    size: int
    phases: tuple[Phase, ...]
    sets: tuple[tuple[int, ...], ...] = ()
    fate: str = ""
    fate_phase: int = -1
    fate_rank: int = 0


def signature(rank: Rank, call: Call, set_id: int, odd: bool) -> Signature:
    """What this rank submits."""
    shape = (-1,) if call.kind is CollectiveKind.ALLGATHER else (call.size + (7 if odd else 0),)
    dtype = 4 if odd and call.kind is CollectiveKind.ALLGATHER else 7
    if call.name is None:
        rank.unnamed += 1
        return Signature(call.kind, f"allreduce.noname.{rank.unnamed}", True, dtype, (shape,), process_set=set_id)
    name = f"{call.kind.name.lower()}.{call.name}"
    return Signature(call.kind, name, False, dtype, (shape,), process_set=set_id)


class Script:
    """Runs a job on one rank."""

    def __init__(self, job: Job, world: World, rank: Rank) -> None:
        self.job, self.world, self.rank = job, world, rank
        self.sets: dict[int, tuple[int, ...]] = {}
        self.live = True

    def main(self) -> Thread:
        """From init to shutdown."""
        if not (yield from self._init()):
            return
        for index, phase in enumerate(self.job.phases):
            if self.job.fate_phase == index and self.job.fate_rank == self.rank.number:
                if self.job.fate == "dies":
                    self.world.exit(self.rank, 137, 9)
                    yield lambda: False
                break
            yield from self._phase(phase)
            if not self.live:
                break
        if not self.job.fate and self.live:
            yield from self.world.checkpoint(self.rank)
        yield from self.rank.leave()

    def _init(self) -> Generator[Condition, None, bool]:
        sets = tuple(v.ProcessSet(0, ranks) for ranks in self.job.sets)
        if not (yield from self.rank.init(sets)):
            self.live = False
            return False
        assert self.rank.welcome is not None
        self.sets = {s.id: s.ranks for s in self.rank.welcome.process_sets}
        return True

    def _phase(self, phase: Phase) -> Thread:
        rank, joins = self.rank, phase.action == "join"
        order = [call for call in phase.calls if rank.number in self._members(call)]
        if all(call.name is not None for call in order):
            random.Random(phase.shuffle * 64 + rank.number).shuffle(order)
        count = phase.threads if all(call.name is not None for call in order) else 1
        parts = [order[i::count] for i in range(count)]
        finished: list[int] = []
        for index in range(1, count):
            self.world.spawn(rank, index, self._calls(parts[index], finished))
        yield from self._calls(parts[0], finished)
        yield lambda: len(finished) == count
        if joins:
            yield from self._join(phase)
        elif phase.action == "again":
            yield from self._calls([Call(CollectiveKind.BARRIER, "again", 1)], [])  # some may not be in all sets
            yield from rank.leave()
            yield from self._init()
        elif phase.action:
            yield from self._set_call(phase.action)
        self.live = self.live and rank.core is not None and rank.core.ended is None

    def _members(self, call: Call) -> tuple[int, ...]:
        return self.sets.get(call.set_index, ())

    def _calls(self, calls: list[Call], finished: list[int]) -> Thread:
        ops: list[RankOp] = []
        for call in calls:
            mine = signature(self.rank, call, call.set_index, call.odd == self.rank.number)
            ops.append((yield from self.rank.submit(mine)))
            yield lambda: True
        for op in ops:
            yield from self.rank.wait(op)
        finished.append(1)

    def _join(self, phase: Phase) -> Thread:
        """Ranks join one after the other; who has not joined yet goes on with allreduces, some with a changed size."""
        rank = self.rank
        rounds = (rank.number - phase.rank) % self.job.size * (1 + phase.extra)
        for number in range(rounds):
            calls = [Call(CollectiveKind.ALLREDUCE, "x", 1 + (number + phase.shuffle) % 3 // 2)]
            calls.append(Call(CollectiveKind.ALLREDUCE, None, 1))
            if phase.shuffle % 2:
                calls.append(Call(CollectiveKind.ALLGATHER, "x", 1))
            yield from self._calls(calls, [])
        answer = yield from rank.ask(lambda request: v.Join(request))
        if isinstance(answer, v.Joined):
            rank.new_era()
            self.world.join_results.append((self.world.epoch_of(rank), rank.number, answer.last_rank))

    def _set_call(self, action: str) -> Thread:
        wanted = tuple(range(self.job.size - 1)) if self.job.size > 2 else (0,)
        if action == "add":
            answer = yield from self.rank.ask(lambda request: v.AddProcessSet(request, wanted))
            if isinstance(answer, v.ProcessSetReady):
                self.sets[answer.process_set.id] = answer.process_set.ranks
            return
        last = max(self.sets)
        answer = yield from self.rank.ask(lambda request: v.RemoveProcessSet(request, last))
        if isinstance(answer, v.ProcessSetRemoved):
            del self.sets[answer.id]
            self.rank.new_era()  # on all ranks: the id may come back for another set


calls = st.builds(
    Call,
    kind=st.sampled_from([CollectiveKind.ALLREDUCE] * 4 + [CollectiveKind.ALLGATHER, CollectiveKind.BARRIER]),
    name=st.sampled_from(NAMES),
    size=st.sampled_from(SIZES),
    set_index=st.sampled_from((0, 0, 0, 1)),
    odd=st.sampled_from((-1, -1, -1, -1, 0, 1)),
)
unnamed_calls = st.builds(
    Call, kind=st.just(CollectiveKind.ALLREDUCE), name=st.none(), size=st.sampled_from(SIZES), set_index=st.just(0)
)


def _phase_calls(named: list[Call], unnamed: list[Call]) -> tuple[Call, ...]:
    distinct = {(call.kind, call.name, call.set_index): call for call in named}
    return (*distinct.values(), *unnamed)


phases = st.builds(
    Phase,
    calls=st.one_of(
        st.lists(calls, max_size=4).map(lambda named: _phase_calls(named, [])),
        st.lists(unnamed_calls, max_size=6).map(lambda unnamed: _phase_calls([], unnamed)),
        st.builds(_phase_calls, st.lists(calls, max_size=2), st.lists(unnamed_calls, max_size=3)),
    ),
    shuffle=st.integers(0, 7),
    threads=st.sampled_from((1, 1, 2)),
    action=st.sampled_from(("", "", "", "", "add", "remove", "join", "again")),
    rank=st.integers(0, 1),
    extra=st.integers(0, 1),
)


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    """A job of two to four ranks."""
    size = draw(st.integers(2, 4))
    fate = draw(st.sampled_from(("", "", "", "dies", "leaves")))
    listed = draw(st.lists(phases, min_size=1, max_size=6))
    sets = draw(st.sampled_from(((), ((0,),), ((0, 1),) if size > 2 else ((1,),))))
    where = draw(st.integers(0, len(listed) - 1)) if fate else -1
    return Job(size, tuple(listed), sets, fate, where, draw(st.integers(0, size - 1)))
