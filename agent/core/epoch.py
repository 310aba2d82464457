"""One epoch on this agent: the board, the local ranks' sessions in it, plans, and ranks that have joined.

Board first, then messages: a rank hears of a plan when its block exists; a plan is marked before its arrivals are read.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from horovod.agent.core import events as ev
from horovod.agent.core import values as v
from horovod.agent.core.calls import Calls
from horovod.agent.core.history import History
from horovod.agent.core.plans import LocalPlan, block, fault, local_plan
from horovod.agent.core.presentation import EpochPresented, SetAnswer
from horovod.agent.core.tally import Tally

AWAY_S = 0.5  # rounds that wait for other hosts are reported from that age on


@dataclass(slots=True)
class Epoch:
    """State and rules; ``sessions`` maps local ranks that have neither left nor died to their connections.

    ``sets`` are the process sets as the coordinator's orders so far have them, by id.
    """

    number: int
    places: tuple[v.RankPlace, ...]
    local: tuple[int, ...]
    sessions: dict[int, int]
    sets: dict[int, tuple[int, ...]]
    ring: tuple[v.Host, ...] = ()
    tally: Tally = field(default_factory=Tally)
    plans: dict[int, LocalPlan] = field(default_factory=dict)
    names: dict[tuple[int, int], v.Announcement] = field(
        default_factory=dict
    )  # (rank, request) that waits for its plan
    request_plans: dict[tuple[int, int], int] = field(default_factory=dict)
    calls: Calls = field(default_factory=Calls)
    history: History = field(default_factory=History)
    peer_lost: v.PeerLost | None = None
    joined: tuple[int, ...] = ()
    extended_join: bool = False
    all_joined: bool = False
    zero_plans: set[int] = field(default_factory=set)
    ended: v.Error | None = None
    ended_at: float = 0.0
    observed: bool = False
    aborted: ev.PlaneAborted | None = None
    aborted_at: float = 0.0

    @property
    def host_of(self) -> tuple[int, ...]:
        """The place in the ring of each rank's agent, by rank."""
        place = {host.agent: index for index, host in enumerate(self.ring)}
        return tuple(place.get(p.agent, 0) for p in self.places)

    def welcome(self, rank: int, sets: tuple[v.ProcessSet, ...]) -> v.Welcome:
        """What a rank is told."""
        if not self.history.sets:
            self.history.begin(sets)
        place = self.places[rank]
        sizes = {p.local_size for p in self.places}
        return v.Welcome(
            epoch=self.number,
            rank=rank,
            size=len(self.places),
            local_rank=place.local_rank,
            local_size=place.local_size,
            cross_rank=place.cross_rank,
            cross_size=place.cross_size,
            homogeneous=len(sizes) == 1,
            process_sets=sets,
            local_ranks=self.local,
            hosts=tuple(p.host for p in self.places),
        )

    def report(self, body: object) -> ev.ToCoordinator:
        """A report that speaks of this epoch."""
        return ev.ToCoordinator(self.number, body)

    # ---- from ranks ---------------------------------------------------------------------------------------------------

    def from_rank(self, rank: int, body: v.WorkerBody, now: float) -> list[ev.Command] | str:
        """A message of a rank inside the epoch; a text when it makes no sense."""
        if isinstance(body, v.Announce):
            return self._announce(rank, body)
        if isinstance(body, v.RetireAck):
            return self._acknowledged(rank, body.plans)
        if not isinstance(body, (v.Join, v.AddProcessSet, v.RemoveProcessSet)):
            return f"{type(body).__name__} inside an epoch"
        if self.ended is not None:
            return [ev.ToRank(self.sessions[rank], v.Refused(body.request, self.ended))]
        number = 0 if isinstance(body, v.Join) else self.history.numbered(rank)
        return [self.report(self.calls.asked(rank, body, now, number))]

    def _announce(self, rank: int, body: v.Announce) -> list[ev.Command] | str:
        reason = fault(body.signature)
        if reason:
            return f"{body.signature.name!r}: {reason}"
        if self.ended is not None:
            return [ev.ToRank(self.sessions[rank], v.Refused(body.request, self.ended))]
        contest = (body.contested_plan, body.contested_round)
        item = v.Announcement(rank, body.request, body.signature, *contest, body.no_room_bytes, body.input_gone)
        self.names[rank, body.request] = item
        if body.contested_plan in self.plans:
            self.plans[body.contested_plan].contested(body.contested_round)
        return [self.report(v.Announcements((item,)))]

    def _acknowledged(self, rank: int, plans: tuple[int, ...]) -> list[ev.Command]:
        commands: list[ev.Command] = []
        for plan_id in plans:
            plan = self.plans.get(plan_id)
            if plan is not None:
                plan.acked.add(rank)
                commands += self._maybe_remove(plan)
        return commands

    # ---- from the coordinator -------------------------------------------------------------------------------------------

    def order(self, body: object, now: float) -> list[ev.Command]:
        """An order that speaks of this epoch."""
        if isinstance(body, v.PlanMade):
            return self._plan_made(body)
        if isinstance(body, v.Refusal):
            return self._refusal(body)
        if isinstance(body, v.Hold):
            return self._hold(body.plan)
        if isinstance(body, v.RetirePlan):
            return self._retire(body)
        if isinstance(body, v.EndEpoch):
            return self._end(body.error, now)
        if isinstance(body, (v.SetAdded, v.SetRemoved)):
            return self._set_changed(body)
        return self._join_order(body)

    def _plan_made(self, body: v.PlanMade) -> list[ev.Command]:
        plan = local_plan(body, self.sets[body.signature.process_set], self.local)
        self.plans[plan.id] = plan
        self.history.highest_plan = max(self.history.highest_plan, plan.id)
        for item in body.requests:
            self.names.pop((item.rank, item.request), None)
            self.request_plans[item.rank, item.request] = plan.id
        return [block(plan, self.local, self.host_of)]

    def placed(self, event: ev.PlanPlaced) -> list[ev.Command]:
        """The block exists: tell the ranks that wait."""
        plan = self.plans[event.plan]
        plan.offset, plan.placed = event.offset, True
        commands: list[ev.Command] = []
        for rank, requests in plan.requests.items():
            if rank in self.sessions:
                plan.told.add(rank)
                ready = v.PlanReady(plan.id, plan.offset, tuple(requests), plan.signature)
                commands.append(ev.ToRank(self.sessions[rank], ready))
        return commands + ([ev.SweepSoon()] if self.joined else [])

    def _refusal(self, body: v.Refusal) -> list[ev.Command]:
        for call in self.calls.answered(body.requests):
            if not isinstance(call.body, v.Join) and self.ended is None:
                self.history.answered(SetAnswer(call.number, refused=(body.error,)))
        return [self._refused(item, body) for item in body.requests if item.rank in self.sessions]

    def _refused(self, item: v.RankRequest, body: v.Refusal) -> ev.Command:
        announced, error = self.names.pop((item.rank, item.request), None), body.error
        if announced is not None and body.id:
            self.history.refused(body.id, announced, error)
        return ev.ToRank(self.sessions[item.rank], v.Refused(item.request, error))

    def _hold(self, plan_id: int) -> list[ev.Command]:
        if plan_id not in self.plans:
            return [self.report(v.Held(plan_id, ()))]
        self.plans[plan_id].held = True
        return [ev.PlanLimit(plan_id, 0, read=True)]

    def arrivals(self, event: ev.Arrivals) -> list[ev.Command]:
        """The plan is marked: report who had arrived."""
        counts = tuple(v.RankCount(self.local[index], count) for index, count in sorted(event.counts.items()))
        return [self.report(v.Held(event.plan, counts))]

    def _retire(self, body: v.RetirePlan) -> list[ev.Command]:
        plan = self.plans.get(body.plan)
        if plan is None or plan.removing:
            return [self.report(v.PlanRetired(body.plan))]
        plan.retiring, plan.limit = True, body.limit
        commands: list[ev.Command] = [ev.PlanLimit(plan.id, body.limit, read=False)]
        for rank in sorted(plan.told - plan.acked):
            if rank in self.sessions:
                commands.append(ev.ToRank(self.sessions[rank], v.Retire(plan.id, body.limit)))
        return commands + self._maybe_remove(plan)

    def _maybe_remove(self, plan: LocalPlan) -> list[ev.Command]:
        if plan.removing or not self._is_left(plan) or self._owes_zeros(plan):
            return []
        plan.removing = True
        return [ev.PlanRemove(plan.id)]

    def _is_left(self, plan: LocalPlan) -> bool:
        """Its limit is known, and no rank here waits in it any more."""
        return plan.retiring and not any(rank in self.sessions for rank in plan.told - plan.acked)

    def _owes_zeros(self, plan: LocalPlan) -> bool:
        """Rounds below the limit may need zeros from here, and nobody here can say that they are over."""
        if not self._can_miss(plan.signature):
            return False
        joined = set(self.joined).intersection(plan.ranks)
        return bool(joined and plan.limit > 0 and not plan.acked - joined)

    def removed(self, event: ev.PlanRemoved) -> list[ev.Command]:
        """The block is free, or a claim still refers to it: then the next tick tries again."""
        if not event.done:
            return []
        plan = self.plans.pop(event.plan)
        self.history.gone(plan.id, plan.limit)
        for rank, requests in plan.requests.items():
            for request in requests:
                if self.request_plans.get((rank, request)) == plan.id:  # else it was announced anew meanwhile
                    del self.request_plans[rank, request]
        return [self.report(v.PlanRetired(event.plan))]

    def plane_lost(self, event: ev.PlaneLost, now: float) -> list[ev.Command]:
        """Another agent's host can't be reached: nobody need wait for the coordinator to say so."""
        if self.ended is not None:
            return []
        error, report = lost(self.ring[event.host], event.text)
        self.peer_lost = report
        return [self.report(report), *self._end(error, now)]

    def plane_aborted(self, event: ev.PlaneAborted, now: float) -> None:
        """Another agent knows more: what ends the epoch, of which kind it is, comes from the coordinator."""
        if self.aborted is None:
            self.aborted, self.aborted_at = event, now

    def _overdue_abort(self, now: float, patience_s: float) -> list[ev.Command]:
        if self.aborted is None or self.ended is not None or now - self.aborted_at < patience_s:
            return []
        host = self.ring[self.aborted.host]
        text = f"Host {host.host} (agent {host.agent}) has ended the epoch: {self.aborted.text}"
        return self._end(v.Error(v.ErrorKind.LOST, text), now)

    def _end(self, error: v.Error, now: float) -> list[ev.Command]:
        closed = error.kind is v.ErrorKind.SHUT_DOWN
        if self.ended is None:
            self.ended, self.ended_at = error, now
        ended = v.EpochEnded(self.number, error)
        return [ev.BoardFail(closed, error.text), *(ev.ToRank(c, ended) for c in self.sessions.values())]

    def _set_changed(self, body: v.SetAdded | v.SetRemoved) -> list[ev.Command]:
        calls = self.calls.answered(body.requests)
        if isinstance(body, v.SetAdded):
            self.sets[body.process_set.id] = body.process_set.ranks
        else:
            self.sets.pop(body.id, None)
        if calls and isinstance(body, v.SetAdded):
            self.history.answered(SetAnswer(calls[0].number, added=(body.process_set,)))
        elif calls and isinstance(body, v.SetRemoved):
            self.history.answered(SetAnswer(calls[0].number, removed=(body.id,)))
        commands: list[ev.Command] = []
        for item in body.requests:
            if item.rank not in self.sessions:
                continue
            answer: v.AgentBody
            if isinstance(body, v.SetAdded):
                answer = v.ProcessSetReady(item.request, body.process_set)
            else:
                answer = v.ProcessSetRemoved(item.request, body.id)
            commands.append(ev.ToRank(self.sessions[item.rank], answer))
        return commands

    # ---- join -----------------------------------------------------------------------------------------------------------

    def _join_order(self, body: object) -> list[ev.Command]:
        if isinstance(body, v.JoinedRanks):
            self.joined = tuple(rank for rank in body.ranks if rank in self.local)
            anybody, self.extended_join = body.anybody, body.extended
            freed = [command for plan in list(self.plans.values()) for command in self._maybe_remove(plan)]
            return [ev.WatchArrivals(anybody), *freed, *(self.sweep() if anybody else [])]
        if isinstance(body, v.AllJoined):
            self.all_joined = True
            return self.sweep()
        if isinstance(body, v.JoinDone):
            self.all_joined = False
            self.zero_plans.clear()
            self.history.joined(body.last_rank)
            self.calls.answered(body.requests)
            done = [(self.sessions.get(item.rank), item.request) for item in body.requests]
            return [ev.ToRank(c, v.Joined(request, body.last_rank)) for c, request in done if c is not None]
        return []

    def sweep(self) -> list[ev.Command]:
        """Zeros, or nothing at all, for joined ranks in whatever waits for them."""
        if not self.joined and not self.all_joined:
            return []
        plans = tuple(p.id for p in self.plans.values() if p.placed and not p.removing and self._can_miss(p.signature))
        joined = tuple(self.local.index(rank) for rank in self.joined)
        left = tuple((plan.id, plan.limit) for plan in self.plans.values() if self._is_left(plan))
        return [ev.Sweep(plans, joined, self._due(), self.extended_join, left)]

    def _can_miss(self, signature: v.Signature) -> bool:
        """Whether a joined rank may be stood in for; the coordinator ends plans whose root has joined."""
        return signature.root not in self.joined if self.extended_join else signature.kind is v.Kind.ALLREDUCE

    def _due(self) -> tuple[tuple[int, int, int], ...]:
        """What ranks were told to run: words on the way to a rank are open operations too."""
        return tuple(
            (plan.id, self.local.index(rank), len(requests))
            for plan in self.plans.values()
            if plan.placed and not plan.retiring
            for rank, requests in plan.requests.items()
            if rank in self.sessions
        )

    def swept(self, event: ev.Swept) -> list[ev.Command]:
        """What ran with zeros; with everybody joined, whether nothing is open."""
        self.zero_plans.update(event.plans)
        if not (self.all_joined and event.quiet) or self.names:
            return []  # a name that is being negotiated will be a round
        self.all_joined = False
        return [self.report(v.JoinQuiet(tuple(sorted(self.zero_plans))))]

    # ---- sessions and time ------------------------------------------------------------------------------------------------

    def gone(self, rank: int) -> list[ev.Command]:
        """A rank has left or died: it holds up no retirement any more."""
        self.sessions.pop(rank, None)
        self.calls.gone(rank)
        self.names = {key: name for key, name in self.names.items() if key[0] != rank}
        return [command for plan in list(self.plans.values()) for command in self._maybe_remove(plan)]

    def tick(self, now: float, patience_s: float) -> list[ev.Command]:
        """Look at what waits; try again what was held up."""
        commands: list[ev.Command] = [ev.PlanRemove(plan.id) for plan in self.plans.values() if plan.removing]
        return [*commands, ev.Look(), *self.sweep(), *self._overdue_abort(now, patience_s)]

    def seen(self, event: ev.Seen, now: float, quiesce_s: float) -> list[ev.Command]:
        """Reports what waits; ends ranks that hold a claim in an epoch that is over."""
        here = range(len(self.local))
        missing = {self.local[index] for item in event.rounds for index in item.missing if index in here}
        self.tally.looked(missing if self.ended is None else (), now)
        if self.ended is not None:
            late = now - self.ended_at > quiesce_s
            holders = {self.local[i] for seen in event.rounds for i in seen.holders} if late else set()
            return [ev.EndProcess(rank, kill=True) for rank in sorted(holders)]
        waits = [seen for seen in event.rounds if seen.missing or seen.holders or self._is_away(seen)]
        anything = bool(waits or self.names or self.calls.open or event.plans_used)
        if not anything and not self.observed:
            return []
        self.observed = anything
        return [self.report(self._observation(waits, event, now))]

    def _is_away(self, seen: ev.SeenRound) -> bool:
        """Whether all ranks here have arrived, a while ago: it waits for other hosts, or travels between them."""
        plan = self.plans.get(seen.plan)
        return plan is not None and len(plan.ranks) < len(plan.members) and seen.age_s >= AWAY_S

    def _observation(self, waits: list[ev.SeenRound], event: ev.Seen, now: float) -> v.Observation:
        def ranks(indices: tuple[int, ...]) -> tuple[int, ...]:
            return tuple(self.local[i] for i in indices)

        def open_round(seen: ev.SeenRound) -> v.OpenRound:
            travels = event.moved and not seen.missing and self._is_away(seen)
            return v.OpenRound(seen.plan, seen.round, seen.age_s, ranks(seen.missing), ranks(seen.holders), travels)

        rounds = tuple(map(open_round, waits))
        states = tuple(self._rank_state(seen, now) for seen in event.ranks)
        blocked = (self._blocked_on(state, rounds) for state in states if state.blocked)
        return v.Observation(rounds, states, event.plans_used, tuple(item for item in blocked if item is not None))

    def _rank_state(self, seen: ev.SeenRank, now: float) -> v.RankState:
        rank = self.local[seen.local_index]
        state = v.RankState(rank, seen.submits, seen.blocked, seen.tag, seen.blocked_s, seen.process_state)
        return self.calls.added_to(state, now)

    def _blocked_on(self, state: v.RankState, rounds: tuple[v.OpenRound, ...]) -> v.BlockedOn | None:
        call = self.calls.blocked_on(state)
        if call is not None:
            return call
        tag = state.blocked_request
        announced = self.names.get((state.rank, tag))
        if announced is not None:
            return v.BlockedOn(state.rank, 0, 0, announced.signature.name)
        plan = self.plans.get(self.request_plans.get((state.rank, tag), tag))
        if plan is None:
            return None
        mine = [r.round for r in rounds if r.plan == plan.id and state.rank not in r.missing]
        return v.BlockedOn(state.rank, plan.id, min(mine), plan.signature.name) if mine else None

    # ---- a coordinator that was started anew ----------------------------------------------------------------------------

    def presented(self) -> EpochPresented:
        """All that it must know.  It says anew when everybody has joined."""
        self.all_joined = False
        history = self.history
        return EpochPresented(
            ended=() if self.ended is None else (self.ended,),
            plans=tuple(plan.presented() for plan in self.plans.values()),
            highest_plan=history.highest_plan,
            retired=tuple(v.RetirePlan(plan, limit) for plan, limit in history.limits.items()),
            announcements=tuple(self.names.values()) if self.ended is None else (),
            sets=tuple(history.sets.values()),
            free_sets=tuple(history.free_sets),
            next_set=history.next_set,
            set_changes=history.set_changes,
            set_answers=tuple(history.set_answers.values()),
            set_calls=self.calls.set_calls(),
            set_counts=tuple(v.RankCount(rank, count) for rank, count in history.set_counts.items()),
            joins=self.calls.joins(),
            joins_done=history.joins_done,
            last_joined=history.last_joined,
            zero_plans=tuple(sorted(self.zero_plans)),
            refusals=tuple(history.refusals.values()),
        )

    def check_invariants(self) -> None:
        """Raises AssertionError when the book is wrong."""
        assert set(self.sessions) <= set(self.local)
        assert {call.rank for call in self.calls.open.values()} <= set(self.sessions)
        for plan in self.plans.values():
            assert plan.told <= set(plan.ranks)
            assert plan.retiring or not plan.removing
        assert set(self.request_plans.values()) <= set(self.plans)


__all__ = ["Epoch", "lost"]


def lost(host: v.Host, text: str) -> tuple[v.Error, v.PeerLost]:
    """What ranks and the coordinator are told when the plane to a host is broken."""
    words = f"Host {host.host} (agent {host.agent}) can't be reached any more: {text}."
    return v.Error(v.ErrorKind.LOST, words), v.PeerLost(host.agent, text)
