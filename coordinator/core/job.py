"""One job: where its ranks live, how far each has come, and what failed first.

Exit code 0 only when every rank exited with 0 and owed nobody anything; otherwise the code of the first
failure.  A rank whose shutdown ended the epoch and that then fails is the first failure, although others, who
got an error from that, may be gone before it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from horovod.coordinator.core.events import RankExited, RankHello, RankPresented
from horovod.coordinator.core.values import RankPlace


class RankPhase(Enum):
    """See TRANSITIONS."""

    STARTING = "starting"
    RUNNING = "running"
    WAITING = "waiting"
    READY = "ready"
    LEFT = "left"
    GONE = "gone"


class RankCause(Enum):
    """What moves a rank on."""

    STARTED = "RankStarted"
    HELLO = "RankHello"
    EPOCH_START = "EpochStart"
    REJECTED = "RankRejected"
    LEFT = "RankLeft"
    EXITED = "RankExited"


TRANSITIONS: dict[RankPhase, dict[RankCause, RankPhase]] = {
    RankPhase.STARTING: {
        RankCause.STARTED: RankPhase.RUNNING,
        RankCause.HELLO: RankPhase.WAITING,
        RankCause.EXITED: RankPhase.GONE,
    },
    RankPhase.RUNNING: {RankCause.HELLO: RankPhase.WAITING, RankCause.EXITED: RankPhase.GONE},
    RankPhase.WAITING: {
        RankCause.EPOCH_START: RankPhase.READY,
        RankCause.REJECTED: RankPhase.LEFT,
        RankCause.EXITED: RankPhase.GONE,
    },
    RankPhase.READY: {RankCause.LEFT: RankPhase.LEFT, RankCause.EXITED: RankPhase.GONE},
    RankPhase.LEFT: {RankCause.HELLO: RankPhase.WAITING, RankCause.EXITED: RankPhase.GONE},
    RankPhase.GONE: {},
}


@dataclass(frozen=True, slots=True)
class Failure:
    """What a person is shown last."""

    rank: int
    host: str
    pid: int
    code: int
    signal: int
    text: str
    last_lines: str = ""


@dataclass(slots=True)
class RankRecord:
    """One rank of the job."""

    place: RankPlace
    phase: RankPhase = RankPhase.STARTING
    pid: int = 0
    generation: int = 0
    hello: RankHello | None = None
    code: int = 0
    phases: Counter[RankPhase] = field(default_factory=Counter, repr=False)  # of all ranks of the job

    def restore(self, fact: RankPresented | None, epoch: int) -> None:
        """As an agent knows it: where it was before it left the epoch or ended, which is told as events afterwards."""
        if fact is None:
            return
        self.pid = fact.pid
        hello = fact.hello[0] if fact.hello else None
        if epoch:
            self.hello = hello or RankHello(fact.rank, 0)
            self.generation = fact.left[0].generation if fact.left_epoch == epoch else self.hello.generation
            self.become(RankPhase.READY)
        elif hello is not None:
            self.hello, self.generation = hello, hello.generation
            self.become(RankPhase.WAITING)
        elif fact.left:
            self.generation = fact.left[0].generation
            self.become(RankPhase.LEFT)
        elif fact.pid:
            self.become(RankPhase.RUNNING)

    def become(self, phase: RankPhase) -> None:
        """Whatever the table says."""
        self.phases[self.phase] -= 1
        self.phase = phase
        self.phases[phase] += 1

    def move(self, cause: RankCause) -> bool:
        """Follows the table; False, and nothing changes, when the table has no such step."""
        after = TRANSITIONS[self.phase].get(cause)
        if after is None:
            return False
        self.phases[self.phase] -= 1
        self.phases[after] += 1
        self.phase = after
        return True


@dataclass(slots=True)
class Job:
    """All ranks of a job; ``culprit`` is the rank whose shutdown ended the latest epoch, -1 while there is none.

    ``blamed`` is a host that others could not reach: if ranks fail, then because of that.
    """

    size: int
    command: tuple[str, ...]
    environment: Mapping[str, str]
    directory: str
    ranks: list[RankRecord]
    failure: Failure | None = None
    cancelled: tuple[int, str] | None = None
    stopping: bool = False
    culprit: int = -1
    blamed: Failure | None = None
    stop_at: float | None = None
    first_hello_at: float | None = None
    start_warned_at: float = 0.0
    number: int = 0
    id: str = ""  # the launcher's own
    started: int = 0  # incarnation of the coordinator that started it
    launcher: str = ""
    attached: bool = False  # its processes were started by others
    guests: tuple[int, ...] = ()  # which ones, by rank
    places: tuple[RankPlace, ...] = field(init=False)  # by rank
    agents: dict[str, list[int]] = field(init=False)  # its ranks by agent
    phases: Counter[RankPhase] = field(init=False)  # how many ranks are in each

    def __post_init__(self) -> None:
        self.places = tuple(record.place for record in self.ranks)
        self.phases = Counter(record.phase for record in self.ranks)
        self.agents = {}
        for record in self.ranks:
            record.phases = self.phases
            self.agents.setdefault(record.place.agent, []).append(record.place.rank)

    @property
    def title(self) -> str:
        """What runs, for messages."""
        return "processes that others have started" if self.attached else " ".join(self.command)

    @property
    def extended_join(self) -> bool:
        """Whether its ranks have HOROVOD_JOIN_MODE=extended; those that form an epoch have the same."""
        return any(record.hello is not None and record.hello.extended_join for record in self.ranks)

    @property
    def is_over(self) -> bool:
        """Every rank is gone."""
        return self.phases[RankPhase.GONE] == self.size

    def waiting(self) -> list[RankRecord]:
        """Ranks inside init."""
        return [record for record in self.ranks if record.phase is RankPhase.WAITING]

    def absent(self) -> list[RankRecord]:
        """Ranks that others inside init wait for."""
        return [record for record in self.ranks if record.phase is not RankPhase.WAITING]

    def start_text(self, waited_s: float) -> str:
        """Who is missing while others wait inside init."""
        absent = ", ".join(f"rank {r.place.rank} on host {r.place.host} ({r.phase.value})" for r in self.absent())
        called = self.phases[RankPhase.WAITING]
        return f"{called} of {self.size} ranks have called hvd.init(); missing for {waited_s:.0f} s: {absent}."

    def blame(self, rank: int, text: str) -> None:
        """The host of this rank can't be reached, which is no failure yet: ranks may survive it."""
        record = self.ranks[rank]
        self.blamed = Failure(rank, record.place.host, record.pid, 1, 0, text)

    def note_exit(self, event: RankExited, lost: str = "") -> Failure | None:
        """Books an exit; the failure when it was one.  ``lost`` says why nobody knows how it ended."""
        record = self.ranks[event.rank]
        was = record.phase
        record.move(RankCause.EXITED)
        record.code = event.code
        record.pid = event.pid or record.pid
        owed = was is RankPhase.READY or not event.left
        if event.code == 0 and not owed and not event.start_error:
            return None
        text = f"{_who(record)} can't be reached: {lost}." if lost else exit_text(record, event, owed)
        if self.attached and not lost:
            text = f"{_who(record)} is gone: its process has ended, or closed its connection, without hvd.shutdown()."
        return Failure(event.rank, record.place.host, record.pid, event.code or 1, event.signal, text, event.last_lines)

    def note_leave(self, record: RankRecord, reason: str) -> None:
        """A rank has left; of processes that others have started only this tells of an error."""
        if self.attached and reason and self.failure is None:
            place = record.place
            self.failure = Failure(place.rank, place.host, record.pid, 1, 0, f"{_who(record)} {reason}.")

    def result(self) -> tuple[int, str]:
        """Exit code and text of the job that is over."""
        if self.cancelled is not None:
            return self.cancelled
        return (self.failure.code, self.failure.text) if self.failure else (0, "")

    def check_invariants(self) -> None:
        """Raises AssertionError when the book is wrong."""
        assert [record.place.rank for record in self.ranks] == list(range(self.size))
        for record in self.ranks:
            assert (record.hello is not None) or record.phase not in (RankPhase.WAITING, RankPhase.READY)
        assert +self.phases == Counter(record.phase for record in self.ranks)


