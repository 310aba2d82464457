"""The coordinator as a service: the core, the agents' sessions and the jobs, in one loop.

Events go to the core one at a time, in the order in which they come; what comes up while one is handled waits.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from horovod.coordinator.core import (
    AgentLost,
    Cast,
    Config,
    Event,
    GatheringOpened,
    JobAdopted,
    JobAwaited,
    JobCancelled,
    JobEnded,
    JobFormed,
    JobSubmitted,
    Tick,
)
from horovod.coordinator.core.job import Job
from horovod.coordinator.core.selfstart import SelfStart, launcher_id
from horovod.coordinator.core.sessions import SessionBook
from horovod.coordinator.embedded import EmbeddedCoordinator, Handlers
from horovod.coordinator.jobs import JobDesk
from horovod.coordinator.sessions import AgentStreams
from horovod.coordinator.wire import cast_items, order_item
from horovod.proto import control_pb2

__all__ = ["Service", "ServiceOptions"]

log = logging.getLogger("horovod.coordinator")

_TICK_S = 0.25
# Times the time-out for agents: so long those of a running job may take to find a coordinator that was started anew.
_PATIENCE = 1.5


@dataclass(frozen=True, slots=True)
class ServiceOptions:
    """``broken`` hears of an error of the coordinator itself: it can't go on then.

    ``self_started``: so many processes that others start are a job, whenever no other one runs; 0: none.
    """

    config: Config = field(default_factory=Config)
    peer_timeout_s: float = 10.0
    broken: Callable[[BaseException], None] = lambda error: None
    self_started: int = 0


class Service:
    """Not thread-safe: it belongs to the running loop."""

    def __init__(self, options: ServiceOptions) -> None:
        self._options = options
        self._loop = asyncio.get_running_loop()
        self._inbox: deque[Event] = deque()
        self._busy = False
        formed = (self._job_formed, self._gathering_seen)
        handlers = Handlers(self._order, self._job_ended, self._cast, *formed, self._job_adopted)
        self._embedded = EmbeddedCoordinator(options.config, time.monotonic, handlers)
        self.core = self._embedded.core
        # Higher than that of any coordinator before, on whatever host, without a disk: see also SessionBook.
        self.core.incarnation = time.time_ns() // 1_000_000
        self.core.patience_s = options.peer_timeout_s * _PATIENCE
        self.core.secret = secrets.token_bytes(32)
        self.core.selfstart = SelfStart(options.self_started, options.config)
        self._last_end: JobEnded | None = None
        self.desk = JobDesk(self, time.monotonic, options.config)
        book = SessionBook(self.core.incarnation, options.peer_timeout_s)
        self.agents = AgentStreams(book, self, time.monotonic)
        self._timer = self._loop.call_later(_TICK_S, self._tick)

    def close(self) -> None:
        """Lets the agents go."""
        self._timer.cancel()
        self.agents.close()

    def _tick(self) -> None:
        self._timer = self._loop.call_later(_TICK_S, self._tick)
        self.agents.tick()
        self._tell(Tick())
        self.desk.tick()

    # ---- the core

    def _tell(self, event: Event) -> None:
        self._inbox.append(event)
        if self._busy:
            return
        self._busy, waited = True, self.is_adopting
        try:
            while self._inbox:
                self._embedded.handle(self._inbox.popleft())
        except Exception as error:
            log.exception("The coordinator has met an error of its own.")
            self._options.broken(error)
        finally:
            self._busy = False
        if waited and not self.is_adopting:
            self.desk.settled()

    def _order(self, agent: str, order: control_pb2.Order) -> None:
        self.agents.send(agent, order_item(order))

    def _cast(self, cast: Cast) -> None:
        for agent, item in cast_items(cast):
            self.agents.send(agent, item)

    def _job_ended(self, end: JobEnded) -> None:
        self._last_end = end
        self.desk.ended(end)

    def _job_adopted(self, job: JobAdopted) -> None:
        log.warning("Job %d of an earlier coordinator goes on here.", job.job)
        self.desk.adopted(job)

    @property
    def is_adopting(self) -> bool:
        """Whether agents of an earlier coordinator are awaited: nothing is ordered before they are here, or given up."""
        return self.core.adoption is not None

    def knows_jobs(self, incarnation: int) -> bool:
        """Whether an agent with a session of this incarnation has told what it has of an earlier one."""
        return not self.is_adopting and incarnation in (0, self.core.incarnation)

    def await_job(self) -> None:
        """A launcher speaks of a job that is not known here."""
        self._tell(JobAwaited())

    def result(self, job: str) -> JobEnded | None:
        """How a job ended under an earlier coordinator, by its id."""
        known = self.core.results
        own = [end for name, end in known.items() if launcher_id(name) == job]  # of ranks that others have started
        return known.get(job) or (own[-1] if own and job else None)

    def _job_formed(self, formed: JobFormed) -> None:
        self.desk.formed(self.core.jobs, formed.places)

    def _gathering_seen(self, text: str) -> None:
        self.desk.seen(text)

    # ---- agents

    def came(self, register: control_pb2.Register) -> None:
        """An agent has a session."""
        log.info("Agent %s on host %s has come with %d slots.", register.agent, register.host, register.slots)
        self.core.incarnation = self.agents.incarnation
        self._tell(self._embedded.read(register.agent, control_pb2.AgentReport(register=register)))
        self._loop.call_soon(self.desk.advance)

    def reported(self, agent: str, report: control_pb2.AgentReport) -> None:
        """A message of an agent; KeyError or ValueError when it makes no sense."""
        event = self._embedded.read(agent, report)
        if report.WhichOneof("body") == "register":
            raise ValueError("a second registration")
        self._tell(event)

    def lost(self, agent: str, reason: str, leaving: bool) -> None:
        """An agent is gone."""
        log.warning("Agent %s is lost: %s.", agent, reason)
        self._tell(AgentLost(agent, reason))
        self.desk.lost(agent, leaving)

    # ---- jobs

    def submit(self, event: JobSubmitted) -> tuple[int, Job] | str:
        """Starts a job; the reason when it can't."""
        self._last_end = None
        self._tell(event)
        if self.core.job is None:
            return self._last_end.text if self._last_end is not None else "The coordinator could not start it."
        self.core.selfstart.held = True
        return self.core.jobs, self.core.job

    def gather(self, event: GatheringOpened) -> None:
        """Waits for ranks that others start."""
        self._tell(event)

    def release(self) -> None:
        """No launcher has the turn any more: processes that others have started may be a job."""
        self.core.selfstart.held = False

    def cancel(self, event: JobCancelled) -> None:
        """Ends the running job."""
        self._tell(event)

    def slots(self) -> int:
        """Of all agents."""
        return sum(agent.slots for agent in self.core.agents.values())

    def instance(self, agent: str) -> str:
        """The start of an agent that has the session."""
        return self.agents.instance(agent)
