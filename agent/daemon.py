"""One host's agent as a service: one job after the other, nothing left of the last one.

Each job has an AgentShell of its own: socket, board, processes, output.  What outlives jobs is the session with the coordinator,
and the port at which agents of other hosts connect.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from horovod.agent.core.presentation import FinishedJob, Presented
from horovod.agent.core.tally import Tally
from horovod.agent.core.values import Host, RankPlace
from horovod.agent.doors import open_door
from horovod.agent.limits import shortage
from horovod.agent.lobby import Lobby
from horovod.agent.output import OutputOptions
from horovod.agent.planes import sockets
from horovod.agent.planes.gloo import GlooServer
from horovod.agent.planes.links import Links
from horovod.agent.planes.opening import PlaneOptions
from horovod.agent.planes.probe import measure
from horovod.agent.planes.tcp import TcpOptions
from horovod.agent.ranks import RankOptions
from horovod.agent.relay import Relay, RelayOptions
from horovod.agent.shell import AgentOptions, AgentOutputs, AgentShell
from horovod.agent.uplink import Uplink, UplinkOptions
from horovod.proto import control_pb2
from horovod.proto.codec import wrap
from horovod.proto.places import unpack
from horovod.proto.security import Address, Security

__all__ = ["Daemon", "DaemonOptions", "PlaneSettings"]

log = logging.getLogger("horovod.agent")

_DRAIN_S = 5.0
_GOODBYE_S = 2.0


@dataclass(frozen=True, slots=True)
class DaemonOptions:
    """``environment`` is the agent's own: ranks get from it what belongs to the host.

    ``socket`` is where processes come in that others have started, empty: none can.
    """

    coordinator: Address
    security: Security
    name: str
    host: str
    slots: int
    labels: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    grace_s: float = 5.0
    helpers: str = ""
    allowed_uids: frozenset[int] = frozenset()
    coordinator_timeout_s: float = 300.0
    socket: str = ""
    plane: PlaneSettings = field(default_factory=lambda: PlaneSettings())


@dataclass(frozen=True, slots=True)
class PlaneSettings:
    """Where the data plane listens: "" is every address; what is told to others is ``advertise``, else what the host has.

    ``name`` as in PLANES.  Gloo has connections of its own, so that its agents need one to each other only.
    """

    name: str = "tcp"
    listen: str = ""
    ports: range = range(1)
    advertise: str = ""
    interface: str = ""
    tcp: TcpOptions = field(default_factory=TcpOptions)
    open_s: float = 30.0


class _JobRun:
    """A job's part on this host, from StartRanks to the last byte of output."""

    def __init__(
        self,
        options: DaemonOptions,
        uplink: Uplink,
        start: control_pb2.Order,
        outputs: AgentOutputs,
        plane: PlaneOptions,
        tally: Tally,
    ) -> None:
        self.number = start.start_ranks.job
        self.abandoned = False
        whose = (options.name, uplink.instance, self.number, lambda: uplink.incarnation)
        self.relay = Relay(RelayOptions(options.coordinator, options.security, *whose))
        ranks = RankOptions(output=self.relay, grace_s=options.grace_s, host_environment=options.environment)
        self.shell = AgentShell(
            AgentOptions(options.name, options.host, options.slots, ranks, options.helpers, options.allowed_uids),
            outputs,
            plane,
            tally,
        )
        self.shell.start(registered=True)
        self.shell.order(start)

    @property
    def unconfirmed_bytes(self) -> int:
        """Output that the coordinator may not have."""
        return self.relay.unconfirmed_bytes

    def abandon(self) -> None:
        """Nobody waits for its results any more."""
        self.abandoned = True
        self.relay.abandon()
        self.shell.end_ranks()

    async def end(self, drain_s: float | None) -> None:
        """Ends the ranks, waits for them and for their output."""
        self.shell.end_ranks()
        await self.shell.close(drain_s)