def exit_text(record: RankRecord, event: RankExited, owed: bool) -> str:
    """``Rank 1 (host a, pid 12) was killed by signal 9, possibly out of memory.``"""
    who = _who(record)
    if event.start_error:
        return f"Rank {event.rank} could not be started on host {record.place.host}: {event.start_error}."
    if event.signal == 9:
        return f"{who} was killed by signal 9, possibly out of memory."
    if event.signal:
        return f"{who} was killed by signal {event.signal}."
    if event.code == 0 and owed:
        return f"{who} exited with code 0 without hvd.shutdown() while the others still needed it."
    return f"{who} exited with code {event.code}."


def leave_text(record: RankRecord, reason: str) -> str:
    """What the others hear when a rank leaves; ``reason`` says what its process died of."""
    who = f"rank {record.place.rank} (host {record.place.host})"
    what = f"{who} {reason}. Its output says more." if reason else f"{who} called hvd.shutdown() or finished."
    hint = "" if reason else " If the ranks have different amounts of data, use hvd.join()."
    return (
        f"Horovod has been shut down: {what} Operations that all ranks had submitted have ended; this one was not, or was "
        f"submitted later.{hint}"
    )


def where(record: RankRecord) -> str:
    """``1 (host a, pid 12)``; nobody knows the process of a rank whose agent never told of it."""
    process = f", pid {record.pid}" if record.pid else ""
    return f"{record.place.rank} (host {record.place.host}{process})"


def _who(record: RankRecord) -> str:
    return f"Rank {where(record)}"


def place_ranks(size: int, slots: Mapping[str, tuple[str, int]]) -> list[RankPlace] | str:
    """Fills agents (name -> host, slots) in order; a reason when there are too few slots."""
    total = sum(count for _, count in slots.values())
    if size < 1:
        return f"A job needs at least one rank, not {size}."
    if total < size:
        hosts = ", ".join(f"{host} ({count})" for host, count in slots.values()) or "none"
        return f"{size} ranks were asked for, there are {total} slots: {hosts}. Ask for fewer ranks or add slots."
    chosen: list[tuple[str, str, int]] = []
    left = size
    for agent, (host, count) in slots.items():
        take = min(left, count)
        if take:
            chosen.append((agent, host, take))
        left -= take
    return _number(chosen)


def _number(chosen: list[tuple[str, str, int]]) -> list[RankPlace]:
    places: list[RankPlace] = []
    sharing = Counter(local for _, _, count in chosen for local in range(count))  # agents with such a local rank
    before: Counter[int] = Counter()
    for agent, host, count in chosen:
        for local in range(count):
            places.append(RankPlace(len(places), agent, host, local, count, before[local], sharing[local]))
            before[local] += 1
    return places
