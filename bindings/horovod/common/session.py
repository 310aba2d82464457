"""The connection of this process to its agent: frames, descriptors, and one reader thread while an epoch lasts.

The socket lives as long as the process takes part in jobs: each later init says Hello on it again.  Between epochs
nobody reads, and no thread is left.  Sending is bounded in time: an agent that does not read is as good as gone.
A forked child closes its copies of the descriptors and never writes.
"""

from __future__ import annotations

import array
import contextlib
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Sequence
from typing import Protocol

from google.protobuf.message import DecodeError

from horovod.common.exceptions import AgentLostError, StartError
from horovod.common.frames import FrameError, FrameReader, frame
from horovod.proto import worker_pb2

__all__ = ["Incoming", "Listener", "Session", "close_descriptors", "connect"]

_SEND_TIMEOUT_S = 30
_IDLE_S = 10
_MAX_DESCRIPTORS = 250
_READ_BYTES = 1 << 16

Incoming = tuple[worker_pb2.AgentMessage, list[int]]


class Listener(Protocol):
    """What the reader thread talks to."""

    def deliver(self, message: worker_pb2.AgentMessage) -> bool:
        """Takes a message; False after the last one of an epoch."""
        ...

    def idle(self) -> None:
        """Nothing came for some seconds."""
        ...

    def lost(self, reason: str) -> None:
        """The connection is over."""
        ...


def close_descriptors(descriptors: Sequence[int]) -> None:
    """Closes each; one that is closed already does not matter."""
    for descriptor in descriptors:
        with contextlib.suppress(OSError):
            os.close(descriptor)


def connect(address: str, by_hand: bool = False) -> Session:
    """Opens the connection that HOROVOD_AGENT names: ``unix:@name`` (abstract) or ``unix:/path``.

    ``by_hand``: this process was not started by a launcher.  StartError when there is no agent; its cause says why.
    """
    scheme, _, name = address.partition(":")
    if scheme != "unix" or not name:
        raise StartError(f"HOROVOD_AGENT={address!r} names no agent: unix:@name or unix:/path is expected.")
    path = "\0" + name[1:] if name.startswith("@") else name
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("@ll", _SEND_TIMEOUT_S, 0))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("@ll", _IDLE_S, 0))
        sock.connect(path)
    except OSError as error:
        sock.close()
        raise StartError(
            f"The agent at {address} can't be reached ({error.strerror or error}). {_advice(error, by_hand)}"
        ) from error
    return Session(sock)


def _advice(error: OSError, by_hand: bool) -> str:
    if not by_hand:
        return "It has ended, or HOROVOD_AGENT was inherited from another job: start the program with horovodrun."
    if isinstance(error, PermissionError):
        return (
            f"This process runs as user {os.getuid()}: start it as the user of hvd-agent, or hvd-agent with --allow-uid "
            f"{os.getuid()}."
        )
    return (
        "HOROVOD_AGENT must be what hvd-agent was told with --socket, in the same network namespace for @names, in a folder "
        "that this process sees for paths."
    )


class Session:
    """One connection.  ``receive`` belongs to whoever reads: init until Welcome, then the reader thread."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._frames = FrameReader()
        self._descriptors: list[int] = []
        self._ready: list[worker_pb2.AgentMessage] = []
        self._send_lock = threading.Lock()
        self._reader: threading.Thread | None = None
        self.lost = ""

    # ---- sending

    def send(self, message: worker_pb2.WorkerMessage, descriptors: Sequence[int] = ()) -> None:
        """Sends one frame; AgentLostError when the agent is gone or does not read."""
        data = memoryview(frame(message.SerializeToString()))
        ancillary = []
        if descriptors:
            ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
        with self._send_lock:
            try:
                sent = self._sock.sendmsg([data], ancillary, socket.MSG_NOSIGNAL)
                while sent < len(data):
                    sent += self._sock.send(data[sent:], socket.MSG_NOSIGNAL)
            except OSError as error:
                raise AgentLostError(self._lose(f"it does not take messages: {error.strerror or error}")) from error

    # ---- receiving

    def receive(self) -> Incoming | None:
        """The next message with the descriptors that came by then; None when nothing came for a while.

        AgentLostError at the end of the connection and for garbage.
        """
        while not self._ready:
            if not self._read_some():
                return None
        message = self._ready.pop(0)
        descriptors, self._descriptors = self._descriptors, []
        return message, descriptors

    def wait(self, timeout_s: float) -> bool:
        """Whether ``receive`` has something to do, now or within that time."""
        if self._ready:
            return True
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        return bool(poll.poll(timeout_s * 1000))

    def _read_some(self) -> bool:
        space = socket.CMSG_SPACE(_MAX_DESCRIPTORS * 4)
        try:
            data, ancillary, _, _ = self._sock.recvmsg(_READ_BYTES, space, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return False
        except OSError as error:
            raise AgentLostError(self._lose(f"the connection broke: {error.strerror or error}")) from error
        for level, kind, payload in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                whole = payload[: len(payload) // 4 * 4]
                self._descriptors.extend(array.array("i", whole))
        if not data:
            raise AgentLostError(self._lose("it has closed the connection"))
        self._decode(data)
        return True

    def _decode(self, data: bytes) -> None:
        try:
            for payload in self._frames.feed(data):
                message = worker_pb2.AgentMessage.FromString(payload)
                if message.WhichOneof("body") is None:
                    raise FrameError("a message without a body")
                self._ready.append(message)
        except (FrameError, DecodeError) as error:
            raise AgentLostError(self._lose(f"it sent something that is no message: {error}")) from error

    # ---- the reader thread

    def start_reading(self, listener: Listener) -> None:
        """Hands every message to the listener until that says False, or tells it the reason of a loss, and ends."""
        self._reader = threading.Thread(target=self._read, args=(listener,), name="hvd-reader", daemon=True)
        self._reader.start()

    def _read(self, listener: Listener) -> None:
        try:
            going = True
            while going:
                incoming = self.receive()
                if incoming is None:
                    listener.idle()
                    continue
                close_descriptors(incoming[1])
                going = listener.deliver(incoming[0])
        except AgentLostError as error:
            listener.lost(str(error))

    def stop_reading(self, timeout_s: float) -> bool:
        """Waits for the reader to end by itself (after Closed); one that does not is cut off."""
        reader = self._reader
        if reader is None:
            return not self.lost
        if reader is threading.current_thread():
            return False
        _join_interruptibly(reader, timeout_s)
        if reader.is_alive():
            self.close()
            reader.join(1)
        self._reader = None
        return not self.lost

    # ---- the end

    def close(self) -> None:
        """Ends the connection; a reader sees that."""
        self.lost = self.lost or "The connection to the agent was closed by this process."
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()
        close_descriptors(self._descriptors)
        self._descriptors = []

    def abandon(self) -> None:
        """In a forked child: closes the copy of the descriptor and leaves the connection alone."""
        self.lost = "This process was forked."
        close_descriptors([self._sock.detach(), *self._descriptors])
        self._descriptors = []
        self._send_lock = threading.Lock()

    def _lose(self, reason: str) -> str:
        if not self.lost:
            self.lost = f"The agent of this host is gone: {reason}."
        return self.lost


def _join_interruptibly(thread: threading.Thread, timeout_s: float) -> None:
    """Joins in slices, so that signals are handled."""
    deadline = time.monotonic() + timeout_s
    while thread.is_alive() and time.monotonic() < deadline:
        thread.join(0.05)
