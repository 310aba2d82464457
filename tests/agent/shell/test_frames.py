"""Frames: cut anywhere, judged by their length before anything is kept."""

import struct

import pytest
from horovod.agent.frames import MAX_FRAME_BYTES, FrameError, FrameReader, frame


def test_whole_and_byte_by_byte_give_the_same() -> None:
    payloads = [b"", b"a", b"x" * 1000]
    stream = b"".join(frame(payload) for payload in payloads)
    reader = FrameReader()
    assert FrameReader().feed(stream) == payloads
    assert [got for index in range(len(stream)) for got in reader.feed(stream[index : index + 1])] == payloads


def test_a_length_above_the_limit_is_refused_before_its_payload_comes() -> None:
    reader = FrameReader()
    assert reader.feed(frame(b"good")) == [b"good"]
    assert reader.feed(b"\xff\xff\xff") == []
    with pytest.raises(FrameError, match="4294967295 bytes is above the limit"):
        reader.feed(b"\xff")


def test_the_limit_itself_is_allowed() -> None:
    reader = FrameReader()
    assert reader.feed(struct.pack("<I", MAX_FRAME_BYTES)) == []
    with pytest.raises(FrameError, match="above the limit"):
        frame(bytes(MAX_FRAME_BYTES + 1))
