"""What two agents say to each other before data flow on a connection.

Each proves that it knows the key of the epoch by an HMAC over what both have said, so that nobody else gets a connection and no old
conversation can be played again.  All messages have fixed sizes: nothing is allocated by what a stranger says.

    connecting side                        listening side
    Greeting (place, lane, nonce)    ->
                                     <-    nonce, HMAC("listener", greeting, nonce)
    HMAC("connector", greeting, nonce)  ->
                                     <-    one byte: accepted

Somebody may also ask how far it is: a probe has the size of a greeting, and its nonce comes back.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from dataclasses import dataclass

__all__ = [
    "ACCEPTED",
    "ANSWER_BYTES",
    "GREETING_BYTES",
    "MAC_BYTES",
    "NONCE_BYTES",
    "Greeting",
    "Refused",
    "answer",
    "check",
    "echo",
    "is_probe",
    "probe",
    "proof",
]

NONCE_BYTES = 32
MAC_BYTES = 32
ANSWER_BYTES = NONCE_BYTES + MAC_BYTES
ACCEPTED = b"\x01"
_MAGIC = b"HVDP"
_PROBE_MAGIC = b"HVDR"
_VERSION = 1
_LAYOUT = struct.Struct(f"<4sBQHHH{NONCE_BYTES}s")
GREETING_BYTES = _LAYOUT.size


class Refused(Exception):
    """The other side is not who it should be; the text says why."""


@dataclass(frozen=True, slots=True)
class Greeting:
    """Who connects to whom: places in the ring of an epoch, and which of their connections this is."""

    epoch: int
    source: int
    target: int
    lane: int
    nonce: bytes

    def pack(self) -> bytes:
        """The bytes on the wire."""
        return _LAYOUT.pack(_MAGIC, _VERSION, self.epoch, self.source, self.target, self.lane, self.nonce)

    @classmethod
    def unpack(cls, data: bytes) -> Greeting:
        """From ``GREETING_BYTES`` bytes; Refused when they are no greeting."""
        magic, version, epoch, source, target, lane, nonce = _LAYOUT.unpack(data)
        if magic != _MAGIC:
            raise Refused("it does not speak the protocol of hvd agents")
        if version != _VERSION:
            raise Refused(
                f"it speaks version {version} of the data plane, this agent version {_VERSION}: use the same hvd"
            )
        return cls(epoch, source, target, lane, nonce)


def probe(nonce: bytes) -> bytes:
    """A question for the round trip."""
    return _LAYOUT.pack(_PROBE_MAGIC, _VERSION, 0, 0, 0, 0, nonce)


def is_probe(data: bytes) -> bool:
    """Whether ``GREETING_BYTES`` bytes are no greeting but a question."""
    return data.startswith(_PROBE_MAGIC)


def echo(data: bytes) -> bytes:
    """What is answered to a probe; Refused when it is none."""
    if not is_probe(data):
        raise Refused("it does not go on as it began")
    return data[-NONCE_BYTES:]


def _mac(key: bytes, side: bytes, greeting: Greeting, nonce: bytes) -> bytes:
    return hmac.new(key, side + greeting.pack() + nonce, hashlib.sha256).digest()


def answer(key: bytes, greeting: Greeting, nonce: bytes) -> bytes:
    """What the listening side sends."""
    return nonce + _mac(key, b"listener", greeting, nonce)


def proof(key: bytes, greeting: Greeting, answered: bytes) -> bytes:
    """What the connecting side sends; Refused when the answer does not prove the key."""
    nonce, mac = answered[:NONCE_BYTES], answered[NONCE_BYTES:]
    if not hmac.compare_digest(mac, _mac(key, b"listener", greeting, nonce)):
        raise Refused("it does not know the key of this epoch: it is no agent of this job")
    return _mac(key, b"connector", greeting, nonce)


def check(key: bytes, greeting: Greeting, nonce: bytes, mac: bytes) -> None:
    """Refused when the connecting side does not prove the key."""
    if not hmac.compare_digest(mac, _mac(key, b"connector", greeting, nonce)):
        raise Refused("it does not know the key of this epoch: it is no agent of this job")
