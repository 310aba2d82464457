"""The agent: rank processes, their sessions, and the epoch they are in.

Owns who may speak for a rank: the process that holds the slot's nonce, one at a time.  A message that makes no sense ends the
connection that it came on, never the agent.  Announcements of one turn travel together.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace

from horovod.agent.core import events as ev
from horovod.agent.core import values as v
from horovod.agent.core.environment import rank_environment
from horovod.agent.core.epoch import Epoch, lost
from horovod.agent.core.presentation import FinishedJob, Presented
from horovod.agent.core.slots import Phase, Session, Slot, ending, rank_hello
from horovod.agent.core.tally import Tally

PROTOCOL = 1


@dataclass(frozen=True, slots=True)
class AgentInfo:
    """What an agent is; ``address`` is where its ranks find it, ``secret`` makes the slots' nonces."""

    name: str
    host: str
    slots: int
    address: str
    secret: str
    quiesce_s: float = 2.0
    silent_s: float = 1.0
    exit_s: float = 1.0  # so long a process may take from its last words to its end before others hear that it left


@dataclass(slots=True)
class Opening:
    """An epoch whose plane is being opened; what the coordinator says meanwhile waits."""

    number: int
    start: v.EpochStart
    peer_lost: v.PeerLost | None = None
    orders: list[ev.FromCoordinator] = field(default_factory=list)


