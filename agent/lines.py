"""What becomes of a rank's output on its way to the console: lines with a prefix, and the last lines for a report.

Pure: bytes in, bytes out.  Lines end at ``\\n``, ``\\r`` or both; the end is kept as it was, so that a progress bar
stays one.  Bytes that are no UTF-8 become the replacement character, never an error, wherever a read cuts them.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable

__all__ = ["LinePrefixer", "Tail"]

_END = re.compile(r"(\r\n|\n|\r)")
_LONGEST_LINE = 256 << 10
_TAIL_BYTES = 16 << 10
_TAIL_LINES = 40


class LinePrefixer:
    """Puts a prefix before each line.  A line without an end waits for it, up to 256 Ki characters, then it is cut."""

    def __init__(self, prefix: Callable[[], str]) -> None:
        self._prefix = prefix
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._pending = ""
        self._glue: str | None = None  # what a "\n" is preceded by when the text before it ended with "\r"

    def feed(self, data: bytes) -> bytes:
        """The lines that are complete now."""
        return self._cut(self._decoder.decode(data))

    def finish(self) -> bytes:
        """What is left when the stream ends; an unfinished line gets an end, so that nothing is glued to it."""
        rest = self._cut(self._decoder.decode(b"", True))
        pending, self._pending = self._pending, ""
        return rest + (f"{self._prefix()}{pending}\n".encode() if pending else b"")

    def _cut(self, text: str) -> bytes:
        out = ""
        if self._glue is not None and text:
            if text[0] == "\n":  # the second half of "\r\n"
                out, text = f"{self._glue}\n", text[1:]
            self._glue = None
        pieces = _END.split(self._pending + text)
        self._pending = pieces.pop()
        prefix = self._prefix() if pieces else ""
        # A bare "\r" at the start of a line moves no ink: progress bars begin with it.
        out += "".join(
            f"{prefix}{line}{end}" for line, end in zip(pieces[::2], pieces[1::2], strict=True) if line or end != "\r"
        )
        if pieces and not self._pending and pieces[-1] == "\r":
            self._glue = "" if pieces[-2] else f"{prefix}\r"
        if len(self._pending) > _LONGEST_LINE:
            out += f"{self._prefix()}{self._pending}\n"
            self._pending = ""
        return out.encode()


class Tail:
    """The end of a stream, bounded."""

    def __init__(self) -> None:
        self._bytes = b""

    def feed(self, data: bytes) -> None:
        """More of the stream."""
        self._bytes = (self._bytes + data)[-_TAIL_BYTES:] if len(data) < _TAIL_BYTES else data[-_TAIL_BYTES:]

    def text(self) -> str:
        """The last lines as they would be seen on a terminal: of a line that was overwritten, the last state."""
        lines = [line.rstrip("\r").rpartition("\r")[2] for line in self._bytes.decode(errors="replace").split("\n")]
        return "\n".join(lines[-_TAIL_LINES - 1 :]).strip("\n")
