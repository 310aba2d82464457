"""In a rank: runs examples one after the other, each with its arguments, as if it had been started by itself."""

from __future__ import annotations

import runpy
import shlex
import sys
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def main(commands: list[str]) -> None:
    """Runs each command: the name of an example, and its arguments."""
    for command in commands:
        name, *arguments = shlex.split(command)
        sys.argv = [f"{name}.py", *arguments]
        runpy.run_path(str(EXAMPLES / sys.argv[0]), run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
