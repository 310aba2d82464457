"""The agent's socket against processes that behave badly: at worst their own connection ends."""

from __future__ import annotations

import array
import asyncio
import logging
import os
import secrets
import socket
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from horovod.agent.connections import Connection, WorkerServer
from horovod.agent.frames import frame
from horovod.proto import worker_pb2


class Recorder:
    """Listens to connections."""

    def __init__(self) -> None:
        self.messages: list[worker_pb2.WorkerMessage] = []
        self.closings: list[str] = []
        self.connections: list[Connection] = []
        self._changed = asyncio.Event()

    def opened(self, connection: Connection) -> None:
        self.connections.append(connection)
        self._changed.set()

    def received(self, connection: Connection, message: worker_pb2.WorkerMessage) -> None:
        self.messages.append(message)
        self._changed.set()

    def closed(self, connection: Connection, reason: str) -> None:
        self.closings.append(reason)
        self._changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Waits for an event that makes the condition true."""
        while not condition():
            self._changed.clear()
            await asyncio.wait_for(self._changed.wait(), 10)


def connected(server: WorkerServer) -> socket.socket:
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    peer.connect("\0" + server.address.removeprefix("unix:@"))
    return peer


def serve(
    check: Callable[[WorkerServer, Recorder], Awaitable[None]],
    uid: int | None = None,
    allowed_uids: frozenset[int] = frozenset(),
) -> None:
    async def run() -> None:
        recorder = Recorder()
        server = WorkerServer(recorder, uid, allowed_uids)
        try:
            await check(server, recorder)
        finally:
            server.close()

    before = set(os.listdir("/proc/self/fd"))
    asyncio.run(run())
    assert set(os.listdir("/proc/self/fd")) <= before


def join(request: int) -> bytes:
    return frame(worker_pb2.WorkerMessage(join=worker_pb2.Join(request=request)).SerializeToString())


def test_messages_arrive_whole_or_byte_by_byte() -> None:
    async def check(server: WorkerServer, recorder: Recorder) -> None:
        with connected(server) as peer:
            peer.sendall(join(1) + join(2))
            for byte in join(3):
                peer.sendall(bytes([byte]))
                await asyncio.sleep(0)
            await recorder.until(lambda: len(recorder.messages) == 3)
        assert [message.join.request for message in recorder.messages] == [1, 2, 3]
        await recorder.until(lambda: bool(recorder.closings))

    serve(check)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (struct.pack("<I", 2_000_000_000), "a length of 2000000000 bytes is above the limit"),
        (frame(b"\xff" * 40), "something that is no message"),
        (frame(b""), "a message without a body"),
        (secrets.token_bytes(4096) + b"\xff" * (17 << 20), "something that is no message"),
    ],
)
def test_garbage_ends_that_connection_only(data: bytes, reason: str, caplog: pytest.LogCaptureFixture) -> None:
    async def check(server: WorkerServer, recorder: Recorder) -> None:
        with connected(server) as good, connected(server) as bad:
            bad.setblocking(False)
            await asyncio.wait_for(_send_all(bad, data), 10)
            await recorder.until(lambda: bool(recorder.closings))
            assert reason in recorder.closings[0]
            good.sendall(join(7))
            await recorder.until(lambda: bool(recorder.messages))

    caplog.set_level(logging.WARNING, "horovod.agent")
    serve(check)
    assert f"Ended the connection of process {os.getpid()}" in caplog.text


async def _send_all(peer: socket.socket, data: bytes) -> None:
    try:
        await asyncio.get_running_loop().sock_sendall(peer, data)
    except OSError:
        return  # cut off in the middle: as it should be


def test_a_length_prefix_takes_no_memory() -> None:
    async def check(server: WorkerServer, recorder: Recorder) -> None:
        with connected(server) as peer:
            peer.sendall(struct.pack("<I", 16 << 20))
            await recorder.until(lambda: bool(recorder.connections))
            before = _resident_kb()
            for _ in range(100):
                peer.sendall(b"x")
                await asyncio.sleep(0)
            assert _resident_kb() - before < 4096

    serve(check)


def _resident_kb() -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1])


def test_descriptors_come_along_and_too_many_end_the_connection() -> None:
    async def check(server: WorkerServer, recorder: Recorder) -> None:
        read, write = os.pipe()
        with connected(server) as peer:
            rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [read, write]))
            peer.sendmsg([join(1)], [rights])
            await recorder.until(lambda: bool(recorder.messages))
            taken = recorder.connections[0].take_descriptors(2)
            assert os.fstat(taken[0]).st_ino == os.fstat(read).st_ino
            assert not os.get_inheritable(taken[0])
            for _ in range(5):
                peer.sendmsg([join(2)], [rights])
            await recorder.until(lambda: bool(recorder.closings))
        assert "more descriptors" in recorder.closings[0]
        for descriptor in (read, write, *taken):
            os.close(descriptor)

    serve(check)


def test_other_users_are_refused(caplog: pytest.LogCaptureFixture) -> None:
    async def check(server: WorkerServer, recorder: Recorder) -> None:
        with connected(server) as peer:
            peer.setblocking(False)
            loop, said = asyncio.get_running_loop(), b""
            while part := await asyncio.wait_for(loop.sock_recv(peer, 4096), 10):
                said += part
        assert f"runs as user {os.getuid()}, the agent of this host as user {os.getuid() + 1}".encode() in said
        assert recorder.connections == []

    serve(check, uid=os.getuid() + 1)
    assert "Refused a connection" in caplog.text
    assert f"hvd-agent with --allow-uid {os.getuid()}." in caplog.text


def test_users_that_were_named_are_let_in() -> None:
    async def check(server: WorkerServer, recorder: Recorder) -> None:
        with connected(server) as peer:
            peer.sendall(join(7))
            await recorder.until(lambda: bool(recorder.messages))

    serve(check, uid=os.getuid() + 1, allowed_uids=frozenset({os.getuid()}))


def test_a_peer_that_does_not_read_is_waited_for_and_then_cut_off() -> None:
    async def check(server: WorkerServer, recorder: Recorder) -> None:
        with connected(server) as peer:
            await recorder.until(lambda: bool(recorder.connections))
            connection = recorder.connections[0]
            read, write = os.pipe()
            big = worker_pb2.AgentMessage(warning=worker_pb2.Warning(text="x" * (1 << 20)))
            connection.send(big)
            connection.send(big, [write])
            os.close(write)  # the connection keeps a copy until it is sent
            expected = 2 * (4 + big.ByteSize())
            peer.setblocking(False)
            received = 0
            loop = asyncio.get_running_loop()
            while received < expected:
                received += len(await asyncio.wait_for(loop.sock_recv(peer, 1 << 20), 10))
            os.close(read)
            for _ in range(80):
                connection.send(big)
            assert "does not read" in recorder.closings[0]

    serve(check)
