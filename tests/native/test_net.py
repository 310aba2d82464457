"""horovod.native.Net: two hosts in one process, joined by socket pairs, one rank each."""

from __future__ import annotations

import ctypes
import os
import select
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from horovod import native

LIB = native.lib
WAIT_MS = 10_000


@dataclass
class Host:
    """What an agent and its one rank hold."""

    index: int
    board: native.Board = field(default_factory=lambda: native.Board(1, 1000))
    rank_arena: native.Arena = field(default_factory=lambda: native.Arena(1 << 26))
    arena: native.Arena = field(default_factory=lambda: native.Arena(1 << 26))

    def __post_init__(self) -> None:
        spec = native.NetSpec(2, self.index, lanes=1, ping_ms=50, silent_ms=WAIT_MS)
        self.net = native.Net(self.board, [self.rank_arena.fd], self.arena, spec)
        descriptors = (ctypes.c_int * 2)(self.rank_arena.fd, self.arena.fd)
        pointer = ctypes.c_void_p()
        status = LIB.hvd_engine_open(self.board.fd, self.rank_arena.pointer, 0, descriptors, 2, ctypes.byref(pointer))
        native.check(status, "Opening")
        self.engine = pointer.value

    def plan(self, plan_id: int, kind: native.PlanKind, nbytes: int) -> int:
        """Makes the plan of both hosts' ranks here; its offset."""
        members = (0,) if kind == native.PlanKind.COOPERATIVE else ((0, 1) if self.index == 0 else (1, 0))
        spec = native.PlanSpec(
            plan_id, kind, native.DType.INT32, native.ReduceOp.SUM, 1, 1, nbytes, 2, members, native.PlanFlag.REMOTE
        )
        offset = self.board.plan_add(spec)
        self.net.plan_add(offset, (0, 1), (0, 1) if kind == native.PlanKind.PULL else ())
        return offset

    def events(self) -> list[native.NetEvent]:
        """Waits for events and takes them."""
        readable, _, _ = select.select([self.net.event_fd], [], [], WAIT_MS / 1000)
        assert readable
        return self.net.events()

    def close(self) -> None:
        LIB.hvd_engine_close(self.engine)
        self.net.close()
        self.board.close()
        os.close(self.board.fd)
        self.rank_arena.close()
        self.arena.close()


@pytest.fixture
def hosts() -> Iterator[tuple[Host, Host]]:
    pair = Host(0), Host(1)
    for host, end in zip(pair, socket.socketpair(), strict=True):
        host.net.add_peer(1 - host.index, 0, end.detach())
        host.net.start()
    yield pair
    for host in pair:
        host.close()


def test_allreduce(hosts: tuple[Host, Host]) -> None:
    ops = []
    data = [(ctypes.c_int32 * 3)(1, 2, 3), (ctypes.c_int32 * 3)(10, 20, 30)]
    for host, values in zip(hosts, data, strict=True):
        offset, op, address = host.plan(5, native.PlanKind.COOPERATIVE, 12), ctypes.c_int64(), ctypes.addressof(values)
        status = LIB.hvd_op_reduce_bound(host.engine, offset, address, address, 12, 0, 0, ctypes.byref(op))
        assert status == native.Status.OK
        ops.append(op.value)
    for host, op_number in zip(hosts, ops, strict=True):
        assert LIB.hvd_op_wait(host.engine, op_number, WAIT_MS) == native.Status.OK
    assert [list(values) for values in data] == [[11, 22, 33]] * 2
    info = hosts[0].net.stat()
    assert info is not None
    assert info.rounds_direct == 1
    times = {(time.algorithm, time.stage): time for time in hosts[0].net.times()}
    assert {sum(times["direct", stage].counts) for stage in ("wait", "network")} == {1}
    assert (
        sum(times["direct", "copy"].counts) == sum(times["ring", "network"].counts) == 0
    )  # no other member, another way
    assert 0 < times["direct", "network"].sum_ns < 60e9
    for host in hosts:
        assert host.net.plan_remove(5)
        with pytest.raises(native.InvalidArgument):
            host.net.plan_remove(5)


def test_pull(hosts: tuple[Host, Host]) -> None:
    ops = []
    for host in hosts:
        offset, op = host.plan(6, native.PlanKind.PULL, 0), ctypes.c_int64()
        word = ctypes.create_string_buffer(f"host{host.index}".encode(), 5)
        segment = native._abi.CSegment(ctypes.addressof(word), None, 5)
        meta = (ctypes.c_int64 * 1)(70 + host.index)
        status = LIB.hvd_op_pull(host.engine, ctypes.byref(segment), 1, meta, 1, None, 0, 0, ctypes.byref(op))
        assert status == native.Status.OK
        assert LIB.hvd_op_bind(host.engine, op.value, offset, None) == native.Status.OK
        ops.append(op.value)
    for host, op_number in zip(hosts, ops, strict=True):
        assert LIB.hvd_op_wait(host.engine, op_number, WAIT_MS) == native.Status.OK
        other, numbers = 1 - host.index, (ctypes.c_int64 * 1)()
        out = ctypes.create_string_buffer(5)
        copy = native._abi.CCopy(other, 0, ctypes.addressof(out), 5)
        assert LIB.hvd_op_pull_copy(host.engine, op_number, ctypes.byref(copy), 1) == native.Status.OK
        assert LIB.hvd_op_meta(host.engine, op_number, other, numbers, 1, None, None) == native.Status.OK
        assert (out.raw, numbers[0]) == (f"host{other}".encode(), 70 + other)
        assert LIB.hvd_op_done(host.engine, op_number) == native.Status.OK


def test_abort_is_told_and_a_goodbye_is_no_loss(hosts: tuple[Host, Host]) -> None:
    hosts[0].net.abort("rank 3 was killed")
    event = native.NetEvent(native.NetEventKind.ABORT, 0, 0, 0, "rank 3 was killed")
    assert hosts[1].events() == [event]
    hosts[0].net.close()
    assert hosts[1].net.events() == []


def test_a_lost_peer() -> None:
    host, (end, other) = Host(0), socket.socketpair()
    host.net.add_peer(1, 0, end.detach())
    with pytest.raises(native.InvalidArgument):
        host.net.add_peer(0, 0, os.dup(1))
    host.net.start()
    other.close()
    assert [(e.kind, e.host) for e in host.events()] == [(native.NetEventKind.PEER_LOST, 1)]
    host.close()
