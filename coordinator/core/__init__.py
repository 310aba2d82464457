"""Decisions of the coordinator, without clock, network or files: events in, commands out."""

from horovod.coordinator.core.commands import Cast, Command, GatheringSeen, JobAdopted, JobEnded, JobFormed, Send
from horovod.coordinator.core.config import Config
from horovod.coordinator.core.coordinator import Coordinator
from horovod.coordinator.core.events import (
    AgentLost,
    Event,
    GatheringOpened,
    JobAwaited,
    JobCancelled,
    JobSubmitted,
    Report,
    Tick,
)

__all__ = [
    "AgentLost",
    "Cast",
    "Command",
    "Config",
    "Coordinator",
    "Event",
    "GatheringOpened",
    "GatheringSeen",
    "JobAdopted",
    "JobAwaited",
    "JobCancelled",
    "JobEnded",
    "JobFormed",
    "JobSubmitted",
    "Report",
    "Send",
    "Tick",
]
