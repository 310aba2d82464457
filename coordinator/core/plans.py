"""Plans of an epoch: made once, used without the coordinator, retired in acknowledged steps.

A plan leaves in this order, whatever the reason: Hold to its agents (they mark the board, then read arrivals), Held from all of
them, a limit, RetirePlan, PlanRetired from all.  Rounds below the limit finish; everything else is announced anew by the ranks, so
that counters can't drift apart.  Ids are never reused, not by a restarted coordinator either: they carry its incarnation.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

from horovod.coordinator.core.commands import Hold, Outbox, PlanMade, RetirePlan
from horovod.coordinator.core.values import Kind, RankCount, RankRequest, Signature

INCARNATION_SHIFT = 40
YOUNG_S = 1.0  # a plan this young has perhaps not been used yet


class PlanState(Enum):
    """See TRANSITIONS."""

    LIVE = "live"
    HELD = "held"
    RETIRING = "retiring"
    GONE = "gone"


TRANSITIONS: dict[PlanState, tuple[tuple[str, PlanState], ...]] = {
    PlanState.LIVE: (("contest, eviction, join or removed set: Hold", PlanState.HELD), ("JoinDone", PlanState.RETIRING)),
    PlanState.HELD: (("Held from all agents: RetirePlan", PlanState.RETIRING),),
    PlanState.RETIRING: (("lower contest: RetirePlan", PlanState.RETIRING), ("PlanRetired from all", PlanState.GONE)),
    PlanState.GONE: (),
}


@dataclass(slots=True)
class Plan:
    """One plan; ``contests`` are the rounds at which members left it, ``arrivals`` come with Held."""

    id: int
    signature: Signature
    members: tuple[int, ...]
    agents: tuple[str, ...]
    made_at: float
    state: PlanState = PlanState.LIVE
    contests: list[int] = field(default_factory=list)
    joined: frozenset[int] = frozenset()
    arrivals: dict[int, int] = field(default_factory=dict)
    waiting: set[str] = field(default_factory=set)
    limit: int = -1

    def final_limit(self) -> int:
        """Rounds below it are or will be complete."""
        limits = list(self.contests)
        limits += [self.arrivals.get(rank, 0) for rank in self.joined]
        return min(limits) if limits else max(self.arrivals.values(), default=0)


@dataclass(slots=True)
class Plans:
    """All plans of an epoch, least recently used first."""

    incarnation: int
    capacity: int
    agent_of: dict[int, str]
    table: OrderedDict[int, Plan] = field(default_factory=OrderedDict)
    made: int = 0
    live: int = 0

    def make(self, out: Outbox, signature: Signature, members: tuple[int, ...], requests: dict[int, int], now: float) -> Plan:
        """A new plan for these requests (rank -> request); evicts others when there are too many."""
        self.made += 1
        plan_id = (self.incarnation << INCARNATION_SHIFT) | self.made
        agents = tuple(dict.fromkeys(self.agent_of[rank] for rank in members))
        plan = Plan(plan_id, signature, members, agents, now)
        self.table[plan_id] = plan
        self.live += 1
        for agent in agents:
            mine = tuple(RankRequest(r, q) for r, q in sorted(requests.items()) if self.agent_of[r] == agent)
            out.send(agent, PlanMade(plan_id, signature, members, mine))
        self._evict(out, now)
        return plan

    def used(self, plan_ids: Iterable[int]) -> None:
        """These had rounds lately."""
        for plan_id in plan_ids:
            if plan_id in self.table:
                self.table.move_to_end(plan_id)

    def contest(self, out: Outbox, plan_id: int, round_number: int) -> None:
        """A member uses the plan's name for something else from this round on."""
        plan = self.table.get(plan_id)
        if plan is None:
            return
        plan.contests.append(round_number)
        if plan.state is PlanState.LIVE:
            self._hold(out, plan)
        elif plan.state is PlanState.RETIRING and plan.final_limit() < plan.limit:
            self._retire(out, plan)

    def hold_for_join(self, out: Outbox, joined: frozenset[int]) -> None:
        """Plans that a joined rank belongs to and can't take part in with zeros."""
        for plan in list(self.table.values()):
            if plan.signature.kind is not Kind.ALLREDUCE and joined.intersection(plan.members):
                plan.joined |= joined.intersection(plan.members)
                if plan.state is PlanState.LIVE:
                    self._hold(out, plan)

    def hold_set(self, out: Outbox, set_id: int) -> None:
        """All plans of a removed process set."""
        for plan in list(self.table.values()):
            if plan.signature.process_set == set_id and plan.state is PlanState.LIVE:
                self._hold(out, plan)

    def held(self, out: Outbox, agent: str, plan_id: int, arrivals: Iterable[RankCount]) -> None:
        """An agent has marked the plan."""
        plan = self.table.get(plan_id)
        if plan is None or plan.state is not PlanState.HELD:
            return
        plan.arrivals.update({item.rank: item.count for item in arrivals})
        plan.waiting.discard(agent)
        if not plan.waiting:
            self._retire(out, plan)

    def retire_now(self, out: Outbox, plan_ids: Iterable[int]) -> None:
        """After a join: nothing is open, the counters of joined ranks are behind."""
        for plan_id in sorted(set(plan_ids)):
            plan = self.table.get(plan_id)
            if plan is None or plan.state is PlanState.RETIRING:
                continue
            plan.contests.append(0)
            if plan.state is PlanState.LIVE:
                self.live -= 1
                self._retire(out, plan)

    def retired(self, agent: str, plan_id: int) -> None:
        """An agent has freed the plan's block."""
        plan = self.table.get(plan_id)
        if plan is None or plan.state is not PlanState.RETIRING:
            return
        plan.waiting.discard(agent)
        if not plan.waiting:
            plan.state = PlanState.GONE
            del self.table[plan_id]

    def _hold(self, out: Outbox, plan: Plan) -> None:
        plan.state = PlanState.HELD
        plan.waiting = set(plan.agents)
        self.live -= 1
        for agent in plan.agents:
            out.send(agent, Hold(plan.id))

    def _retire(self, out: Outbox, plan: Plan) -> None:
        plan.state = PlanState.RETIRING
        plan.limit = plan.final_limit()
        plan.waiting = set(plan.agents)
        for agent in plan.agents:
            out.send(agent, RetirePlan(plan.id, plan.limit))

    def _evict(self, out: Outbox, now: float) -> None:
        capacity = max(self.capacity, 16)
        if self.live <= capacity:
            return
        spare = self.live - capacity + capacity // 64
        for plan in list(self.table.values())[: 4 * spare + 64]:
            if spare <= 0:
                break
            if plan.state is PlanState.LIVE and now - plan.made_at >= YOUNG_S:
                self._hold(out, plan)
                spare -= 1

    def check_invariants(self) -> None:
        """Raises AssertionError when the book is wrong."""
        assert self.live == sum(plan.state is PlanState.LIVE for plan in self.table.values())
        for plan in self.table.values():
            assert plan.state is not PlanState.GONE
            assert plan.waiting <= set(plan.agents)
            assert bool(plan.waiting) == (plan.state is not PlanState.LIVE), plan
