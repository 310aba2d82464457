"""The agent's handle on its net: connections to other hosts, plans that travel over them, and what was seen there."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from horovod.native._abi import NET_ALGORITHMS, NET_STAGES, CNetEvent, CNetInfo, CNetPeerInfo, CNetSpec, CNetTimes, lib
from horovod.native.arena import Arena
from horovod.native.board import Board
from horovod.native.errors import Status, check


class NetEventKind(IntEnum):
    """hvd_net_event_kind."""

    PEER_LOST = 1
    ABORT = 2
    WANTED = 3


class NetAlgorithm(IntEnum):
    """hvd_net_algorithm: how cooperative rounds travel."""

    BY_SIZE = 0
    DIRECT = 1
    DOUBLING = 2
    RING = 3


@dataclass(frozen=True, slots=True)
class NetSpec:
    """hvd_net_spec: ``eager_bytes`` must be the same on all hosts, and at least 512 KiB.

    ``algorithm`` is for tests and measurements, and the same on all hosts too: plans whose payload it can't carry take what fits.
    """

    n_hosts: int
    my_host: int
    lanes: int = 2
    eager_bytes: int = 8 << 20
    ping_ms: int = 1000
    silent_ms: int = 10000
    algorithm: NetAlgorithm = NetAlgorithm.BY_SIZE


@dataclass(frozen=True, slots=True)
class NetEvent:
    """hvd_net_event: PEER_LOST and ABORT name the host and why, WANTED the plan and the round."""

    kind: NetEventKind
    host: int
    plan_id: int
    round: int
    text: str


@dataclass(frozen=True, slots=True)
class NetInfo:
    """hvd_net_info: counters since the start."""

    rounds_direct: int
    rounds_doubling: int
    rounds_ring: int
    rounds_pull: int
    bytes_sent: int
    bytes_received: int
    frames_sent: int
    frames_received: int
    writes: int
    reads: int
    sleeps: int
    parked_bytes: int
    waiting_frames: int


@dataclass(frozen=True, slots=True)
class NetPeerInfo:
    """hvd_net_peer_info."""

    bytes_sent: int
    bytes_received: int
    tokens: int
    owed: int
    silent_ms: int
    retransmits: int
    lost: int


@dataclass(frozen=True, slots=True)
class NetTime:
    """How long a stage of an algorithm's rounds took: ``counts[b]`` took less than ``2 ** b * 1024`` ns, and not less than half.

    The last bucket takes the rest.  ``algorithm``: direct, doubling, ring or pull; ``stage``: wait, reduce, network or copy.
    """

    algorithm: str
    stage: str
    counts: Sequence[int]
    sum_ns: int


class Net:
    """One per agent and epoch; ``arena`` is the agent's own, ``arena_fds`` those of the local ranks."""

    def __init__(self, board: Board, arena_fds: Sequence[int], arena: Arena, spec: NetSpec) -> None:
        descriptors = (ctypes.c_int * len(arena_fds))(*arena_fds)
        native = CNetSpec(
            spec.n_hosts, spec.my_host, spec.lanes, spec.eager_bytes, spec.ping_ms, spec.silent_ms, spec.algorithm
        )
        pointer = ctypes.c_void_p()
        status = lib.hvd_net_create(
            board.pointer, descriptors, len(arena_fds), arena.pointer, ctypes.byref(native), ctypes.byref(pointer)
        )
        check(status, f"Making the net of host {spec.my_host}")
        self.pointer = int(pointer.value or 0)
        self.spec = spec
        self._board, self._arena = board, arena  # they must outlive the net

    def add_peer(self, host: int, lane: int, fd: int) -> None:
        """Takes the descriptor of a connected stream socket, also when this raises."""
        check(lib.hvd_net_add_peer(self.pointer, host, lane, fd), f"Adding lane {lane} to host {host}")

    def start(self) -> None:
        """Starts the thread; all lanes of all peers must be there."""
        check(lib.hvd_net_start(self.pointer), "Starting the net")

    def plan_add(self, offset: int, ring_hosts: Sequence[int], member_hosts: Sequence[int] = ()) -> None:
        """Makes a plan known, before any local rank is told of it; ``member_hosts`` for pull plans."""
        ring = (ctypes.c_uint32 * len(ring_hosts))(*ring_hosts)
        members = (ctypes.c_uint32 * len(member_hosts))(*member_hosts)
        status = lib.hvd_net_plan_add(self.pointer, offset, ring, len(ring_hosts), members, len(member_hosts))
        check(status, "Adding a plan to the net")

    def plan_remove(self, plan_id: int) -> bool:
        """Forgets a plan, before the board does; False while the net works on a round of it."""
        status = check(lib.hvd_net_plan_remove(self.pointer, plan_id), f"Removing plan {plan_id} from the net")
        return status == Status.OK

    def plan_limit(self, plan_id: int, limit: int) -> None:
        """Rounds from ``limit`` on never finish: those that are open here are withdrawn, so that operations can leave them."""
        check(lib.hvd_net_plan_limit(self.pointer, plan_id, limit), f"Limiting plan {plan_id} in the net")

    def events(self, capacity: int = 64) -> list[NetEvent]:
        """Takes the oldest events."""
        found, count = (CNetEvent * capacity)(), ctypes.c_uint32()
        check(lib.hvd_net_events(self.pointer, found, capacity, ctypes.byref(count)), "Taking events of the net")
        return [
            NetEvent(NetEventKind(e.kind), e.host, e.plan_id, e.round, e.text.decode(errors="replace"))
            for e in found[: count.value]
        ]

    @property
    def event_fd(self) -> int:
        """Readable while events wait; stays the net's."""
        return int(lib.hvd_net_event_fd(self.pointer))

    def abort(self, text: str) -> None:
        """Tells all peers and drops all rounds, for good."""
        check(lib.hvd_net_abort(self.pointer, text.encode()[:990].replace(b"\0", b" ")), "Aborting the net")

    def stat(self) -> NetInfo | None:
        """Counters; None when the thread is too busy to answer."""
        info = CNetInfo()
        if check(lib.hvd_net_stat(self.pointer, ctypes.byref(info)), "Looking at the net") != Status.OK:
            return None
        return NetInfo(*(getattr(info, field[0]) for field in CNetInfo._fields_))

    def peer_stat(self, host: int) -> NetPeerInfo | None:
        """What is known of one peer; None when the thread is too busy to answer."""
        info = CNetPeerInfo()
        status = check(lib.hvd_net_peer_stat(self.pointer, host, ctypes.byref(info)), f"Looking at host {host}")
        if status != Status.OK:
            return None
        return NetPeerInfo(*(getattr(info, field[0]) for field in CNetPeerInfo._fields_))

    def times(self) -> list[NetTime]:
        """How long the stages of finished rounds took; nothing when the thread is too busy to answer."""
        found = CNetTimes()
        if check(lib.hvd_net_time_stat(self.pointer, ctypes.byref(found)), "Looking at the net") != Status.OK:
            return []
        return [
            NetTime(algorithm, stage, tuple(found.counts[a][s]), found.sum_ns[a][s])
            for a, algorithm in enumerate(NET_ALGORITHMS)
            for s, stage in enumerate(NET_STAGES)
        ]

    def close(self) -> None:
        """Says goodbye, stops the threads, closes the sockets; takes at most about a second."""
        pointer, self.pointer = self.pointer, 0
        if pointer:
            lib.hvd_net_close(pointer)
