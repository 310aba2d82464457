"""Files that keep the output of ranks.  What a file can't keep is said once, on the console; the console goes on."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

from horovod.agent.output import FileTarget, Target

__all__ = ["RankFile", "open_rank_files"]

_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC


class RankFile:
    """A Target that keeps one stream of one rank.  ``words(text)`` makes a line of the console, and says which console.

    ``write`` and ``close`` are called by the thread that writes to the console, or after it has ended.
    """

    def __init__(self, path: Path, words: Callable[[str], tuple[Target, bytes]]) -> None:
        self._path, self._words = path, words
        self._file: FileTarget | None = None
        self._told = False
        self._problem: OSError | None = None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = FileTarget(os.open(path, _FLAGS, 0o666))
        except OSError as error:
            self._problem = error

    def write(self, data: bytes) -> None:
        """Writes all of it, or says what is wrong and raises OSError."""
        try:
            if self._file is None:
                raise self._problem or OSError("it is closed")
            self._file.write(data)
        except OSError as error:
            self._tell(error)
            raise

    def _tell(self, error: OSError) -> None:
        if self._told:
            return
        self._told = True
        console, line = self._words(f"{self._path} is incomplete: {error.strerror or error}.")
        with contextlib.suppress(OSError, ValueError):  # nobody reads the console
            console.write(line)

    def close(self) -> None:
        """Lets the file go; some file systems tell only now that they had no room."""
        file, self._file = self._file, None
        try:
            if file is not None:
                os.close(file.descriptor)
            elif self._problem is not None:
                raise self._problem
        except OSError as error:
            self._tell(error)


def open_rank_files(
    directory: str, rank: int, width: int, words: Callable[[str], tuple[Target, bytes]]
) -> dict[str, RankFile]:
    """``rank.<n>/stdout`` and ``stderr`` in the folder; none where there is no folder."""
    if not directory:
        return {}
    folder = Path(directory) / f"rank.{rank:0{width}d}"
    return {name: RankFile(folder / name, words) for name in ("stdout", "stderr")}
