"""``hvd-agent``, also as ``python -m horovod.agent``: heeds signals before it loads what takes time."""

import sys

from horovod.proto.signals import run_program

__all__ = ["main"]


def main() -> int:
    """The program; returns the exit code."""
    return run_program("hvd-agent", "horovod.agent.cli", lambda number: 0)


if __name__ == "__main__":
    sys.exit(main())
