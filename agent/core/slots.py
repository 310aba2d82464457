"""Places for ranks on this host, and the connections that speak for them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from horovod.agent.core import values as v
from horovod.agent.core.events import ProcessEnded

__all__ = ["Phase", "Session", "Slot", "ending"]


class Phase(Enum):
    """Of a session."""

    WAITING = "waiting"
    READY = "ready"
    LEFT = "left"


@dataclass(slots=True)
class Session:
    """A connection that speaks for a rank."""

    connection: int
    rank: int
    generation: int
    phase: Phase = Phase.WAITING


@dataclass(slots=True)
class Slot:
    """A rank of the job on this host; ``lost_at``: its session ended while the epoch needed it.

    ``farewell`` waits for the end of the process, which may say why the rank has left.
    """

    place: v.RankPlace
    nonce: str
    pid: int = 0
    running: bool = True
    session: Session | None = None
    lost_at: float | None = None
    owes: bool = False
    farewell: v.RankLeft | None = None
    farewell_until: float = 0.0
    hello: v.Hello | None = None  # of a process that others have started


def ending(event: ProcessEnded) -> str:
    """What the end of a process says about why it left; empty when nothing was wrong."""
    if event.signal:
        return f"was killed by signal {event.signal}"
    return f"exited with code {event.code}" if event.code else ""
