"""Places for ranks on this host, and the connections that speak for them."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from horovod.agent.core import values as v
from horovod.agent.core.events import ProcessEnded
from horovod.agent.core.presentation import RankPresented

__all__ = ["Phase", "Record", "Session", "Slot", "ending", "rank_hello"]


class Phase(Enum):
    """Of a session."""

    WAITING = "waiting"
    READY = "ready"
    LEFT = "left"


@dataclass(slots=True)
class Record:
    """What the coordinator knows of a rank, and another one would have to be told.

    ``epoch``: the one it is in, from the order to start it until it has left; ``hello``: it is in it, or waits for one.
    """

    hello: v.RankHello | None = None
    epoch: int = 0
    left_epoch: int = 0
    left: v.RankLeft | None = None
    left_at: float = 0.0
    exited: v.RankExited | None = None
    exited_at: float = 0.0

    def leave(self, left: v.RankLeft, now: float) -> None:
        """The rank is out of its epoch."""
        self.left, self.left_at, self.left_epoch = left, now, self.epoch
        self.epoch = 0
        if self.hello is not None and self.hello.generation <= left.generation:
            self.hello = None

    def presented(self, rank: int, pid: int, now: float) -> RankPresented:
        """All of it."""
        hello = () if self.hello is None else (self.hello,)
        left = () if self.left is None else (self.left,)
        exited = () if self.exited is None else (self.exited,)
        ago = (now - self.left_at if left else 0.0, now - self.exited_at if exited else 0.0)
        return RankPresented(rank, pid, self.epoch, hello, self.left_epoch, left, ago[0], exited, ago[1])


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
    record: Record = field(default_factory=Record)
    hello: v.Hello | None = None  # of a process that others have started


def ending(event: ProcessEnded) -> str:
    """What the end of a process says about why it left; empty when nothing was wrong."""
    if event.signal:
        return f"was killed by signal {event.signal}"
    return f"exited with code {event.code}" if event.code else ""


def rank_hello(rank: int, hello: v.Hello) -> v.RankHello:
    """What the coordinator hears of a Hello."""
    sets, dynamic = hello.process_sets, hello.dynamic_process_sets
    return v.RankHello(rank, hello.generation, hello.pid, sets, dynamic, hello.extended_join)
