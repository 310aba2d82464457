"""Ranks, agents, boards and the coordinator in virtual time: every step that could race is a step of its own.

A schedule (bytes, then a seeded random order, then strict rotation) picks which actor moves next.  Time passes only when nobody can
move.  The run ends when the job has ended; if time passes and nobody ever moves again, that is a hang and an error.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from typing import Any

from horovod.agent.core import AgentCore, AgentInfo
from horovod.agent.core import events as ae
from horovod.agent.core import values as v
from horovod.common.core import ClientCore
from horovod.coordinator.core import Config, Coordinator, JobEnded, JobSubmitted, Report, Tick
from horovod.coordinator.core.commands import Outbox, PlanMade, sends

from tests.model.board import Block, Board, BoardState, ModelError, Payload
from tests.model.rank import Condition, Outcome, Rank
from tests.model.recast import to_agent, to_coordinator
from tests.model.restart import Restarts

IDLE_S = 0.25
SILENCE_S = 1.0
MOST_IDLE_S = 60.0
MOST_PAUSE = 150  # steps between two evictions
LONGEST_NAP = 60
MOST_STEPS = 60_000
Steps = Generator[object, None, None]
Actor = tuple[bool, Callable[[], None], object]  # does it count as progress, its step, whose it is


@dataclass
class Match:
    """A round in which everybody has met."""

    epoch: int
    plan: int
    round: int
    arrived: dict[int, Payload | None]
    joined: frozenset[int]


@dataclass(eq=False)
class AgentHost:
    """An agent's shell: its core, its boards, one event at a time."""

    name: str
    core: AgentCore
    from_coordinator: deque[tuple[int, object]] = field(default_factory=deque)
    to_coordinator: deque[tuple[int, object]] = field(default_factory=deque)
    news: deque[ae.Event] = field(default_factory=deque)  # of processes and connections
    board: Board | None = None
    boards: dict[int, Board] = field(default_factory=dict)  # by epoch, for ranks that are still inside
    busy: Iterator[object] | None = None
    connected: bool = True
    held_up: int = 0  # PlanRemove answers "not yet" this often


@dataclass(frozen=True)
class Plan:
    """Everything that a run depends on, besides the programs."""

    size: int
    agents: int
    schedule: bytes = b""
    seed: int = 0
    random_steps: int = 0
    evictions: int = 0
    held_up: int = 0
    fast: bool = True
    restarts: int = 0
    deadlock_grace_s: float = 10.0
    extended_join: bool = False


Program = Callable[["World", Rank], list[Generator[Condition, None, None]]]