class Daemon:
    """Not thread-safe: it belongs to the running loop."""

    def __init__(self, options: DaemonOptions) -> None:
        self._options = options
        self._orders: asyncio.Queue[control_pb2.Order | None] = asyncio.Queue()
        self._job: _JobRun | Lobby | None = None
        self._session = 0  # in which the job is reported
        self._last_job = ""
        self._finished: FinishedJob | None = None
        self._over: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._measuring: set[asyncio.Future[None]] = set()
        self._stopping = False
        self._lost = self._stopped = ""
        self.tally = Tally()
        self.problem = ""
        plane = options.plane
        self._links = Links(sockets.listen(plane.listen, plane.ports), plane.tcp.lanes, plane.open_s)
        self._gloo = GlooServer(options.environment) if plane.name == "gloo" else None
        if self._gloo is not None:
            self._gloo.start()
        self._plane = PlaneOptions(self._links, plane.tcp, self._gloo, plane.open_s)
        register = control_pb2.Register(
            agent=options.name,
            host=options.host,
            slots=options.slots,
            labels=dict(options.labels),
            plane=plane.name,
            addresses=_addresses(plane, options.coordinator, self._links.port),
        )
        timeout_s = options.coordinator_timeout_s
        self._uplink = Uplink(UplinkOptions(options.coordinator, options.security, register, timeout_s), self)
        self._lobby = self._open_lobby() if options.socket else None

    def _open_lobby(self) -> Lobby:
        options = self._options
        door = open_door(options.socket, bool(options.allowed_uids))
        agent = AgentOptions(
            options.name,
            options.host,
            options.slots,
            RankOptions(output=OutputOptions(speaker="hvd-agent")),
            helpers=options.helpers,
            allowed_uids=options.allowed_uids,
            door=door,
        )
        outputs = AgentOutputs(self._uplink.report, self.broken)
        return Lobby(AgentShell(agent, outputs, PlaneOptions(self._links, options.plane.tcp), self.tally), door.warning)

    @property
    def options(self) -> DaemonOptions:
        """What it was told when it started."""
        return self._options

    @property
    def uplink(self) -> Uplink:
        """The session with the coordinator."""
        return self._uplink

    @property
    def shell(self) -> AgentShell | None:
        """Of the job that has ranks here."""
        return self._job.shell if self._job is not None else None

    @property
    def lobby(self) -> Lobby | None:
        """Where processes come in that others have started."""
        return self._lobby

    def unconfirmed_bytes(self) -> dict[str, int]:
        """What was sent and not confirmed yet."""
        output = self._job.unconfirmed_bytes if self._job is not None else 0
        return {"reports": self._uplink.unconfirmed_bytes, "output": output}

    async def run(self) -> int:
        """Serves until ``stop``; the exit code, with ``problem`` when it is not 0."""
        server = asyncio.ensure_future(self._serve())
        self._uplink.start()
        try:
            return await self._over
        finally:
            server.cancel()
            measuring = list(self._measuring)
            for task in measuring:
                task.cancel()
            await asyncio.gather(server, *measuring, return_exceptions=True)
            if self.problem:
                await self._uplink.leave("it has met an error of its own", _GOODBYE_S)
            await self._end_job(_DRAIN_S)
            if self._lobby is not None:
                why = self._stopped or "it has met an error of its own"
                await self._lobby.close(f"The agent of this host, {self._options.name}, is gone: {why}.")
            await self._uplink.close()
            await self._links.close()
            if self._gloo is not None:
                self._gloo.close()

    def stop(self, reason: str) -> None:
        """Ends the ranks with grace and takes leave; called again, at once."""
        if self._stopping:
            if self._job is not None:
                self._job.shell.kill_ranks()
            return
        self._stopping, self._stopped = True, reason
        self._leaving = asyncio.ensure_future(self._leave(reason))

    async def _leave(self, reason: str) -> None:
        if self._job is not None:
            self._job.shell.end_ranks()
        await self._uplink.leave(reason, _GOODBYE_S)
        self._end(0)

    def _end(self, code: int, problem: str = "") -> None:
        if not self._over.done():
            self.problem = problem
            self._over.set_result(code)

    # ---- the coordinator's words

    def ordered(self, order: control_pb2.Order) -> None:
        """An order; they are carried out one after the other."""
        self._orders.put_nowait(order)

    def abandoned(self, reason: str) -> None:
        """The session is over, and with it what it ran."""
        if self._job is not None:
            log.warning("The ranks of job %d are ended: %s.", self._job.number, reason)
            self._job.abandon()
        self._lost = reason
        self._orders.put_nowait(None)

    def presented(self) -> control_pb2.AgentReport:
        """All that a coordinator must know that was started anew; what the last one said and was not done yet is forgotten."""
        ends = [order for order in _drained(self._orders) if order is None]
        for end in ends:
            self._orders.put_nowait(end)
        self._session = self._uplink.sessions
        report = control_pb2.AgentReport()
        wrap(report, self._presented())
        return report

    def _presented(self) -> Presented:
        job = self._job
        if job is None or job.abandoned:
            return Presented(self._last_job, finished=() if self._finished is None else (self._finished,))
        presented = job.shell.core.presented(time.monotonic())
        has_output = isinstance(job, _JobRun)
        finished = tuple(replace(item, has_output=has_output) for item in presented.finished)
        return replace(presented, last_job=self._last_job, finished=finished)

    def refused(self, text: str) -> None:
        """The coordinator does not want this agent."""
        self._end(2, text)

    def broken(self, error: BaseException) -> None:
        """An error of our own: nothing here can be relied on any more."""
        self._end(1, shortage(error) or f"The agent has met an error of its own: {error!r}. Please report this.")

    # ---- jobs

    async def _serve(self) -> None:
        while True:
            order = await self._orders.get()
            try:
                await self._carry_out(order)
            except Exception as error:
                log.exception("The agent has met an error of its own.")
                self.broken(error)

    async def _carry_out(self, order: control_pb2.Order | None) -> None:
        if order is None:
            await self._end_job(_DRAIN_S)
            if self._lobby is not None:
                self._lobby.lost(f"The coordinator can't be reached any more: {self._lost}.")
            return
        body = order.WhichOneof("body")
        if body == "start_ranks":
            await self._start_job(order)
        elif self._lobby is not None and body in self._lobby.ORDERS:
            self._lobby.shell.order(order)
        elif body == "measure_round_trips":
            task = asyncio.ensure_future(self._measure(order.measure_round_trips, self._uplink.sessions))
            self._measuring.add(task)
            task.add_done_callback(self._measuring.discard)
        elif self._job is not None:
            self._job.shell.order(order)
            if body == "job_finished":
                await self._end_job(None)

    async def _measure(self, order: control_pb2.MeasureRoundTrips, session: int) -> None:
        """Beside everything else: nobody waits for it."""
        found = await measure([Host(peer.agent, peer.host, tuple(peer.addresses)) for peer in order.peers])
        if self._uplink.sessions == session:
            items = [control_pb2.RoundTrip(agent=agent, seconds=seconds) for agent, seconds in found.items()]
            self._uplink.report(control_pb2.AgentReport(round_trips=control_pb2.RoundTrips(items=items)))

    async def _start_job(self, order: control_pb2.Order) -> None:
        session = self._uplink.sessions
        await self._end_job(0.0)
        if session != self._uplink.sessions:
            return  # the coordinator that wants it is gone
        if self._lobby is not None and order.start_ranks.guests:
            self._session, self._job, self._last_job = session, self._lobby, order.start_ranks.id
            self._lobby.start(order)
        elif not self._stopping:
            self._session, self._last_job = session, order.start_ranks.id
            places = unpack(RankPlace, order.start_ranks.places)
            count = sum(place.agent == self._options.name for place in places)
            log.info("Job %d starts with %d ranks here.", order.start_ranks.job, count)
            outputs = AgentOutputs(self._report, self.broken)
            self._job = _JobRun(self._options, self._uplink, order, outputs, self._plane, self.tally)

    def _report(self, message: control_pb2.AgentReport) -> None:
        """Of the job: what it still says when its session is over is for nobody."""
        if self._uplink.sessions == self._session and not (isinstance(self._job, _JobRun) and self._job.abandoned):
            self._uplink.report(message)

    async def _end_job(self, drain_s: float | None) -> None:
        job = self._job
        if job is not None:
            await job.end(drain_s)
            self._finished = job.shell.core.finished
            self._job = None  # not before: its output may have to be abandoned while it is awaited
            log.info("Job %d is over here.", job.number)


def _drained(orders: asyncio.Queue[control_pb2.Order | None]) -> Iterator[control_pb2.Order | None]:
    while not orders.empty():
        yield orders.get_nowait()


def _addresses(plane: PlaneSettings, coordinator: Address, port: int) -> tuple[str, ...]:
    """Where others may try to reach this agent, best first: where the coordinator sees it is where others probably do."""
    if plane.advertise:
        return (sockets.join_address(plane.advertise, port),)
    if plane.listen:
        return (sockets.join_address(plane.listen, port),)
    return sockets.advertised(port, sockets.source_address(coordinator.host, coordinator.port), plane.interface)
