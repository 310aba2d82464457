"""The forwarder, on loopback addresses: it carries bytes unchanged, and misbehaves exactly when told to."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread

import pytest

from tests.cluster.harness import Forwarder, LoopbackCluster
from tests.cluster.sockets import LIMIT_S, connect, hears_nothing, listen, receive

pytestmark = [pytest.mark.usefixtures("no_leaks"), pytest.mark.timeout(60)]
DATA_SEGMENTS_IN = 152  # tcpi_data_segs_in in struct tcp_info
DATA = bytes(range(256)) * 8192  # 2 MiB


@pytest.fixture
def cluster() -> Iterator[LoopbackCluster]:
    with LoopbackCluster(2) as made:
        yield made


@contextmanager
def forwarded(cluster: LoopbackCluster) -> Iterator[tuple[Forwarder, socket.socket, socket.socket]]:
    """A forwarder and both ends of a connection through it."""
    a, b = cluster
    with listen(b, b.address) as listener:
        forwarder = a.forward((b.address, listener.getsockname()[1]))
        with connect(b, a.address, forwarder.port) as near:
            far, _ = listener.accept()
            with far:
                far.settimeout(LIMIT_S)
                yield forwarder, near, far


def exchange(near: socket.socket, far: socket.socket, data: bytes) -> None:
    """Both ways at once, ended by both ends; the bytes must be the same."""
    senders = [Thread(target=_send_and_end, args=(end, data)) for end in (near, far)]
    for sender in senders:
        sender.start()
    for end in (near, far):
        assert receive(end, len(data) + 1) == data
    for sender in senders:
        sender.join()


def _send_and_end(end: socket.socket, data: bytes) -> None:
    end.sendall(data)
    end.shutdown(socket.SHUT_WR)


def test_bytes_and_ends_pass_both_ways(cluster: LoopbackCluster) -> None:
    with forwarded(cluster) as (_, near, far):
        exchange(near, far, DATA)


def test_one_direction_may_end_before_the_other(cluster: LoopbackCluster) -> None:
    with forwarded(cluster) as (_, near, far):
        near.shutdown(socket.SHUT_WR)
        assert far.recv(1) == b""
        far.sendall(b"still here")
        assert receive(near, 10) == b"still here"


def test_a_delay_holds_both_ways_and_costs_no_throughput(cluster: LoopbackCluster) -> None:
    with forwarded(cluster) as (forwarder, near, far):
        forwarder.delay_s = 0.2
        start = time.perf_counter()
        near.sendall(b"there")
        assert receive(far, 5) == b"there"
        far.sendall(b"back")
        assert receive(near, 4) == b"back"
        assert time.perf_counter() - start >= 0.4
        start = time.perf_counter()
        exchange(near, far, DATA)
        # Were each of the pieces of at most 64 KiB delayed after the one before, it would be 6.4 s.
        assert time.perf_counter() - start < 0.2 * len(DATA) / (1 << 16)


def test_byte_by_byte_is_a_segment_for_each(cluster: LoopbackCluster) -> None:
    with forwarded(cluster) as (forwarder, near, far):
        forwarder.piece_bytes = 1
        near.sendall(DATA[:300])
        assert receive(far, 300) == DATA[:300]
        info = far.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, DATA_SEGMENTS_IN + 4)
        assert int.from_bytes(info[DATA_SEGMENTS_IN:], "little") >= 300
        forwarder.piece_bytes = 1 << 16
        exchange(near, far, DATA)


def test_a_stall_is_silent_and_loses_nothing(cluster: LoopbackCluster) -> None:
    with forwarded(cluster) as (forwarder, near, far):
        forwarder.stall()
        near.sendall(b"waits")
        far.shutdown(socket.SHUT_WR)
        assert hears_nothing(near, far)
        forwarder.resume()
        assert receive(far, 5) == b"waits"
        assert near.recv(1) == b""


def test_a_stall_hides_even_a_reset_and_takes_new_connections(cluster: LoopbackCluster) -> None:
    with forwarded(cluster) as (forwarder, near, far):
        forwarder.stall()
        end_with_reset(far)
        with connect(cluster[1], cluster[0].address, forwarder.port) as another:
            assert hears_nothing(near, another)
        forwarder.resume()
        with pytest.raises(ConnectionResetError):
            near.recv(1)


def end_with_reset(end: socket.socket) -> None:
    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    end.close()


def test_a_reset_reaches_both_sides_and_new_connections_are_served(cluster: LoopbackCluster) -> None:
    a, b = cluster
    with listen(b, b.address) as listener:
        forwarder = a.forward((b.address, listener.getsockname()[1]))
        for _ in range(2):
            with connect(b, a.address, forwarder.port) as near, listener.accept()[0] as far:
                far.settimeout(LIMIT_S)
                near.sendall(b"x")
                assert receive(far, 1) == b"x"
                forwarder.reset()
                for end in (near, far):
                    with pytest.raises(ConnectionResetError):
                        end.recv(1)
        assert forwarder.connections == 0


@pytest.mark.parametrize("which", ["near", "far"])
def test_a_reset_of_one_side_is_one_of_the_other(cluster: LoopbackCluster, which: str) -> None:
    with forwarded(cluster) as (_, near, far):
        resetting, other = (near, far) if which == "near" else (far, near)
        end_with_reset(resetting)
        with pytest.raises(ConnectionResetError):
            other.recv(1)


def test_a_target_that_refuses_is_a_reset(cluster: LoopbackCluster) -> None:
    a, b = cluster
    with listen(b, b.address) as listener:
        port = listener.getsockname()[1]
    forwarder = a.forward((b.address, port))
    forwarder.stall()  # or the reset might come before connect() has returned
    with connect(b, a.address, forwarder.port) as near:
        forwarder.resume()
        with pytest.raises(ConnectionResetError):
            near.recv(1)


def test_a_port_that_is_taken_is_an_error_of_the_maker(cluster: LoopbackCluster) -> None:
    a, _ = cluster
    with listen(a, a.address) as listener, pytest.raises(OSError, match="in use"):
        a.forward((a.address, 1), listener.getsockname()[1])


def test_closing_ends_connections_and_is_done_once(cluster: LoopbackCluster) -> None:
    with forwarded(cluster) as (forwarder, near, far):
        forwarder.stall()
        forwarder.close()
        forwarder.close()
        for end in (near, far):
            with pytest.raises(ConnectionResetError):
                end.recv(1)
        with pytest.raises(ConnectionRefusedError):
            connect(cluster[1], cluster[0].address, forwarder.port)
