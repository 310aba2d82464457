"""An agent core for processes that others have started: the agent gives them ranks, and never starts or signals them.

Owns the list of those that wait ("guests"), and tells the coordinator of it whenever it changes.  A guest is a connection that
has said Hello without a slot's nonce.  The coordinator takes guests for a job; from then on they are ranks with slots like any
others, except that nothing is known of their processes but that they live: their end is the end of their connection, which the
shell brings about when the handle that they passed says so.  A rank that leaves is out of its job ("resting"), and a guest
again when it says Hello anew.

The one process that is ended here is one that holds a claim in an epoch that is over, so that its neighbours can't return; the
command names its connection, as there is no process of the agent's own.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from horovod.agent.core import events as ev
from horovod.agent.core import values as v
from horovod.agent.core.agent import PROTOCOL, AgentCore
from horovod.agent.core.slots import Phase, Session, Slot, rank_hello

__all__ = ["GuestCore"]

_NAMED = 16
_UNHEARD = "The agent has told the coordinator, and waits for its answer."


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A guest; ``last_rank`` is the rank that it had here before, so that it comes back to the same place in the row."""

    id: int
    connection: int
    hello: v.Hello
    last_rank: int


@dataclass(slots=True)
class GuestCore(AgentCore):
    """``orphaned``: ranks of a job that the coordinator does not know any more are still in their epoch."""

    waiting: dict[int, _Waiting] = field(default_factory=dict)  # by connection
    told: v.Guests = field(default_factory=v.Guests)
    text: str = _UNHEARD
    orphaned: bool = False
    ids: int = 0

    def handle(self, event: ev.Event, now: float) -> list[ev.Command]:
        """Commands that follow from the event; the coordinator hears first who waits, then what else there is."""
        # `super()` has no class cell here: the dataclass with slots is another class than the one that is written.
        commands = self._abandon(event, now) if isinstance(event, ev.Abandoned) else AgentCore.handle(self, event, now)
        if self.epoch is None and self.opening is None:
            self.orphaned = False
        anew = isinstance(event, ev.FromCoordinator) and isinstance(event.body, v.Registered)
        guests = self._guests()
        if guests != self.told or anew:
            self.told = guests
            commands = [ev.ToCoordinator(0, guests), *commands]
        return [other for command in commands for other in (self._of_guest(command), *self._heard_by_ranks(command))]

    def _heard_by_ranks(self, command: ev.Command) -> list[ev.Command]:
        """What is shown to a person is heard where they look: at the first rank here."""
        if not isinstance(command, ev.Show) or self.epoch is None or not self.epoch.sessions:
            return []
        return [ev.ToRank(self.epoch.sessions[min(self.epoch.sessions)], v.Warning(command.text))]

    def _of_guest(self, command: ev.Command) -> ev.Command:
        if not isinstance(command, ev.EndProcess):
            return command
        connection = self.epoch.sessions.get(command.rank, 0) if self.epoch is not None else 0
        return ev.EndGuest(connection)

    def _guests(self) -> v.Guests:
        """Everybody who waits, in the order in which ranks are to be given; nobody while an epoch is not over here."""
        row = sorted(self.waiting.values(), key=lambda item: (item.last_rank < 0, item.last_rank, item.id))
        items = tuple(v.Guest(item.id, item.hello.pid, item.hello.rank, item.hello.size) for item in row)
        resting = sum(session.phase is Phase.LEFT for session in self.sessions.values())
        return v.Guests(() if self.orphaned else items, resting)

    # ---- from processes

    def _hello(self, connection: int, hello: v.Hello, now: float) -> list[ev.Command]:
        reason = self._reason_against(connection, hello)
        if reason:
            return [ev.ToRank(connection, v.Rejected(reason))]
        before = self.sessions.pop(connection, None)
        if before is not None and (slot := self.slots.get(before.rank)) is not None and slot.session is before:
            slot.session = None
        self._wait(connection, hello, before.rank if before is not None else -1)
        return [ev.ToRank(connection, v.Waiting(self.text))]

    def _wait(self, connection: int, hello: v.Hello, last_rank: int) -> None:
        self.ids += 1
        self.waiting[connection] = _Waiting(self.ids, connection, hello, last_rank)

    def _reason_against(self, connection: int, hello: v.Hello) -> str:
        session = self.sessions.get(connection)
        if hello.protocol != PROTOCOL:
            return f"This process speaks protocol {hello.protocol}, the agent {PROTOCOL}: install the same version of hvd on both."
        if hello.nonce:
            return (
                f"Process {hello.pid} has HVD_SLOT_NONCE of a rank that a launcher has started, but HOROVOD_AGENT of another "
                "agent. Remove HVD_SLOT_NONCE, HOROVOD_RANK and HOROVOD_SIZE from its environment to get a rank here."
            )
        if not hello.descriptors:
            return f"The Hello of process {hello.pid} came without its descriptors."
        if connection in self.waiting or (session is not None and session.phase is not Phase.LEFT):
            return f"Process {hello.pid} called init twice without shutdown."
        taken = [s for s in self.sessions.values() if s.phase is not Phase.LEFT]
        if len(taken) + len(self.waiting) < self.info.slots:
            return ""
        ranks = [f"rank {s.rank} (pid {self._pid(s)})" for s in sorted(taken, key=lambda item: item.rank)]
        names = [*ranks, *(f"process {item.hello.pid}, which waits" for item in self.waiting.values())]
        return (
            f"Process {hello.pid} can't be a rank on host {self.info.host}: agent {self.info.name} has {self.info.slots} "
            f"slot(s), and they are taken by {', '.join(names[:_NAMED])}. Wait for their end, use another host, or start "
            "hvd-agent with more --slots."
        )

    def _pid(self, session: Session) -> int:
        slot = self.slots.get(session.rank)
        return slot.pid if slot is not None and slot.session is session else 0

    def _leave(self, session: Session, body: v.Leave, now: float) -> list[ev.Command]:
        known = self._is_known(session)
        commands = AgentCore._leave(self, session, replace(body, finished=False), now)
        return commands if known else [c for c in commands if not isinstance(c, ev.ToCoordinator)]

    def _is_known(self, session: Session) -> bool:
        """Whether the coordinator counts it among the ranks of its job."""
        slot = self.slots.get(session.rank)
        return slot is not None and slot.session is session

    def _closed(self, connection: int, now: float) -> list[ev.Command]:
        self.waiting.pop(connection, None)
        session = self.sessions.get(connection)
        slot = self.slots[session.rank] if session is not None and self._is_known(session) else None
        commands = AgentCore._closed(self, connection, now)
        if session is None or slot is None:
            return commands
        exited = v.RankExited(session.rank, slot.pid, int(slot.owes), 0, not slot.owes)
        slot.record.exited, slot.record.exited_at = exited, now
        return [ev.ToCoordinator(0, exited), *commands]

    # ---- orders

    def _start_ranks(self, body: v.StartRanks, now: float) -> list[ev.Command]:
        """The coordinator has taken guests."""
        self.jobs += 1
        self.tally.jobs += 1
        self.job, self.finished = body, None
        self.last_epoch, self.epoch_start, self.missed_epoch = 0, None, 0
        self.slots.clear()
        by_id = {item.id: item for item in self.waiting.values()}
        commands: list[ev.Command] = []
        for place, guest in zip(body.places, body.guests, strict=False):
            if place.agent != self.info.name:
                continue
            item = by_id.get(guest)
            if item is None:  # it has gone away meanwhile
                slot = self.slots[place.rank] = Slot(place, "", running=False)
                slot.record.exited, slot.record.exited_at = v.RankExited(place.rank, 0, 1, 0, False), now
                commands.append(ev.ToCoordinator(0, slot.record.exited))
                continue
            del self.waiting[item.connection]
            hello = item.hello
            session = Session(item.connection, place.rank, hello.generation)
            slot = Slot(place, "", hello.pid, running=False, session=session, owes=True, hello=hello)
            self.sessions[item.connection], self.slots[place.rank] = session, slot
            slot.record.hello = rank_hello(place.rank, hello)
            commands.append(ev.ToCoordinator(0, slot.record.hello))
        return commands

    def _order(self, event: ev.FromCoordinator, now: float) -> list[ev.Command]:
        body = event.body
        if isinstance(body, v.Gathering):
            return self._say(body.text)
        if isinstance(body, v.GuestRejected):
            found = [item.connection for item in self.waiting.values() if item.id == body.guest]
            for connection in found:
                del self.waiting[connection]
            return [ev.ToRank(connection, v.Rejected(body.reason)) for connection in found]
        if isinstance(body, v.JobFinished):
            return self._finish(event, body, now)
        return AgentCore._order(self, event, now)

    def _finish(self, event: ev.FromCoordinator, body: v.JobFinished, now: float) -> list[ev.Command]:
        """The job is over, or never began.  Ranks that are in it still are not the coordinator's any more: it was started anew."""
        began = any(slot.record.epoch or slot.record.left_epoch for slot in self.slots.values())
        is_open = self.epoch is not None or self.opening is not None
        commands = self._abandon(ev.Abandoned(body.text), now) if is_open else []
        self._wait_again()
        commands += AgentCore._order(self, event, now)
        if not began:
            self.finished = None
        return commands

    def _say(self, text: str) -> list[ev.Command]:
        self.text = text
        return [ev.ToRank(connection, v.Waiting(text)) for connection in self.waiting]

    def _wait_again(self) -> None:
        """The job is over, or never began: whoever waits for its epoch waits for another one."""
        for rank, slot in self.slots.items():
            session = slot.session
            if session is not None and session.phase is Phase.WAITING and slot.hello is not None:
                del self.sessions[session.connection]
                self._wait(session.connection, slot.hello, rank)

    def _abandon(self, event: ev.Abandoned, now: float) -> list[ev.Command]:
        """Nobody coordinates the ranks any more: their epoch fails, those that wait go on waiting."""
        commands: list[ev.Command] = []
        if self.opening is not None:
            self.missed_epoch, self.opening = self.opening.number, None
            commands.append(ev.BoardClose())
        self._wait_again()
        self.slots.clear()
        if self.epoch is not None:
            self.orphaned = True
            commands += self.epoch.order(v.EndEpoch(v.Error(v.ErrorKind.LOST, event.reason)), now)
        return [*commands, *self._say(event.reason)]
