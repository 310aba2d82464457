"""What a process keeps from one epoch to the next: its arena, its connection to the agent, its count of inits.

Fork safety lives here.  A forked child closes its copies of the socket and the memfd, its client turns inert, and its
exit sends nothing: the parent's membership is never touched.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from horovod import native
from horovod.common import basics
from horovod.common.config import Settings
from horovod.common.engine import Engine, NativeEngine
from horovod.common.exceptions import AgentLostError, HorovodInternalError, StartError
from horovod.common.patience import Patience
from horovod.common.session import Session, close_descriptors, connect
from horovod.proto import worker_pb2

if TYPE_CHECKING:
    from horovod.common.client import AgentClient

__all__ = ["Membership", "Process", "join_epoch"]

PROTOCOL = 1
_SMALLEST_ARENA_BYTES = 1 << 30
_LOOK_S = 0.2


@dataclass(frozen=True, slots=True)
class Membership:
    """An epoch that has formed, seen from this rank."""

    session: Session
    welcome: worker_pb2.Welcome
    generation: int


def _make_arena(nbytes: int) -> Any:
    """An arena of that much address space, or less where the system's limits don't allow it."""
    while True:
        try:
            return native.Arena(nbytes)
        except native.NativeError as error:
            if nbytes // 2 < _SMALLEST_ARENA_BYTES:
                raise StartError(
                    f"No shared memory: an arena of {nbytes} bytes of address space can't be made ({error}). Check the "
                    "limits of address space (ulimit -v) and of memory in this container."
                ) from error
            nbytes //= 2


class Process:
    """The one object of a process that outlives epochs."""

    def __init__(self, arena_bytes: int) -> None:
        self.arena: Any = _make_arena(arena_bytes)
        self.arena_range: tuple[int, int] = (self.arena.base, self.arena.base + self.arena.nbytes)
        self.session: Session | None = None
        self.address = ""
        self.generation = 0
        self.client: AgentClient | None = None
        self.rank = -1

    def connected(self, address: str, patience: Patience | None = None) -> Session:
        """The connection to this agent: the one that is there, or a new one; with patience also to one that starts late."""
        if self.session is not None and (self.session.lost or self.address != address):
            self.drop_session()
        if self.session is None:
            self.session, self.address = _connect(address, patience), address
        return self.session

    def drop_session(self) -> None:
        """The connection is of no use any more."""
        if self.session is not None:
            self.session.close()
            self.session = None

    def alloc(self, nbytes: int) -> Any:
        """Memory in the arena; MemoryError's cause is in the text."""
        return self.arena.buffer(nbytes)

    def trim(self, keep_bytes: int) -> None:
        """Gives free arena memory back to the system, but for that much."""
        self.arena.trim(keep_bytes)


def _connect(address: str, patience: Patience | None) -> Session:
    while True:
        try:
            return connect(address, by_hand=patience is not None)
        except StartError as error:
            is_late = isinstance(error.__cause__, (FileNotFoundError, ConnectionRefusedError))
            if patience is None or patience.is_over_for_agent or not is_late:
                raise
            patience.text = str(error)
            time.sleep(min(_LOOK_S, patience.look()))


_process: Process | None = None


def _this_process(settings: Settings) -> Process:
    global _process
    if _process is None:
        _process = Process(settings.arena_bytes)
    return _process


def _after_fork_in_child() -> None:
    global _process
    parents, _process = _process, None
    if parents is None:
        return
    if parents.session is not None:
        parents.session.abandon()
    close_descriptors([parents.arena.fd])
    if parents.client is None:
        return
    text = (
        f"This process was forked from rank {parents.rank} after hvd.init() and is not a rank itself: it may use "
        "tensors that it inherited, but it can't call Horovod. Call it in the parent, or start the child with spawn."
    )
    parents.client.disown(text)
    basics.disown(text)


os.register_at_fork(after_in_child=_after_fork_in_child)


def _hello(settings: Settings, process: Process, sets: Sequence[Sequence[int]]) -> worker_pb2.WorkerMessage:
    return worker_pb2.WorkerMessage(
        hello=worker_pb2.Hello(
            protocol=PROTOCOL,
            nonce=settings.nonce,
            rank=settings.rank,
            pid=os.getpid(),
            generation=process.generation + 1,
            arena_bytes=process.arena.nbytes,
            process_sets=[worker_pb2.ProcessSet(ranks=ranks) for ranks in sets],
            dynamic_process_sets=settings.dynamic_process_sets,
            size=settings.size if settings.is_guest else 0,
            extended_join=settings.extended_join,
        )
    )


def _await_welcome(session: Session, patience: Patience | None = None) -> tuple[worker_pb2.Welcome, list[int]]:
    """The epoch, when all ranks are there; StartError with the agent's words when this process is not wanted."""
    held: list[int] = []  # a Welcome's descriptors may come with what was said just before it
    try:
        while True:
            if patience is not None and not session.wait(patience.look()):
                continue
            incoming = session.receive()
            if incoming is None:
                continue
            message, descriptors = incoming
            held += descriptors
            kind = message.WhichOneof("body")
            if kind == "welcome":
                mine, held = held, []
                return message.welcome, mine
            if kind == "rejected":
                raise StartError(message.rejected.reason)
            if kind == "waiting" and patience is not None:
                patience.text = message.waiting.text
    finally:
        close_descriptors(held)


def _say_hello(
    settings: Settings, process: Process, sets: Sequence[Sequence[int]], patience: Patience | None = None
) -> Session:
    session = process.connected(settings.agent, patience)
    pidfd = os.pidfd_open(os.getpid())
    try:
        session.send(_hello(settings, process, sets), [pidfd, process.arena.fd])
    except AgentLostError:
        with contextlib.suppress(AgentLostError):
            _await_welcome(session)  # an agent that turns a process away says why, and does not listen
        raise
    finally:
        os.close(pidfd)
    return session


def join_epoch(settings: Settings, sets: Sequence[Sequence[int]]) -> tuple[Process, Membership, Engine]:
    """Says Hello and waits until the epoch has formed.  Leaves nothing half-done behind when it raises."""
    process = _this_process(settings)
    patience = Patience(settings.start_timeout_s) if settings.is_guest else None
    try:
        session = _say_hello(settings, process, sets, patience)
        welcome, descriptors = _await_welcome(session, patience)
        engine = _open_board(process, welcome, descriptors)
    except AgentLostError as error:
        process.drop_session()
        raise StartError(
            f"init failed: {error} Other ranks or the launcher may have failed; see their output."
        ) from error
    except BaseException:
        process.drop_session()
        raise
    process.generation += 1
    process.rank = welcome.rank
    return process, Membership(session, welcome, process.generation), engine


def _open_board(process: Process, welcome: worker_pb2.Welcome, descriptors: list[int]) -> Engine:
    try:
        # Where other hosts take part, the agent's arena comes last: data from them lie in it.
        expected = 1 + welcome.local_size + (1 if welcome.local_size < welcome.size else 0)
        if len(descriptors) != expected:
            raise StartError(
                f"The agent sent {len(descriptors)} descriptors where {expected} are expected: "
                "its version differs from this one."
            )
        return NativeEngine(descriptors[0], process.arena.pointer, welcome.local_rank, descriptors[1:])
    except HorovodInternalError as error:
        raise StartError(str(error)) from error
    finally:
        close_descriptors(descriptors)