class World:
    """One job from submission to end."""

    def __init__(self, plan: Plan, programs: list[Program], **cores: Any) -> None:
        self.plan, self.now, self.steps = plan, 0.0, 0
        self._random = random.Random(plan.seed)
        self._slow: object = None
        self._slow_until = 0
        self._evictions, self._evict_at = plan.evictions, self._random.randrange(MOST_PAUSE)
        self.board_class: type[Board] = cores.get("board", Board)
        make_client: Callable[[], ClientCore] = cores.get("client", ClientCore)
        make_agent: Callable[[AgentInfo], AgentCore] = cores.get("agent", AgentCore)
        self._make_coordinator: Callable[..., Coordinator] = cores.get("coordinator", Coordinator)
        self.config = Config(stall_check_s=0.0, deadlock_grace_s=plan.deadlock_grace_s)
        self.coordinator = self._make_coordinator(self.config)
        self.restarts = Restarts(self, plan.restarts, self._random)
        self.shared: dict[int, dict[int, Block]] = {}  # by epoch
        self.plan_members: dict[tuple[int, int], tuple[int, ...]] = {}
        self._threads: dict[tuple[int, object], Generator[Condition, None, None]] = {}
        self._waiting_on: dict[tuple[int, object], Condition] = {}
        self.agents: dict[str, AgentHost] = {}
        slots = [len(range(i, plan.size, plan.agents)) for i in range(plan.agents)]
        for index, count in enumerate(slots):
            name = "ab"[index]
            info = AgentInfo(name, f"host-{name}", count, f"unix:@{name}", name)
            self.agents[name] = AgentHost(name, make_agent(info), held_up=plan.held_up)
        places = [name for name, count in zip(self.agents, slots, strict=True) for _ in range(count)]
        self.ranks = [Rank(r, places[r], r + 1, self._board_of, make_client, fast=plan.fast) for r in range(plan.size)]
        for rank in self.ranks:
            rank.extended_join = plan.extended_join
        self.programs = programs
        self.matches: list[Match] = []
        self.joined_ever: dict[int, frozenset[int]] = {}
        self.ended: JobEnded | None = None
        self.texts: list[str] = []
        self.dead: dict[int, int] = {}
        self.arrived_at_checkpoint: set[int] = set()
        self.checkpoints = 0
        self.at_checkpoint: Callable[[World], None] = lambda world: None
        self.join_results: list[tuple[int, int, int]] = []  # (epoch, rank, who joined last)
        self.to_end: dict[int, int] = {}  # ranks that got SIGTERM and die when time passes

    def _board_of(self, rank: Rank) -> Board:
        assert rank.welcome is not None
        return self.agents[rank.agent].boards[rank.welcome.epoch]

    # ---- the run

    def run(self) -> None:
        """Until the job has ended and every message is delivered."""
        for host in self.agents.values():
            self._carry_out_now(host, host.core.start())
            self._settle_reports(host)
        self.submit()
        choices, idle_s = iter(self.plan.schedule), 0.0
        while True:
            actors = list(self._actors()) or self.restarts.last_actors()
            if not actors:
                if self.ended is not None:
                    break
                if idle_s >= SILENCE_S and self._release_checkpoint():
                    idle_s = 0.0
                    continue
                idle_s += IDLE_S
                if idle_s > MOST_IDLE_S:
                    raise ModelError(f"a hang: {self._who_waits()}")
                self._pass_time()
                continue
            self._take(actors, choices)
            idle_s = 0.0 if self._progressed else idle_s

    _progressed = True

    def _take(self, actors: list[Actor], choices: Iterator[int]) -> None:
        self.steps += 1
        if self.steps > MOST_STEPS:
            raise ModelError(f"no end after {MOST_STEPS} steps: {self._who_waits()}")
        choice = next(choices, None)
        if choice is None:
            late = self.steps > self.plan.random_steps
            choice = self.steps if late else self._random.randrange(1 << 16)
            actors = actors if late else self._without_slow(actors)
        self._progressed, step, _ = actors[choice % len(actors)]
        step()

    def _without_slow(self, actors: list[Actor]) -> list[Actor]:
        """Somebody is slow for a while: others overtake it by many steps, as a busy machine lets them."""
        if self.steps >= self._slow_until:
            self._slow_until = self.steps + self._random.randrange(LONGEST_NAP)
            self._slow = self._random.choice([*range(self.plan.size), *self.agents, None])
        return [actor for actor in actors if actor[2] != self._slow] or actors

    def _actors(self) -> Iterator[Actor]:
        """Everybody who can move."""
        for host in self.agents.values():
            if host.busy is not None:
                yield True, lambda host=host: self._go_on(host), host.name  # type: ignore[misc]
            else:
                if host.news:
                    quiet = isinstance(host.news[0], ae.Tick)
                    yield not quiet, lambda host=host: self._begin(host, host.news.popleft()), host.name  # type: ignore[misc]
                yield from self.restarts.host_actors(host)
                if host.from_coordinator:
                    yield True, lambda host=host: self._begin(host, self._next_order(host)), host.name  # type: ignore[misc]
                if host.board is not None and host.board.rang:
                    yield True, lambda host=host: self._bell(host), host.name  # type: ignore[misc]
            if host.to_coordinator:
                quiet = isinstance(host.to_coordinator[0][1], v.Observation)
                yield not quiet, lambda host=host: self._report(host), host.name  # type: ignore[misc]
        for rank in self.ranks:
            if rank.alive:
                yield from self._rank_actors(rank)
        yield from self.restarts.actors(self.steps)
        if self._evictions and self.steps >= self._evict_at and self._evictable():
            yield True, self._evict, None

    def _rank_actors(self, rank: Rank) -> Iterator[Actor]:
        host = self.agents[rank.agent]
        if rank.outbox and host.busy is None:
            yield True, lambda: self._begin(host, ae.FromRank(rank.connection, rank.outbox.popleft())), host.name
        if rank.inbox and rank.free() and (rank.number, "reader") not in self._waiting_on:
            yield True, lambda: self._start_reader(rank), rank.number
        for key in [key for key in self._waiting_on if key[0] == rank.number]:
            if self._waiting_on[key]():
                yield True, lambda key=key: self._resume(rank, key), rank.number  # type: ignore[misc]

    # ---- ranks

    def start_rank(self, rank: Rank) -> None:
        """The process runs."""
        for index, thread in enumerate(self.programs[rank.number](self, rank)):
            self.spawn(rank, index, thread)

    def spawn(self, rank: Rank, name: object, thread: Generator[Condition, None, None]) -> None:
        """A thread of a rank."""
        key = (rank.number, name)
        self._threads[key] = thread
        self._waiting_on[key] = lambda: True

    def _start_reader(self, rank: Rank) -> None:
        self.spawn(rank, "reader", rank.locked(rank.deliver()))

    def _resume(self, rank: Rank, key: tuple[int, object]) -> None:
        try:
            self._waiting_on[key] = next(self._threads[key])
        except StopIteration:
            del self._waiting_on[key], self._threads[key]
            if key[1] != "reader" and not any(k[0] == rank.number and k[1] != "reader" for k in self._threads):
                self.exit(rank, 0)

    def exit(self, rank: Rank, code: int, signal: int = 0) -> None:
        """The process ends; its agent learns of the connection and of the process, in some order."""
        if not rank.alive:
            return
        rank.alive = False
        host = self.agents[rank.agent]
        if signal or code:
            self.dead[rank.number] = code
        for key in [key for key in self._threads if key[0] == rank.number]:
            del self._threads[key], self._waiting_on[key]
        while rank.outbox and not signal:
            host.news.append(ae.FromRank(rank.connection, rank.outbox.popleft()))
        news: list[ae.Event] = [
            ae.ConnectionClosed(rank.connection),
            ae.ProcessEnded(rank.number, code, signal, last_lines="Error"),
        ]
        host.news.extend(news if rank.number % 2 else reversed(news))

    # ---- checkpoints: no part of the system; everybody waits until nothing moves

    def checkpoint(self, rank: Rank) -> Generator[Condition, None, None]:
        """Waits for all ranks and for silence."""
        self.arrived_at_checkpoint.add(rank.number)
        number = self.checkpoints
        yield lambda: self.checkpoints > number

    def _release_checkpoint(self) -> bool:
        alive = {rank.number for rank in self.ranks if rank.alive}
        if not alive or not alive <= self.arrived_at_checkpoint:
            return False
        self.arrived_at_checkpoint.clear()
        self.at_checkpoint(self)
        self.checkpoints += 1
        return True

    # ---- agents

    def _next_order(self, host: AgentHost) -> ae.Event:
        epoch, body = host.from_coordinator.popleft()
        return ae.FromCoordinator(epoch, body)

    def _bell(self, host: AgentHost) -> None:
        assert host.board is not None
        host.board.rang = False
        self._begin(host, ae.Bell())

    def _begin(self, host: AgentHost, event: ae.Event) -> None:
        host.busy = self._handle(host, event)
        self._go_on(host)

    def _go_on(self, host: AgentHost) -> None:
        assert host.busy is not None
        if next(host.busy, None) is None:
            host.busy = None
            host.core.check_invariants()

    def _handle(self, host: AgentHost, event: ae.Event) -> Steps:
        yield from self._carry_out(host, host.core.handle(event, self.now))

    def _carry_out(self, host: AgentHost, commands: list[ae.Command]) -> Steps:
        outcomes: list[ae.Event] = []
        for command in commands:
            outcome = yield from self._do(host, command)
            if outcome is not None:
                outcomes.append(outcome)
        for outcome in outcomes:
            yield from self._handle(host, outcome)

    def _carry_out_now(self, host: AgentHost, commands: list[ae.Command]) -> None:
        for _ in self._carry_out(host, commands):
            pass

    def _do(self, host: AgentHost, command: ae.Command) -> Generator[object, None, ae.Event | None]:
        if isinstance(command, ae.ToRank):
            rank = self.ranks[command.connection - 1]
            rank.inbox.append(command.body)
        elif isinstance(command, ae.ToCoordinator):
            if host.connected:
                host.to_coordinator.append((command.epoch, command.body))
        elif isinstance(command, ae.StartProcess):
            rank = self.ranks[command.rank]
            rank.nonce = command.environment["HVD_SLOT_NONCE"]
            host.news.append(ae.ProcessStarted(command.rank, 100 + command.rank))
            self.start_rank(rank)
        elif isinstance(command, ae.EndProcess):
            if command.kill:
                self.exit(self.ranks[command.rank], 137, 9)
            else:
                self.to_end[command.rank] = 15
        elif isinstance(command, ae.Show):
            self.texts.append(command.text)
        elif isinstance(command, ae.CloseConnection):
            raise ModelError(f"{host.name} closes connection {command.connection}: {command.reason}")
        elif not isinstance(command, ae.JobOver):
            return (yield from self._on_board(host, command))
        return None

    def _on_board(self, host: AgentHost, command: ae.Command) -> Generator[object, None, ae.Event | None]:
        if isinstance(command, ae.BoardCreate):
            local = tuple(self.ranks[connection - 1].number for connection in command.connections)
            if host.board is not None:
                raise ModelError(f"{host.name} makes a board beside another one")
            shared = self.shared.setdefault(command.epoch, {})
            made = self.board_class(host.name, shared, local, on_open=lambda *what: self._opened(command.epoch, *what))
            host.board = host.boards[command.epoch] = made
            return None
        if isinstance(command, ae.PlaneOpen):
            host.news.append(ae.PlaneReady(command.epoch))
            return None
        board = host.board
        if board is None:
            raise ModelError(f"{host.name}: {command} without a board")
        if isinstance(command, ae.BoardClose):
            host.board = None
            return None
        return (yield from self._use_board(host, board, command))

    def _use_board(
        self, host: AgentHost, board: Board, command: ae.Command
    ) -> Generator[object, None, ae.Event | None]:
        if isinstance(command, ae.PlanAdd):
            members = tuple(board.local[index] for index in command.members if index < len(board.local))
            everybody = self.plan_members[host.core.last_epoch, command.plan]
            return ae.PlanPlaced(command.plan, board.add(command.plan, command.depth, members, everybody))
        if isinstance(command, ae.PlanLimit):
            board.block(command.plan).limits[host.name] = command.limit
            if not command.read:
                return None
            yield "marked"
            block = board.block(command.plan)
            counts = {i: block.arrivals.get(r, 0) for i, r in enumerate(board.local) if r in block.members}
            return ae.Arrivals(command.plan, counts)
        if isinstance(command, ae.PlanRemove):
            return self._remove(host, board, command.plan)
        if isinstance(command, ae.Sweep):
            return (yield from self._sweep(board, command))
        if isinstance(command, ae.Look):
            return self._look(board)
        if isinstance(command, ae.BoardFail):
            if board.state is not BoardState.FAILED:
                board.state = BoardState.CLOSED if command.closed else BoardState.FAILED
                board.reason = board.reason or command.text
        elif isinstance(command, ae.WatchArrivals):
            board.watch = command.on
        return None

    def _remove(self, host: AgentHost, board: Board, plan: int) -> ae.Event:
        if host.held_up:
            host.held_up -= 1
            return ae.PlanRemoved(plan, False)
        board.remove(plan)
        return ae.PlanRemoved(plan, True)

    def _sweep(self, board: Board, command: ae.Sweep) -> Generator[object, None, ae.Event | None]:
        used = []
        late = {
            (plan, board.local[index])
            for plan, index, rounds in command.due
            if board.block(plan).arrivals.get(board.local[index], 0) < rounds
        }
        for plan in command.plans:
            block = board.block(plan)
            for rank in (board.local[index] for index in command.joined):
                if rank in block.members and (plan, rank) not in late:
                    board.zeros = 0
                    yield from board.arrive_zeros(block, rank)
                    if board.zeros:
                        used.append(plan)
        return ae.Swept(tuple(dict.fromkeys(used)), not board.open_rounds() and not late)

    def _look(self, board: Board) -> ae.Event:
        rounds = []
        for block, number, entry in board.open_rounds():
            missing = tuple(i for i, r in enumerate(board.local) if r in block.members and r not in entry.arrived)
            rounds.append(ae.SeenRound(block.plan, number, 0.0, missing, ()))
        ranks = tuple(self._seen_rank(index, number) for index, number in enumerate(board.local))
        return ae.Seen(tuple(rounds), ranks)

    def _seen_rank(self, index: int, number: int) -> ae.SeenRank:
        rank = self.ranks[number]
        waiting = [op for op in rank.waiting_for if not op.over]
        tag = 0
        if waiting:
            assert rank.core is not None
            tag = rank.core.awaited(waiting[0])
        submits = sum(rank.uses.values())
        return ae.SeenRank(index, submits, len(waiting), tag, 0.0, "running" if rank.alive else "dead")

    # ---- the coordinator

    def _report(self, host: AgentHost) -> None:
        epoch, body = host.to_coordinator.popleft()
        self._tell_coordinator(Report(host.name, epoch, to_coordinator(body)))

    def _settle_reports(self, host: AgentHost) -> None:
        while host.to_coordinator:
            self._report(host)

    def new_coordinator(self) -> None:
        """Another process: it knows nothing, and its incarnation is higher."""
        self.coordinator = self._make_coordinator(self.config, incarnation=self.coordinator.incarnation + 1)

    def submit(self) -> None:
        """The job."""
        self._tell_coordinator(JobSubmitted(self.plan.size, ("program",), id="job"))

    def _tell_coordinator(self, event: Any) -> None:
        if self.restarts.is_down:
            return
        self._carry(self.coordinator.handle(event, self.now))
        self.coordinator.check_invariants()

    def _carry(self, commands: list[Any]) -> None:
        for send in sends(commands):
            if isinstance(send.body, PlanMade) and self.coordinator.epoch is not None:
                plan = self.coordinator.epoch.plans.table[send.body.plan]
                self.plan_members[send.epoch, plan.id] = plan.members
            self.agents[send.agent].from_coordinator.append((send.epoch, to_agent(send.body)))
        self.ended = next((command for command in commands if isinstance(command, JobEnded)), self.ended)

    def _evictable(self) -> list[int]:
        epoch = self.coordinator.epoch
        if epoch is None or epoch.ended is not None or self.restarts.is_down:
            return []
        return [plan.id for plan in epoch.plans.table.values() if plan.state.value == "live"]

    def _evict(self) -> None:
        """What a full table does, at a moment that the schedule chooses."""
        self._evictions -= 1
        self._evict_at = self.steps + self._random.randrange(MOST_PAUSE)
        epoch, plans = self.coordinator.epoch, self._evictable()
        assert epoch is not None
        out = Outbox(0, epoch.number)
        epoch.plans._hold(out, epoch.plans.table[plans[self.steps % len(plans)]])
        self._carry(out.commands)

    # ---- what must hold of every round

    def _opened(self, epoch: int, plan: int, number: int, arrived: dict[int, Payload | None]) -> None:
        """N1: who meets has submitted the same thing as the same use of its name; zeros stand for joined ranks only."""
        payloads = [payload for payload in arrived.values() if payload is not None]
        what = {(payload.key, payload.use, payload.content) for payload in payloads}
        if len(what) != 1:
            raise ModelError(f"round {number} of plan {plan} mixes {arrived}")
        joined = self.restarts.joined()
        zeros = frozenset(rank for rank, payload in arrived.items() if payload is None)
        if not zeros <= joined:
            raise ModelError(
                f"round {number} of plan {plan} takes zeros for {sorted(zeros - joined)}, who have not joined"
            )
        self.matches.append(Match(epoch, plan, number, arrived, joined))

    # ---- time and ends

    def _pass_time(self) -> None:
        self.now += IDLE_S
        for number in list(self.to_end):
            self.exit(self.ranks[number], 128 + 15, self.to_end.pop(number))
        for host in self.agents.values():
            host.news.append(ae.Tick())
        self._tell_coordinator(Tick())

    def _who_waits(self) -> str:
        lines = []
        for rank in self.ranks:
            ops = [
                f"{op.name}#{op.use} {op.state.value} {op.native.state.value}" for op in rank.waiting_for if not op.over
            ]
            lines.append(f"rank {rank.number} {'alive' if rank.alive else 'dead'}: {', '.join(ops) or 'no operation'}")
        return "; ".join(lines)

    def epoch_of(self, rank: Rank) -> int:
        """Where the rank is."""
        assert rank.welcome is not None
        return rank.welcome.epoch

    def outcomes(self) -> list[Outcome]:
        """Of all ranks."""
        return [outcome for rank in self.ranks for outcome in rank.outcomes]
