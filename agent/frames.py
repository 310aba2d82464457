"""Frames between a rank and its agent: a 4-byte little-endian length, then one message.

Works on bytes only, so that it can be fed one byte at a time.  A length is judged as soon as its four bytes are there,
before anything of that size is kept.
"""

from __future__ import annotations

import struct

__all__ = ["MAX_FRAME_BYTES", "FrameError", "FrameReader", "frame"]

MAX_FRAME_BYTES = 16 << 20
_LENGTH = struct.Struct("<I")


class FrameError(Exception):
    """The other side sent something that is no frame."""


def frame(payload: bytes) -> bytes:
    """The payload with its length in front."""
    if len(payload) > MAX_FRAME_BYTES:
        raise FrameError(f"a message of {len(payload)} bytes is above the limit of {MAX_FRAME_BYTES}")
    return _LENGTH.pack(len(payload)) + payload


class FrameReader:
    """Cuts a stream into payloads."""

    __slots__ = ("_buffer",)

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """The payloads that are complete now; FrameError for a length above the limit."""
        self._buffer += data
        payloads, start = [], 0
        while len(self._buffer) - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer, start)
            if length > MAX_FRAME_BYTES:
                raise FrameError(f"a length of {length} bytes is above the limit of {MAX_FRAME_BYTES}")
            end = start + _LENGTH.size + length
            if len(self._buffer) < end:
                break
            payloads.append(bytes(self._buffer[start + _LENGTH.size : end]))
            start = end
        del self._buffer[:start]
        return payloads
