"""Plans of an epoch: made once, used without the coordinator, retired in acknowledged steps.

A plan leaves in this order, whatever the reason: Hold to its agents (they mark the board, then read arrivals),
Held from all of them, a limit, RetirePlan, PlanRetired from all.  Rounds below the limit finish; everything else
is announced anew by the ranks, so that counters can't drift apart.  Ids are never reused, not by a restarted
coordinator either: they carry its incarnation.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from itertools import islice

from horovod.coordinator.core.commands import Hold, Outbox, PlanMade, RetirePlan, by_agent
from horovod.coordinator.core.tally import Tally
from horovod.coordinator.core.values import Kind, RankCount, RankRequest, Signature

INCARNATION_SHIFT = 40
# Ids have 64 bits and rise: an epoch that outlives its coordinator goes on above the highest id that any agent has seen.  The
# topmost bit of the part that tells incarnations apart is room for that.
INCARNATION_MASK = (1 << 23) - 1
YOUNG_S = 1.0  # a plan this young has perhaps not been used yet
SMALLEST_CAPACITY = 16  # below it plans would leave before their first round; so 0 means: negotiate nearly every time


class PlanState(Enum):
    """See TRANSITIONS."""

    LIVE = "live"
    HELD = "held"
    RETIRING = "retiring"
    GONE = "gone"


class PlanCause(Enum):
    """What moves a plan on."""

    HOLD = "contest, eviction, join or removed set: Hold"
    HELD = "Held from all agents: RetirePlan"
    JOIN_DONE = "JoinDone: RetirePlan with limit 0"
    LOWER_LIMIT = "lower contest: RetirePlan again"
    RETIRED = "PlanRetired from all agents"


TRANSITIONS: dict[PlanState, dict[PlanCause, PlanState]] = {
    PlanState.LIVE: {PlanCause.HOLD: PlanState.HELD, PlanCause.JOIN_DONE: PlanState.RETIRING},
    PlanState.HELD: {PlanCause.HELD: PlanState.RETIRING, PlanCause.JOIN_DONE: PlanState.RETIRING},
    PlanState.RETIRING: {
        PlanCause.LOWER_LIMIT: PlanState.RETIRING,
        PlanCause.JOIN_DONE: PlanState.RETIRING,
        PlanCause.RETIRED: PlanState.GONE,
    },
    PlanState.GONE: {},
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
    everybody: bool = False  # every member must have arrived below the limit
    arrivals: dict[int, int] = field(default_factory=dict)
    waiting: set[str] = field(default_factory=set)
    limit: int = -1

    def move(self, cause: PlanCause) -> None:
        """Follows the table; KeyError is a broken invariant."""
        self.state = TRANSITIONS[self.state][cause]

    def final_limit(self) -> int:
        """Rounds below it are or will be complete."""
        limits = list(self.contests)
        limits += [self.arrivals.get(rank, 0) for rank in (self.members if self.everybody else self.joined)]
        return min(limits) if limits else max(self.arrivals.values(), default=0)


@dataclass(slots=True)
class Plans:
    """All plans of an epoch, least recently used first."""

    incarnation: int
    capacity: int
    agent_of: dict[int, str]
    tally: Tally = field(default_factory=Tally)
    table: OrderedDict[int, Plan] = field(default_factory=OrderedDict)
    made: int = 0
    live: int = 0
    prefix: int = field(init=False)

    def __post_init__(self) -> None:
        self.prefix = self.incarnation & INCARNATION_MASK

    agents_of: dict[int, tuple[tuple[int, ...], tuple[str, ...]]] = field(
        default_factory=dict
    )  # by set: members, agents

    def make(
        self, out: Outbox, signature: Signature, members: tuple[int, ...], requests: dict[int, int], now: float
    ) -> Plan:
        """A new plan for these requests (rank -> request); evicts others when there are too many."""
        self.made += 1
        self.tally.plans_made += 1
        plan_id = (self.prefix << INCARNATION_SHIFT) | self.made
        agents = self.agents(signature.process_set, members)
        plan = Plan(plan_id, signature, members, agents, now)
        self.table[plan_id] = plan
        self.live += 1
        out.cast(agents, PlanMade(plan_id, signature, ()), by_agent(requests, self.agent_of))
        self._evict(out, now)
        return plan

    def tell(self, out: Outbox, agent: str, plan: Plan, requests: Mapping[int, int]) -> None:
        """An agent hears late of a plan, and which requests (rank -> request) of its ranks run on it."""
        mine = tuple(RankRequest(rank, request) for rank, request in sorted(requests.items()))
        out.send(agent, PlanMade(plan.id, plan.signature, mine))

    def agents(self, set_id: int, members: tuple[int, ...]) -> tuple[str, ...]:
        """All plans of a set share this: it is as long as the set."""
        known = self.agents_of.get(set_id)
        if known is None or known[0] is not members:
            known = self.agents_of[set_id] = members, tuple(dict.fromkeys(self.agent_of[rank] for rank in members))
        return known[1]

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
        self.tally.contests += 1
        if plan.state is PlanState.LIVE:
            self._hold(out, plan)
        elif plan.state is PlanState.RETIRING and plan.final_limit() < plan.limit:
            self._retire(out, plan, PlanCause.LOWER_LIMIT)

    def hold_for_join(self, out: Outbox, rank: int, sets: Mapping[int, Container[int]], extended: bool) -> None:
        """Plans that need the data of a rank that has joined; ``sets`` by id.

        Others go on with zeros for it, or with nothing (``extended``, where only a root is needed).
        """
        for plan in list(self.table.values()):
            if plan.signature.root != rank if extended else plan.signature.kind is Kind.ALLREDUCE:
                continue
            if rank in sets.get(plan.signature.process_set, plan.members):
                plan.joined |= {rank}
                if plan.state is PlanState.LIVE:
                    self._hold(out, plan)

    def hold_set(self, out: Outbox, set_id: int) -> None:
        """All plans of a removed process set: what some member has not submitted yet it never will."""
        for plan in list(self.table.values()):
            if plan.signature.process_set == set_id and plan.state is not PlanState.RETIRING:
                plan.everybody = True
                if plan.state is PlanState.LIVE:
                    self._hold(out, plan)

    def is_held(self, set_id: int) -> bool:
        """Whether a plan of this set still waits for its limit."""
        return any(p.signature.process_set == set_id and p.state is PlanState.HELD for p in self.table.values())

    def held(self, out: Outbox, agent: str, plan_id: int, arrivals: Iterable[RankCount]) -> None:
        """An agent has marked the plan."""
        plan = self.table.get(plan_id)
        if plan is None or plan.state is not PlanState.HELD:
            return
        plan.arrivals.update({item.rank: item.count for item in arrivals})
        plan.waiting.discard(agent)
        if not plan.waiting:
            self._retire(out, plan, PlanCause.HELD)

    def retire_now(self, out: Outbox, plan_ids: Iterable[int]) -> None:
        """After a join: nothing is open, the counters of joined ranks are behind, so not one more round may run."""
        for plan_id in sorted(set(plan_ids)):
            plan = self.table.get(plan_id)
            if plan is None or plan.limit == 0:
                continue
            plan.contests.append(0)
            self.live -= plan.state is PlanState.LIVE
            self._retire(out, plan, PlanCause.JOIN_DONE)

    def retired(self, agent: str, plan_id: int) -> None:
        """An agent has freed the plan's block."""
        plan = self.table.get(plan_id)
        if plan is None or plan.state is not PlanState.RETIRING:
            return
        plan.waiting.discard(agent)
        if not plan.waiting:
            plan.move(PlanCause.RETIRED)
            del self.table[plan_id]
            self.tally.plans_retired += 1

    def take_over(self, out: Outbox, plan: Plan, limits: Iterable[int], told: set[str], irregular: bool) -> None:
        """A plan of an earlier coordinator; ``told`` are the agents that have it, ``limits`` what some were told already.

        Whatever was going on with it is done again, and what one agent was told is told to all.
        """
        self.table[plan.id] = plan
        known = list(limits)
        if known:
            plan.state, plan.limit = PlanState.RETIRING, min([*known, *plan.contests])
            plan.waiting = set(told)
            for agent in plan.agents:
                if agent in told:
                    out.send(agent, RetirePlan(plan.id, plan.limit))
            return
        self.live += 1
        if irregular or plan.contests:
            self._hold(out, plan)

    def _hold(self, out: Outbox, plan: Plan) -> None:
        plan.move(PlanCause.HOLD)
        plan.waiting = set(plan.agents)
        self.live -= 1
        out.cast(plan.agents, Hold(plan.id))

    def _retire(self, out: Outbox, plan: Plan, cause: PlanCause) -> None:
        plan.move(cause)
        plan.limit = plan.final_limit()
        plan.waiting = set(plan.agents)
        out.cast(plan.agents, RetirePlan(plan.id, plan.limit))

    def _evict(self, out: Outbox, now: float) -> None:
        capacity = max(self.capacity, SMALLEST_CAPACITY)
        if self.live <= capacity:
            return
        spare = self.live - capacity + capacity // 64
        for plan in list(islice(self.table.values(), 4 * spare + 64)):
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
