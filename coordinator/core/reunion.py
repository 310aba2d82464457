"""An epoch of an earlier coordinator, put together from what its agents know of it.

When a coordinator is killed, each agent has received a prefix of the orders that were meant for it.  One rule brings them
together again: what anybody was told is told to everybody; what nobody was told has never been decided, and is decided
anew from what the ranks ask for.

* A plan that the agent of some member has not heard of is made there too, for the requests that wait for it.
* A plan with a limit anywhere gets that limit everywhere, also where the agent that knows it has let the plan go.  One
  that was on its way to a limit is held again.
* A join that has returned somewhere returns everywhere; one that has not begins again with those who wait in it.
* A call about process sets that was answered somewhere gets that answer everywhere; the others are booked again.
* A refusal that some members have heard is owed to the others, in the same words.
* All other requests are announced again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from horovod.coordinator.core.commands import AllJoined, JoinDone, JoinedRanks, Outbox
from horovod.coordinator.core.epoch import Epoch
from horovod.coordinator.core.events import EpochPresented, RefusalPresented, SetAnswer
from horovod.coordinator.core.negotiation import Tombstone
from horovod.coordinator.core.plans import INCARNATION_SHIFT, Plan
from horovod.coordinator.core.process_sets import SetCall
from horovod.coordinator.core.values import Error, ProcessSet, Signature

__all__ = ["Reunion"]


@dataclass(slots=True)
class Reunion:
    """``parts`` by agent; ``gone`` are agents without a rank in the epoch.

    Agents that have no part and are not gone have heard nothing of the epoch but, perhaps, its start.  First ``settle``,
    then whatever ends the epoch, then ``ask_again``.
    """

    out: Outbox
    epoch: Epoch
    parts: Mapping[str, EpochPresented]
    gone: frozenset[str]
    now: float
    matched: set[tuple[int, int]] = field(default_factory=set)  # (rank, request) that a plan was found for

    @property
    def joins_done(self) -> int:
        """How many joins have returned somewhere."""
        return max((part.joins_done for part in self.parts.values()), default=0)

    def settle(self, sets: tuple[ProcessSet, ...]) -> None:
        """Tells everybody what anybody was told; ``sets`` are those of init."""
        self._take_sets(sets)
        self._take_joins()
        self._take_plans()
        self._return_joins()
        self._take_refusals()

    def ask_again(self) -> None:
        """What ranks still wait for."""
        self._answer_set_calls()
        for part in self.parts.values():
            for item in part.announcements:
                if (item.rank, item.request) not in self.matched:
                    self.epoch.announce(self.out, item, self.now)
        epoch = self.epoch
        if epoch.ended is None and len(epoch.joined) == len(epoch.places):
            epoch.to_all(self.out, AllJoined())

    # ---- process sets

    def _take_sets(self, sets: tuple[ProcessSet, ...]) -> None:
        book = self.epoch.sets
        latest = max(self.parts.values(), key=lambda part: part.set_changes, default=None)
        if latest is None:
            book.take_over(sets, (), max(item.id for item in sets) + 1)
            return
        book.take_over(latest.sets, latest.free_sets, latest.next_set)
        book.counts = {item.rank: item.count for part in self.parts.values() for item in part.set_counts}

    def _answer_set_calls(self) -> None:
        answers = {answer.number: answer for part in self.parts.values() for answer in part.set_answers}
        calls = sorted((call for part in self.parts.values() for call in part.set_calls), key=lambda call: call.number)
        late: dict[int, dict[int, SetCall]] = {}
        for call in calls:
            wish = SetCall(call.request, tuple(sorted(call.ranks)), call.remove)
            if call.number in answers:
                late.setdefault(call.number, {})[call.rank] = wish
            elif self.epoch.ended is None:
                complete = self.epoch.sets.book(call.rank, call.number, wish, self.now)
                if complete is not None:
                    self.epoch.decide(self.out, complete)
        for number, wishes in late.items():
            self._answer_late(answers[number], wishes)

    def _answer_late(self, answer: SetAnswer, calls: Mapping[int, SetCall]) -> None:
        """Others were told already."""
        epoch = self.epoch
        results: tuple[ProcessSet | Error | int, ...] = (*answer.added, *answer.refused)
        for removed in answer.removed:
            if epoch.plans.is_held(removed):  # its ranks hear of the limits first
                epoch.removing[removed] = dict(calls)
            else:
                results = (*results, removed)
        for result in results:
            epoch.answer(self.out, calls, result)

    # ---- joins

    def _take_joins(self) -> None:
        joined = [item for part in self.parts.values() if part.joins_done == self.joins_done for item in part.joins]
        epoch = self.epoch
        epoch.joined = {item.rank: item.request for item in joined}
        for rank in sorted(epoch.joined):
            epoch.joined_on.setdefault(epoch.agent_of[rank], []).append(rank)
        if joined or any(part.joins_done or part.joins for part in self.parts.values()):
            for agent in epoch.agents:
                mine = tuple(epoch.joined_on.get(agent, ()))
                self.out.send(agent, JoinedRanks(mine, bool(joined), epoch.extended_join))

    def _return_joins(self) -> None:
        """A join that has returned elsewhere; the counters of its ranks are behind, as after any join."""
        behind = {agent: part for agent, part in self.parts.items() if part.joins_done < self.joins_done}
        last = max((part.last_joined for part in self.parts.values() if part.joins_done == self.joins_done), default=-1)
        self.epoch.plans.retire_now(self.out, [plan for part in behind.values() for plan in part.zero_plans])
        for agent, part in behind.items():
            self.out.send(agent, JoinDone(last, part.joins))
        for rank in self.epoch.joined:
            self.epoch.plans.hold_for_join(self.out, rank, self.epoch.sets.lookup, self.epoch.extended_join)

    # ---- plans

    def _take_plans(self) -> None:
        plans = self.epoch.plans
        highest = max((part.highest_plan for part in self.parts.values()), default=0)
        if highest:
            plans.prefix = (highest >> INCARNATION_SHIFT) + 1
        found = {item.plan: item for part in self.parts.values() for item in part.plans}
        for plan_id in sorted(found):
            self._take_plan(plan_id, found[plan_id].signature, found[plan_id].members)

    def _take_plan(self, plan_id: int, signature: Signature, members: tuple[int, ...]) -> None:
        members = self.epoch.sets.sets.get(signature.process_set, members)  # one for all plans of the set
        agents = self.epoch.plans.agents(signature.process_set, members)
        plan = Plan(plan_id, signature, members, agents, self.now)
        known = {name: item for name in agents for item in self._part(name).plans if item.plan == plan_id}
        new = [name for name in agents if name not in self.gone and self._part(name).highest_plan < plan_id]
        over = [name for name in agents if name not in known and name not in new and name not in self.gone]
        plan.contests = [item.contest for item in known.values() if item.contest >= 0]
        limits = [item.limit for item in known.values() if item.limit >= 0]
        limits += [item.limit for name in over for item in self._part(name).retired if item.plan == plan_id]
        # Who has let it go and forgotten its limit had come to its end: all members have arrived below it.
        plan.everybody = bool(over) and not limits
        for name in new:
            self.epoch.plans.tell(self.out, name, plan, self._requests(name, signature, members))
        held = any(item.held for item in known.values())
        self.epoch.plans.take_over(self.out, plan, limits, {*known, *new}, held or bool(over))

    def _part(self, agent: str) -> EpochPresented:
        return self.parts.get(agent, EpochPresented())

    def _requests(self, agent: str, signature: Signature, members: tuple[int, ...]) -> dict[int, int]:
        """Those for which the plan was made: their ranks have had no answer since."""
        found = {
            item.rank: item.request
            for item in self._part(agent).announcements
            if item.rank in members and item.signature == signature
        }
        self.matched.update(found.items())
        return found

    # ---- refusals

    def _take_refusals(self) -> None:
        negotiation = self.epoch.negotiation
        told: dict[int, set[int]] = {}
        known: dict[int, RefusalPresented] = {}
        for item in (item for part in self.parts.values() for item in part.refusals):
            negotiation.refused = max(negotiation.refused, item.id)
            told.setdefault(item.id, set()).update(item.told)
            known[item.id] = item
        for number, item in sorted(known.items()):
            members = self.epoch.sets.sets.get(item.process_set, ())
            owed = set(members) - told[number] - set(self.epoch.joined)
            if owed and item.joins_done == self.joins_done:
                key = (item.process_set, item.name)
                negotiation.tombstones.setdefault(key, []).append(Tombstone(item.error, owed, number))
