"""The unix socket where ranks meet their agent: framing, descriptors, who may connect.

The address is random and abstract: nothing is left in the file system, whatever ends the agent.  Only processes of the
same user get in, and of users that were named.  Whatever a peer sends, at worst its own connection ends, with a reason in the log.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import logging
import os
import socket
import struct
from collections import deque
from collections.abc import Sequence
from typing import Protocol

from google.protobuf.message import DecodeError
from horovod.agent.doors import Door, open_random_door
from horovod.agent.frames import FrameError, FrameReader, frame
from horovod.agent.seldom import Seldom
from horovod.proto import worker_pb2

__all__ = ["Connection", "Sessions", "WorkerServer", "close_all"]

log = logging.getLogger("horovod.agent")

_READ_BYTES = 64 << 10
_MOST_DESCRIPTORS = 8  # a Hello has two
_MOST_UNSENT_BYTES = 64 << 20
_CREDENTIALS = struct.Struct("3i")


class Sessions(Protocol):
    """Who listens to the connections."""

    def opened(self, connection: Connection) -> None: ...

    def received(self, connection: Connection, message: worker_pb2.WorkerMessage) -> None: ...

    def closed(self, connection: Connection, reason: str) -> None: ...


def close_all(descriptors: Sequence[int]) -> None:
    """Closes each descriptor."""
    for descriptor in descriptors:
        with contextlib.suppress(OSError):
            os.close(descriptor)


class WorkerServer:
    """Listens at a door, which it closes in the end: by default at an abstract address that nobody can guess."""

    def __init__(
        self,
        sessions: Sessions,
        uid: int | None = None,
        allowed_uids: frozenset[int] = frozenset(),
        door: Door | None = None,
    ) -> None:
        self._sessions = sessions
        self._uid = os.getuid() if uid is None else uid
        self._allowed_uids = allowed_uids
        self._loop = asyncio.get_running_loop()
        self._next = 1
        self.connections: dict[int, Connection] = {}
        self.seldom = Seldom(log)
        self._door = door or open_random_door()
        self.address = self._door.address
        self._socket = self._door.socket
        self._socket.setblocking(False)
        self._loop.add_reader(self._socket, self._accept)

    def _accept(self) -> None:
        try:
            peer, _ = self._socket.accept()
        except OSError as error:
            if not isinstance(error, BlockingIOError):
                self.seldom.warning("A connection could not be accepted: %s", error)
            return
        pid, uid, _ = _CREDENTIALS.unpack(peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
        if uid != self._uid and uid not in self._allowed_uids:
            self._turn_away(peer, pid, uid)
            return
        connection = Connection(self._next, peer, pid, self)
        self._next += 1
        self.connections[connection.id] = connection
        self._sessions.opened(connection)
        connection.begin()

    def _turn_away(self, peer: socket.socket, pid: int, uid: int) -> None:
        """A process of another user hears why; nothing that it sends is read."""
        reason = (
            f"Process {pid} runs as user {uid}, the agent of this host as user {self._uid}: only processes of the same "
            "user can be ranks of its job. Start the job as the user that the program is to run as, or hvd-agent "
            f"with --allow-uid {uid}."
        )
        self.seldom.warning("Refused a connection: %s", reason)
        message = worker_pb2.AgentMessage(rejected=worker_pb2.Rejected(reason=reason))
        with contextlib.suppress(OSError):
            peer.send(frame(message.SerializeToString()), socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT)
        peer.close()

    def received(self, connection: Connection, message: worker_pb2.WorkerMessage) -> None:
        """A connection has a message."""
        self._sessions.received(connection, message)

    def closed(self, connection: Connection, reason: str) -> None:
        """A connection is over."""
        if self.connections.pop(connection.id, None) is not None:
            self._sessions.closed(connection, reason)

    def close(self) -> None:
        """Ends the socket and every connection."""
        self._loop.remove_reader(self._socket)
        self._door.close()
        for connection in list(self.connections.values()):
            connection.close("the agent ends")
        self.seldom.close()


class Connection:
    """One process that speaks with this agent.  ``descriptors`` are those that came and were not taken yet."""

    def __init__(self, number: int, peer: socket.socket, pid: int, server: WorkerServer) -> None:
        self.id, self.pid = number, pid
        self.descriptors: list[int] = []
        self._peer, self._server = peer, server
        self._loop = asyncio.get_running_loop()
        self._frames = FrameReader()
        self._unsent: deque[tuple[memoryview, list[int]]] = deque()
        self._unsent_bytes = 0
        self._open = True
        peer.setblocking(False)

    def begin(self) -> None:
        """Starts reading."""
        if self._open:
            self._loop.add_reader(self._peer, self._readable)

    def take_descriptors(self, count: int) -> list[int]:
        """The oldest descriptors that came; the caller closes them."""
        taken, self.descriptors = self.descriptors[:count], self.descriptors[count:]
        return taken

    # ---- receiving

    def _readable(self) -> None:
        space = socket.CMSG_SPACE(_MOST_DESCRIPTORS * 4)
        try:
            data, ancillary, flags, _ = self._peer.recvmsg(_READ_BYTES, space, socket.MSG_CMSG_CLOEXEC)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self.close(f"the connection broke: {error.strerror or error}")
            return
        for level, kind, payload in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                self.descriptors.extend(array.array("i", payload[: len(payload) // 4 * 4]))
        if not data:
            self.close("")
        elif len(self.descriptors) > _MOST_DESCRIPTORS or flags & socket.MSG_CTRUNC:
            self._refuse("it sent more descriptors than any message has")
        else:
            self._decode(data)

    def _decode(self, data: bytes) -> None:
        try:
            for payload in self._frames.feed(data):
                message = worker_pb2.WorkerMessage.FromString(payload)
                if message.WhichOneof("body") is None:
                    raise FrameError("a message without a body")
                if self._open:
                    self._server.received(self, message)
        except (FrameError, DecodeError) as error:
            self._refuse(f"it sent something that is no message: {error}")

    def _refuse(self, reason: str) -> None:
        self._server.seldom.warning("Ended the connection of process %d: %s.", self.pid, reason)
        self.close(reason)

    # ---- sending

    def send(self, message: worker_pb2.AgentMessage, descriptors: Sequence[int] = ()) -> None:
        """Sends a message, now or as soon as the peer reads; a peer that never reads is cut off."""
        if not self._open:
            return
        data = memoryview(frame(message.SerializeToString()))
        self._unsent.append((data, [os.dup(descriptor) for descriptor in descriptors]))
        self._unsent_bytes += len(data)
        if len(self._unsent) == 1:
            self._flush()
        if self._unsent_bytes > _MOST_UNSENT_BYTES:
            self._refuse("it does not read its messages")

    def _flush(self) -> None:
        try:
            while self._unsent:
                self._send_first()
            self._loop.remove_writer(self._peer)
        except (BlockingIOError, InterruptedError):
            self._loop.add_writer(self._peer, self._flush)
        except OSError as error:
            self.close(f"the connection broke: {error.strerror or error}")

    def _send_first(self) -> None:
        data, descriptors = self._unsent[0]
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
        sent = self._peer.sendmsg([data], rights, socket.MSG_NOSIGNAL)
        close_all(descriptors)
        self._unsent_bytes -= sent
        if sent == len(data):
            self._unsent.popleft()
        else:
            self._unsent[0] = (data[sent:], [])

    def close(self, reason: str) -> None:
        """Ends the connection; what could not be sent by now is lost."""
        if not self._open:
            return
        self._open = False
        self._loop.remove_reader(self._peer)
        self._loop.remove_writer(self._peer)
        self._peer.close()
        for _, descriptors in self._unsent:
            close_all(descriptors)
        self._unsent.clear()
        close_all(self.descriptors)
        self.descriptors = []
        self._server.closed(self, reason)
