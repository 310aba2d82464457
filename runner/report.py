"""What the launcher says when a job is over: the first failure, last, where people look."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

__all__ = ["EXIT_TEXT", "JobResult", "failure_text", "write_record"]

# RuntimeErrors of horovod.run start so; scripts look for it.
EXIT_TEXT = "Horovod detected that one or more processes exited with non-zero status"


@dataclass(frozen=True, slots=True)
class JobResult:
    """How a job ended.  ``code`` 0: every rank finished.  ``rank`` is -1 where no rank is to blame."""

    code: int
    text: str = ""
    rank: int = -1
    host: str = ""
    pid: int = 0
    signal: int = 0
    last_lines: str = ""


def failure_text(result: JobResult) -> str:
    """All that a person needs to begin: who failed, where and how, and the end of what the rank wrote."""
    text = result.text or f"The job ended with code {result.code}."
    if result.rank < 0:
        return text
    lines = [f"First failure: {text}"]
    if result.last_lines:
        lines.append(f"The last lines of the stderr of rank {result.rank}:")
        lines.extend(f"    {line}" for line in result.last_lines.splitlines())
    return "\n".join(lines)


def write_record(result: JobResult, directory: str) -> str:
    """Writes ``failure.json`` for programs; "" or why that could not be done."""
    path = Path(directory) / "failure.json"
    try:
        path.write_text(json.dumps(asdict(result), indent=2) + "\n")
    except OSError as error:
        return f"The failure could not be recorded in {path}: {error.strerror or error}."
    return ""
