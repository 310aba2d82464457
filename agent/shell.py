"""The agent's outside: hands events to the core one at a time and carries out what it decides.

Everything runs in one loop.  An event that comes up while another is handled waits; outcomes of board commands are told
before anything else.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import secrets
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from horovod import native
from horovod.agent.board_view import BoardView
from horovod.agent.boards import BoardRoom, NoBoard
from horovod.agent.connections import Connection, WorkerServer
from horovod.agent.core import AgentCore, AgentInfo
from horovod.agent.core import events as ev
from horovod.agent.core import values as v
from horovod.agent.core.guests import GuestCore
from horovod.agent.core.tally import Tally
from horovod.agent.doors import Door
from horovod.agent.limits import shortage
from horovod.agent.members import Members
from horovod.agent.planes.links import LinkFailed
from horovod.agent.planes.opening import PlaneOpening, PlaneOptions
from horovod.agent.ranks import RankOptions, RankTable
from horovod.proto import control_pb2, worker_pb2
from horovod.proto.codec import by_field, unwrap, wrap

__all__ = ["AgentOptions", "AgentOutputs", "AgentShell", "PlaneOptions"]

log = logging.getLogger("horovod.agent")

_TICK_S = 0.5
_HELLO_DESCRIPTORS = 2
_WORKER = by_field(*v.WORKER_BODIES)
_ORDERS = by_field(*v.ORDER_BODIES)


@dataclass(frozen=True, slots=True)
class AgentOptions:
    """What an agent is told when it starts; ``helpers`` is the setting HVD_HELPERS, ``allowed_uids`` are other users.

    ``door`` is where processes come in that others have started; without one, the agent starts its ranks itself.
    """

    name: str
    host: str
    slots: int
    ranks: RankOptions = field(default_factory=RankOptions)
    helpers: str = ""
    allowed_uids: frozenset[int] = frozenset()
    door: Door | None = None


@dataclass(frozen=True, slots=True)
class AgentOutputs:
    """Who listens to an agent: the coordinator, and whoever must know of an error inside the agent."""

    report: Callable[[control_pb2.AgentReport], None]
    broken: Callable[[BaseException], None]


class AgentShell:
    """Not thread-safe: it belongs to the running loop.  ``tally`` may be that of an earlier shell: its numbers go on."""

    def __init__(
        self,
        options: AgentOptions,
        outputs: AgentOutputs,
        plane: PlaneOptions | None = None,
        tally: Tally | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._outputs = outputs
        self._events: deque[ev.Event] = deque()
        self._busy = False
        self._server = WorkerServer(self, allowed_uids=options.allowed_uids, door=options.door)
        self._members = Members(self._process_died)
        self.tally = tally or Tally()
        self._boards = BoardRoom(self._ring, options.helpers, self.tally)
        self._rings = False
        self._ranks = RankTable(options.ranks, self._post, self.tally)
        self._plane = plane
        self._opening: asyncio.Task[None] | None = None
        info = AgentInfo(
            options.name,
            options.host,
            options.slots,
            self._server.address,
            secrets.token_hex(16),
        )
        self.core = (AgentCore if options.door is None else GuestCore)(info, tally=self.tally)
        self._timer: asyncio.TimerHandle | None = None

    @property
    def address(self) -> str:
        """Where ranks find this agent."""
        return self._server.address

    @property
    def board(self) -> BoardView:
        """The board, for who only looks."""
        return self._boards.view

    @property
    def output_backlog_bytes(self) -> int:
        """Output of ranks that was read and is not written yet."""
        return self._ranks.backlog_bytes

    def start(self, registered: bool = False) -> None:
        """First words to the coordinator, unless it knows this agent already; time begins."""
        if not registered:
            self._carry_out(self.core.start())
        self._tick()

    def order(self, message: control_pb2.Order) -> None:
        """A message of the coordinator."""
        self._post(ev.FromCoordinator(message.epoch, unwrap(message, _ORDERS)))

    def kill_ranks(self) -> None:
        """Ends every rank at once."""
        self._ranks.end_all(kill=True)

    def end_ranks(self) -> None:
        """Ends every rank, with the usual grace."""
        self._ranks.end_all(kill=False)

    def abandon(self, reason: str) -> None:
        """Of processes that others have started: their epoch fails for this reason, and they are left alone."""
        self._post(ev.Abandoned(reason))

    async def close(self, drain_s: float | None = None) -> None:
        """Waits for the ranks to be gone and their output to be written, then lets everything go."""
        await self._ranks.close(drain_s)
        if self._timer is not None:
            self._timer.cancel()
        self._stop_opening()
        self._server.close()
        self._members.close()
        self._boards.close()

    # ---- events

    def _tick(self) -> None:
        self._timer = self._loop.call_later(_TICK_S, self._tick)
        self._post(ev.Tick())

    def _ring(self) -> None:
        """From any thread: a bell that has not been heard yet is enough for all that happened before it is."""
        if self._rings:
            return
        self._rings = True
        try:
            self._loop.call_soon_threadsafe(self._hear_bell)
        except RuntimeError:
            log.debug("The loop has ended before a bell.")

    def _hear_bell(self) -> None:
        self._rings = False  # before the sweep: what it may miss rings anew
        self._post(ev.Bell())

    def _post(self, event: ev.Event) -> None:
        self._events.append(event)
        if self._busy:
            return
        self._busy = True
        try:
            while self._events:
                self._carry_out(self.core.handle(self._events.popleft(), time.monotonic()))
        except Exception as error:
            log.log(
                logging.DEBUG if shortage(error) else logging.ERROR,
                "The agent has met an error of its own.",
                exc_info=error,
            )
            self._outputs.broken(error)
        finally:
            self._busy = False

    def opened(self, connection: Connection) -> None:
        """A process has connected; it counts from its Hello on."""

    def received(self, connection: Connection, message: worker_pb2.WorkerMessage) -> None:
        """A process has sent a message."""
        try:
            body = unwrap(message, _WORKER)
        except (KeyError, ValueError) as error:
            self._close_connection(ev.CloseConnection(connection.id, f"it sent a message that makes no sense: {error}"))
            return
        if isinstance(body, v.Hello):
            reason = self._members.admit(
                connection.id, connection.take_descriptors(_HELLO_DESCRIPTORS), body.arena_bytes
            )
            if reason:
                self._server.seldom.warning("The Hello of process %d can't be used: %s.", connection.pid, reason)
                body = dataclasses.replace(body, descriptors=False)
        self._post(ev.FromRank(connection.id, body))

    def closed(self, connection: Connection, reason: str) -> None:
        """A connection is over."""
        self._members.forget(connection.id)
        self._post(ev.ConnectionClosed(connection.id, reason))

    def _process_died(self, connection: int) -> None:
        """The process is gone; who inherited its socket does not speak for it."""
        if connection in self._server.connections:
            self._server.connections[connection].close("the process is gone")

    # ---- commands

    def _carry_out(self, commands: list[ev.Command]) -> None:
        outcomes: deque[ev.Event] = deque()
        for command in commands:
            outcome = self._do(command)
            if outcome is not None:
                outcomes.append(outcome)
        for outcome in outcomes:
            self._carry_out(self.core.handle(outcome, time.monotonic()))

    def _do(self, command: ev.Command) -> ev.Event | None:
        if isinstance(command, ev.ToRank):
            self._to_rank(command)
        elif isinstance(command, ev.ToCoordinator):
            message = control_pb2.AgentReport(epoch=command.epoch)
            wrap(message, command.body)
            self._outputs.report(message)
        elif isinstance(command, ev.StartProcess):
            self._ranks.start(command)
        elif isinstance(command, ev.EndProcess):
            self._ranks.end(command.rank, command.kill)
        elif isinstance(command, ev.EndGuest):
            if reason := self._members.kill(command.connection):
                self._server.seldom.warning("A rank holds up the others: %s.", reason)
        elif isinstance(command, ev.Show):
            self._ranks.say(command.text)
        elif isinstance(command, ev.CloseConnection):
            self._close_connection(command)
        elif isinstance(command, ev.SweepSoon):
            self._ring()
        elif not isinstance(command, ev.JobOver):
            return self._on_board(command)
        return None

    def _to_rank(self, command: ev.ToRank) -> None:
        connection = self._server.connections.get(command.connection)
        if connection is None:
            return  # its end is an event that waits
        message = worker_pb2.AgentMessage()
        wrap(message, command.body)
        try:
            connection.send(message, self._boards.descriptors if isinstance(command.body, v.Welcome) else ())
        except NoBoard:
            connection.close("there is no board")

    def _close_connection(self, command: ev.CloseConnection) -> None:
        connection = self._server.connections.get(command.connection)
        if connection is not None:
            self._server.seldom.warning("Ended the connection of process %d: %s.", connection.pid, command.reason)
            connection.close(command.reason)

    def _on_board(self, command: ev.Command) -> ev.Event | None:
        try:
            return self._board_command(command)
        except NoBoard:
            return None  # the error that led to this was told
        except native.NativeError as error:
            # Shared memory is exhausted or damaged: nothing on this board can be relied on any more.
            self._ranks.say(f"The shared memory of host {self.core.info.host} can't be used any more: {error}.")
            self._ranks.end_all(kill=False)
            return None

    def _board_command(self, command: ev.Command) -> ev.Event | None:
        boards = self._boards
        if isinstance(command, ev.PlanAdd):
            return boards.plan_add(command)
        if isinstance(command, ev.PlanLimit):
            return boards.plan_limit(command)
        if isinstance(command, ev.PlanRemove):
            return boards.plan_remove(command)
        if isinstance(command, ev.Sweep):
            return boards.sweep(command)
        if isinstance(command, ev.Look):
            return boards.look()
        self._board_life(command)
        return None

    def _board_life(self, command: ev.Command) -> None:
        boards = self._boards
        if isinstance(command, ev.BoardCreate):
            found = [self._members.member(connection) for connection in command.connections]
            boards.create([member for member in found if member is not None], command.shared)
        elif isinstance(command, ev.PlaneOpen):
            self._opening = self._loop.create_task(self._open_plane(command))
        elif isinstance(command, ev.BoardFail):
            boards.fail(command)
        elif isinstance(command, ev.RankDead):
            boards.rank_dead(command)
        elif isinstance(command, ev.WatchArrivals):
            boards.watch(command.on)
        elif isinstance(command, ev.BoardClose):
            self._stop_opening()
            boards.close()

    # ---- other hosts

    async def _open_plane(self, command: ev.PlaneOpen) -> None:
        plane = self._plane
        if plane is None:
            self._post(ev.PlaneLost(command.epoch, command.place, "this agent has no data plane to other hosts"))
            return
        opening = PlaneOpening(plane, command)
        try:
            await opening.connect()
            self._boards.connect(lambda board, fds, arena: opening.plane(board, fds, arena, self._post))
        except LinkFailed as failed:
            self._post(ev.PlaneLost(command.epoch, failed.place, failed.text))
        except native.NativeError as error:
            self._post(ev.PlaneLost(command.epoch, command.place, str(error)))
        else:
            self._post(ev.PlaneReady(command.epoch))
        finally:
            opening.abandon()

    def _stop_opening(self) -> None:
        if self._opening is not None:
            self._opening.cancel()
            self._opening = None