@dataclass(slots=True)
class AgentCore:
    """``handle`` one event at a time; outcomes of board commands come before anything else."""

    info: AgentInfo
    slots: dict[int, Slot] = field(default_factory=dict)
    sessions: dict[int, Session] = field(default_factory=dict)
    epoch: Epoch | None = None
    opening: Opening | None = None
    last_epoch: int = 0
    missed_epoch: int = 0  # one that could not begin here, as a rank had died meanwhile
    jobs: int = 0
    job: v.StartRanks | None = None
    epoch_start: v.EpochStart | None = None  # of the last epoch
    finished: FinishedJob | None = None
    tally: Tally = field(default_factory=Tally)

    def start(self) -> list[ev.Command]:
        """First words to the coordinator."""
        return [ev.ToCoordinator(0, v.Register(self.info.name, self.info.host, self.info.slots))]

    def handle(self, event: ev.Event, now: float) -> list[ev.Command]:
        """Commands that follow from the event."""
        if isinstance(event, ev.FromRank):
            return self._from_rank(event, now)
        if isinstance(event, ev.FromCoordinator):
            return self._order(event, now)
        if isinstance(event, ev.ConnectionClosed):
            return self._closed(event.connection, now)
        if isinstance(event, ev.ProcessStarted):
            return self._started(event)
        if isinstance(event, ev.ProcessEnded):
            return self._ended(event, now)
        if isinstance(event, ev.Tick):
            return self._tick(now)
        return self._board_event(event, now)

    def _board_event(self, event: ev.Event, now: float) -> list[ev.Command]:
        if isinstance(event, (ev.PlaneReady, ev.PlaneLost, ev.PlaneAborted)):
            return self._plane_event(event, now)
        epoch = self.epoch
        if epoch is None:
            return []
        if isinstance(event, ev.PlanPlaced):
            return epoch.placed(event)
        if isinstance(event, ev.Arrivals):
            return epoch.arrivals(event)
        if isinstance(event, ev.PlanRemoved):
            return epoch.removed(event)
        if isinstance(event, ev.Swept):
            return epoch.swept(event)
        if isinstance(event, ev.Seen):
            return epoch.seen(event, now, self.info.quiesce_s)
        return [ev.SweepSoon()] if isinstance(event, ev.Wanted) else epoch.sweep()

    # ---- ranks ------------------------------------------------------------------------------------------------------------

    def _from_rank(self, event: ev.FromRank, now: float) -> list[ev.Command]:
        body = event.body
        if isinstance(body, v.Hello):
            return self._hello(event.connection, body, now)
        session = self.sessions.get(event.connection)
        if session is None:
            return [ev.CloseConnection(event.connection, f"{type(body).__name__} before Hello")]
        if isinstance(body, v.Leave):
            if session.phase is Phase.WAITING:
                return [ev.CloseConnection(event.connection, "Leave inside init")]
            return self._leave(session, body, now)
        if session.phase is not Phase.READY or self.epoch is None:
            # A thread may have been slower than shutdown.
            late = isinstance(body, v.RetireAck) or session.phase is Phase.LEFT
            return [] if late else [ev.CloseConnection(event.connection, f"{type(body).__name__} outside an epoch")]
        if self.epoch.sessions.get(session.rank) != event.connection:
            return []  # last words of a process that is gone
        self.tally.announcements += isinstance(body, v.Announce)
        commands = self.epoch.from_rank(session.rank, body, now)
        return [ev.CloseConnection(event.connection, commands)] if isinstance(commands, str) else commands

    def _hello(self, connection: int, hello: v.Hello, now: float) -> list[ev.Command]:
        reason = self._reason_against(connection, hello)
        if reason:
            return [ev.ToRank(connection, v.Rejected(reason))]
        session = Session(connection, hello.rank, hello.generation)
        slot = self.slots[hello.rank]
        self.sessions[connection] = slot.session = session
        slot.owes = True
        body = rank_hello(hello.rank, hello)
        farewell = self._farewell(slot, now)
        slot.record.hello = body
        return [*farewell, ev.ToCoordinator(0, body)]

    def _reason_against(self, connection: int, hello: v.Hello) -> str:
        slot = self.slots.get(hello.rank)
        if hello.protocol != PROTOCOL:
            return f"This process speaks protocol {hello.protocol}, the agent {PROTOCOL}: install the same version of hvd on both."
        if slot is None or hello.nonce != slot.nonce:
            return (
                f"Process {hello.pid} does not belong to a slot of this agent: rank {hello.rank} was started by somebody else. "
                "Start ranks with horovodrun, and do not copy HOROVOD_* variables between jobs."
            )
        other = slot.session
        if other is not None and other.connection != connection and other.phase is not Phase.LEFT:
            return (
                f"Process {hello.pid} inherited the variables of rank {hello.rank}, which another process (started as pid "
                f"{slot.pid}) is already. A subprocess of a rank can't be a rank: remove HOROVOD_RANK and HOROVOD_AGENT from its "
                "environment. If it is a worker that imports the main program (multiprocessing, DataLoader), call hvd.init() "
                'under if __name__ == "__main__": there.'
            )
        if not hello.descriptors:
            return f"The Hello of process {hello.pid} came without its descriptors."
        mine = self.sessions.get(connection)
        if mine is not None and mine.phase is not Phase.LEFT:
            return f"Rank {hello.rank} called init twice without shutdown."
        return ""

    def _leave(self, session: Session, body: v.Leave, now: float) -> list[ev.Command]:
        commands: list[ev.Command] = [ev.ToRank(session.connection, v.Closed(session.generation))]
        slot = self.slots.get(session.rank)
        if session.phase is Phase.READY:
            left = v.RankLeft(session.rank, session.generation, body.reason)
            if slot is not None and slot.running and body.finished and not body.reason:
                slot.farewell, slot.farewell_until = left, now + self.info.exit_s
            else:
                if slot is not None:
                    slot.record.leave(left, now)
                commands.append(ev.ToCoordinator(self.last_epoch, left))
            commands += self._out_of_epoch(session.rank)
        session.phase = Phase.LEFT
        if slot is not None:
            slot.owes = False
        return commands

    def _farewell(self, slot: Slot, now: float, reason: str = "") -> list[ev.Command]:
        """Reports that a rank left whose process was about to end: with what its end says, if that came in time."""
        if slot.farewell is None:
            return []
        left, slot.farewell = replace(slot.farewell, reason=reason), None
        slot.record.leave(left, now)
        return [ev.ToCoordinator(self.last_epoch, left)]

    def _out_of_epoch(self, rank: int) -> list[ev.Command]:
        if self.epoch is None:
            return []
        commands = self.epoch.gone(rank)
        if self.epoch.sessions:
            return commands
        self.epoch = None
        return [ev.BoardClose()]

    def _closed(self, connection: int, now: float) -> list[ev.Command]:
        session = self.sessions.pop(connection, None)
        if session is None:
            return []
        slot = self.slots.get(session.rank)
        if slot is not None and slot.session is session:
            slot.session = None
            if session.phase is not Phase.LEFT:
                slot.lost_at = now
        return self._dead(session) if session.phase is Phase.READY else []

    def _dead(self, session: Session) -> list[ev.Command]:
        if self.epoch is None or self.epoch.sessions.get(session.rank) != session.connection:
            return []
        dead = ev.RankDead(self.epoch.local.index(session.rank))
        return [dead, *self._out_of_epoch(session.rank)]

    # ---- processes ----------------------------------------------------------------------------------------------------------

    def _start_ranks(self, body: v.StartRanks, now: float) -> list[ev.Command]:
        self.jobs += 1
        self.job = body
        self.tally.jobs += 1
        commands: list[ev.Command] = []
        for place in (place for place in body.places if place.agent == self.info.name):
            seed = f"{self.info.secret}/{self.jobs}/{place.rank}"
            nonce = hashlib.sha256(seed.encode()).hexdigest()
            self.slots[place.rank] = Slot(place, nonce)
            environment = rank_environment(body.environment, place, body.size, self.info.address, nonce)
            commands.append(ev.StartProcess(place.rank, body.command, environment, body.directory))
        return commands

    def _started(self, event: ev.ProcessStarted) -> list[ev.Command]:
        slot = self.slots.get(event.rank)
        if slot is None:
            return []
        slot.pid = event.pid
        return [ev.ToCoordinator(0, v.RankStarted(event.rank, event.pid))]

    def _ended(self, event: ev.ProcessEnded, now: float) -> list[ev.Command]:
        slot = self.slots.get(event.rank)
        if slot is None or not slot.running:
            return []
        slot.running = False
        exited = v.RankExited(
            event.rank, slot.pid, event.code, event.signal, not slot.owes, event.last_lines, event.start_error
        )
        session = slot.session
        commands = self._dead(session) if session is not None and session.phase is Phase.READY else []
        farewell = self._farewell(slot, now, ending(event))
        slot.record.exited, slot.record.exited_at = exited, now
        return [*farewell, ev.ToCoordinator(0, exited), *commands]

    # ---- orders ---------------------------------------------------------------------------------------------------------------

    def _order(self, event: ev.FromCoordinator, now: float) -> list[ev.Command]:
        body = event.body
        if isinstance(body, v.StartRanks):
            return self._start_ranks(body, now)
        if isinstance(body, v.StopRanks):
            kill = body.grace_s <= 0
            return [ev.EndProcess(rank, kill) for rank, slot in self.slots.items() if slot.running]
        if isinstance(body, v.EpochStart):
            return self._epoch_start(event.epoch, body)
        if isinstance(body, v.RankRejected):
            return self._rejected(body)
        if isinstance(body, v.Warn):
            return [ev.Show(body.text)]
        if isinstance(body, v.JobFinished):
            return self._job_finished(body)
        if self.opening is not None and event.epoch == self.opening.number:
            return self._order_early(self.opening, event)
        if self.epoch is not None and event.epoch == self.epoch.number:
            return self.epoch.order(body, now)
        if isinstance(body, v.EndEpoch) and event.epoch == self.missed_epoch:
            return self._reject_late(body)
        return []

    def _job_finished(self, body: v.JobFinished) -> list[ev.Command]:
        self.slots.clear()
        if self.job is not None:
            details = (body.code, body.text, body.rank, body.host, body.pid, body.signal, body.last_lines)
            self.finished = FinishedJob(self.job.id, *details, job=self.job.job, started=self.job.started)
        self.job = None
        return [ev.JobOver(body.code, body.text)]

    def _waiting_locals(self, body: v.EpochStart) -> dict[int, Session] | None:
        """The sessions of all local ranks, or None: somebody died, and the coordinator ends the epoch when it hears of it."""
        local = [place.rank for place in body.places if place.agent == self.info.name]
        sessions = {rank: self.slots[rank].session for rank in local if rank in self.slots}
        live = {rank: s for rank, s in sessions.items() if s is not None and s.phase is Phase.WAITING}
        return live if len(live) == len(local) else None

    def _epoch_start(self, number: int, body: v.EpochStart) -> list[ev.Command]:
        live = self._waiting_locals(body)
        self.last_epoch, self.epoch_start = number, body
        for rank, slot in self.slots.items():
            slot.record.epoch = number if body.places[rank].agent == self.info.name else 0
        if live is None:
            self.missed_epoch = number
            return []
        shared = len(body.ring) > 1
        create = ev.BoardCreate(number, tuple(session.connection for session in live.values()), shared)
        if not shared:
            return [create, *self._begin(number, body)]
        place = [host.agent for host in body.ring].index(self.info.name)
        self.opening = Opening(number, body)
        return [create, ev.PlaneOpen(number, body.ring, place, body.key)]

    def _begin(self, number: int, body: v.EpochStart) -> list[ev.Command]:
        """The board exists and all others are connected: the local ranks are let in."""
        live = self._waiting_locals(body)
        if live is None:
            self.missed_epoch = number
            return [ev.BoardClose()]
        connections = {rank: session.connection for rank, session in live.items()}
        sets = {item.id: item.ranks for item in body.process_sets}
        self.epoch = Epoch(number, body.places, tuple(live), connections, sets, body.ring, self.tally)
        for session in live.values():
            session.phase = Phase.READY
        return [ev.ToRank(connections[rank], self.epoch.welcome(rank, body.process_sets)) for rank in live]

    def _plane_event(self, event: ev.PlaneReady | ev.PlaneLost | ev.PlaneAborted, now: float) -> list[ev.Command]:
        opening, epoch = self.opening, self.epoch
        if isinstance(event, ev.PlaneAborted):
            if epoch is not None and event.epoch == epoch.number:
                epoch.plane_aborted(event, now)
            return []
        if opening is not None and event.epoch == opening.number:
            if isinstance(event, ev.PlaneLost):
                _, report = lost(opening.start.ring[event.host], event.text)
                opening.peer_lost = report
                return [ev.ToCoordinator(opening.number, report)]  # it ends the epoch for all
            return self._opened(opening, now)
        if isinstance(event, ev.PlaneLost) and epoch is not None and event.epoch == epoch.number:
            return epoch.plane_lost(event, now)
        return []

    def _opened(self, opening: Opening, now: float) -> list[ev.Command]:
        self.opening = None
        commands = self._begin(opening.number, opening.start)
        for order in opening.orders:
            commands += self._order(order, now)
        return commands

    def _order_early(self, opening: Opening, event: ev.FromCoordinator) -> list[ev.Command]:
        """An order for an epoch that is not open yet: it waits, unless the epoch has failed.

        A shutdown waits too: ranks elsewhere were let in and may have left again, so those here get in as well.
        """
        if not isinstance(event.body, v.EndEpoch) or event.body.error.kind is v.ErrorKind.SHUT_DOWN:
            opening.orders.append(event)
            return []
        self.opening, self.missed_epoch = None, opening.number
        return [ev.BoardClose(), *self._reject_late(event.body)]

    def _reject_late(self, body: v.EndEpoch) -> list[ev.Command]:
        """The epoch ended before it began here."""
        commands: list[ev.Command] = []
        for session in self.sessions.values():
            if session.phase is Phase.WAITING:
                commands += self._rejected(v.RankRejected(session.rank, body.error.text))
        return commands

    def _rejected(self, body: v.RankRejected) -> list[ev.Command]:
        slot = self.slots.get(body.rank)
        if slot is None or slot.session is None or slot.session.phase is not Phase.WAITING:
            return []
        slot.session.phase = Phase.LEFT
        slot.owes, slot.record.hello = False, None
        return [ev.ToRank(slot.session.connection, v.Rejected(body.reason, body.retry))]

    # ---- time -----------------------------------------------------------------------------------------------------------------

    def _tick(self, now: float) -> list[ev.Command]:
        commands: list[ev.Command] = self.epoch.tick(now, self.info.quiesce_s) if self.epoch is not None else []
        for rank, slot in self.slots.items():
            if now >= slot.farewell_until:
                commands += self._farewell(slot, now)
            silent = slot.lost_at is not None and now - slot.lost_at >= self.info.silent_s
            if silent and slot.running and slot.session is None:
                slot.lost_at = None
                text = f"Rank {rank} closed its connection to the agent while the others needed it: it is ended."
                commands += [ev.Show(text), ev.EndProcess(rank, kill=True)]
        return commands

    def presented(self, now: float) -> Presented:
        """For a coordinator that was started anew: what it says from now on follows from this."""
        job = self.job
        if job is None:
            return Presented(finished=() if self.finished is None else (self.finished,))
        lost = self.opening.peer_lost if self.opening is not None else self.epoch.peer_lost if self.epoch else None
        return Presented(
            last_job=job.id,
            start=(job,),
            ranks=tuple(slot.record.presented(rank, slot.pid, now) for rank, slot in self.slots.items()),
            last_epoch=self.last_epoch,
            epoch_start=() if self.epoch_start is None else (self.epoch_start,),
            epoch=() if self.epoch is None else (self.epoch.presented(),),
            peer_lost=() if lost is None else (lost,),
        )

    def check_invariants(self) -> None:
        """Raises AssertionError when the book is wrong."""
        for connection, session in self.sessions.items():
            assert session.connection == connection
        if self.epoch is not None:
            self.epoch.check_invariants()
            for rank, connection in self.epoch.sessions.items():
                assert self.sessions[connection].rank == rank
                assert self.sessions[connection].phase is Phase.READY
