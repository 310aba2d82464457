"""Frames, and the session over a real socket pair: whole, byte by byte, with descriptors, with garbage."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from types import SimpleNamespace
from typing import cast

import pytest
from horovod.common.config import read_settings
from horovod.common.exceptions import AgentLostError, StartError
from horovod.common.frames import MAX_FRAME_BYTES, FrameError, FrameReader, frame
from horovod.common.process import Process, _say_hello
from horovod.common.session import Session, connect
from horovod.proto import worker_pb2

Pair = tuple[Session, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    ours, agents = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    session = Session(ours)
    yield session, agents
    session.close()
    agents.close()


def words(text: str) -> bytes:
    return frame(worker_pb2.AgentMessage(warning=worker_pb2.Warning(text=text)).SerializeToString())


def test_frames_byte_by_byte() -> None:
    reader = FrameReader()
    stream = frame(b"one") + frame(b"") + frame(b"three")
    assert [payload for byte in stream for payload in reader.feed(bytes([byte]))] == [b"one", b"", b"three"]


def test_a_length_above_the_limit_is_refused_before_anything_is_kept() -> None:
    with pytest.raises(FrameError, match="limit"):
        FrameReader().feed(struct.pack("<I", 2 << 30))
    with pytest.raises(FrameError, match="limit"):
        frame(bytes(MAX_FRAME_BYTES + 1))


def test_messages_arrive_in_order(pair: Pair) -> None:
    session, agent = pair
    agent.sendall(words("a") + words("b")[:3])
    agent.sendall(words("b")[3:])
    texts = [incoming[0].warning.text for incoming in (session.receive(), session.receive()) if incoming]
    assert texts == ["a", "b"]


def test_descriptors_travel_both_ways(pair: Pair) -> None:
    session, agent = pair
    read_end, write_end = os.pipe()
    session.send(worker_pb2.WorkerMessage(hello=worker_pb2.Hello(rank=3)), [write_end])
    data, descriptors, _, _ = socket.recv_fds(agent, 1024, 4)
    assert worker_pb2.WorkerMessage.FromString(data[4:]).hello.rank == 3
    os.write(descriptors[0], b"x")
    assert os.read(read_end, 1) == b"x"
    socket.send_fds(agent, [words("fds")], [read_end])
    incoming = session.receive()
    assert incoming is not None
    assert os.get_inheritable(incoming[1][0]) is False
    for descriptor in (read_end, write_end, *descriptors, *incoming[1]):
        os.close(descriptor)


@pytest.mark.parametrize("garbage", [struct.pack("<I", 2 << 30), b"\xff" * 64, frame(b"\xff\xff\xff"), frame(b"")])
def test_garbage_from_the_agent_is_a_loss_with_a_reason(pair: Pair, garbage: bytes) -> None:
    session, agent = pair
    agent.sendall(garbage)
    with pytest.raises(AgentLostError, match="sent something that is no message"):
        session.receive()
    assert session.lost


def test_end_of_the_connection_is_a_loss(pair: Pair) -> None:
    session, agent = pair
    agent.close()
    with pytest.raises(AgentLostError, match="closed the connection"):
        session.receive()
    with pytest.raises(AgentLostError):
        session.send(worker_pb2.WorkerMessage(leave=worker_pb2.Leave()))


class Listener:
    def __init__(self) -> None:
        self.texts: list[str] = []
        self.reason = ""

    def deliver(self, message: worker_pb2.AgentMessage) -> bool:
        self.texts.append(message.warning.text)
        return not message.HasField("closed")

    def idle(self) -> None:
        self.texts.append("idle")

    def lost(self, reason: str) -> None:
        self.reason = reason


def test_reader_ends_after_the_last_message_and_the_socket_stays_usable(pair: Pair) -> None:
    session, agent = pair
    listener = Listener()
    session.start_reading(listener)
    closed = worker_pb2.AgentMessage(closed=worker_pb2.Closed(generation=1))
    agent.sendall(words("a") + frame(closed.SerializeToString()))
    assert session.stop_reading(10)
    assert (listener.texts, listener.reason) == (["a", ""], "")
    agent.sendall(words("next"))
    assert session.receive() is not None


def test_reader_reports_a_loss(pair: Pair) -> None:
    session, agent = pair
    listener = Listener()
    session.start_reading(listener)
    agent.close()
    assert not session.stop_reading(10)
    assert "closed the connection" in listener.reason


def test_reader_that_does_not_end_is_cut_off(pair: Pair) -> None:
    session, _ = pair
    session.start_reading(Listener())
    assert not session.stop_reading(0)


@pytest.mark.parametrize("address", ["tcp:1", "unix:", "unix:@no such agent listens here"])
def test_wrong_address_is_explained(address: str) -> None:
    with pytest.raises(StartError, match="agent"):
        connect(address)


@pytest.mark.parametrize("last_words", [b"", words("hm")])
def test_a_loss_while_sending_hello_is_a_loss(pair: Pair, last_words: bytes) -> None:
    session, agent = pair
    agent.sendall(last_words)
    agent.close()
    with pytest.raises(AgentLostError, match="does not take messages"):
        _hello_over(session)


def test_an_agent_that_does_not_listen_may_have_said_why(pair: Pair) -> None:
    session, agent = pair
    rejected = worker_pb2.AgentMessage(rejected=worker_pb2.Rejected(reason="another user"))
    agent.sendall(frame(rejected.SerializeToString()))
    agent.close()
    with pytest.raises(StartError, match="another user"):
        _hello_over(session)


def _hello_over(session: Session) -> None:
    """What init says first, over this connection."""
    arena = SimpleNamespace(fd=0, nbytes=1 << 20)
    process = SimpleNamespace(arena=arena, generation=0, connected=lambda _address, _patience: session)
    _say_hello(read_settings(), cast(Process, process), [])
