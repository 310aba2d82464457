"""The coordinator inside another process: messages in, messages out, no network.  ``horovodrun`` uses it so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from horovod.coordinator.core import (
    Cast,
    Command,
    Config,
    Coordinator,
    Event,
    GatheringSeen,
    JobAdopted,
    JobEnded,
    JobFormed,
    Report,
    Send,
)
from horovod.coordinator.core import events as ev
from horovod.coordinator.wire import Reader
from horovod.proto import control_pb2
from horovod.proto.codec import by_field, unwrap, wrap

_BODIES = by_field(*ev.BODIES)


@dataclass(slots=True)
class Handlers:
    """Who gets what comes out: orders by agent name, the end of a job, jobs of an earlier coordinator, ranks that others start.

    Without ``cast``, orders for many agents come one by one.
    """

    order: Callable[[str, control_pb2.Order], None]
    job_ended: Callable[[JobEnded], None]
    cast: Callable[[Cast], None] | None = None
    job_formed: Callable[[JobFormed], None] = lambda formed: None
    gathering_seen: Callable[[str], None] = lambda text: None
    job_adopted: Callable[[JobAdopted], None] = lambda job: None


class EmbeddedCoordinator:
    """Not thread-safe: call it from one loop."""

    def __init__(self, config: Config, clock: Callable[[], float], handlers: Handlers) -> None:
        self.core = Coordinator(config)
        self._clock = clock
        self._handlers = handlers
        self._reader = Reader()

    def report(self, agent: str, message: control_pb2.AgentReport) -> None:
        """A message of an agent."""
        self.handle(self.read(agent, message))

    def read(self, agent: str, message: control_pb2.AgentReport) -> Event:
        """A message as an event; KeyError or ValueError when it makes no sense."""
        if message.HasField("announcements"):
            return Report(agent, message.epoch, self._reader.announcements(message.announcements))
        return Report(agent, message.epoch, unwrap(message, _BODIES))

    def handle(self, event: Event) -> None:
        """An event; its commands are carried out before this returns."""
        for command in self.core.handle(event, self._clock()):
            self._carry_out(command)

    def _carry_out(self, command: Command) -> None:
        if isinstance(command, Send):
            order = control_pb2.Order(epoch=command.epoch)
            wrap(order, command.body)
            self._handlers.order(command.agent, order)
        elif isinstance(command, JobAdopted):
            self._handlers.job_adopted(command)
        elif isinstance(command, JobEnded):
            self._handlers.job_ended(command)
        elif isinstance(command, JobFormed):
            self._handlers.job_formed(command)
        elif isinstance(command, GatheringSeen):
            self._handlers.gathering_seen(command.text)
        elif self._handlers.cast is not None:
            self._handlers.cast(command)
        else:
            for send in command.sends():
                self._carry_out(send)


__all__ = ["EmbeddedCoordinator", "Handlers"]
