"""``hvd-coordinator``, also as ``python -m horovod.coordinator``: heeds signals before it loads what takes time."""

import sys

from horovod.proto.signals import run_program

__all__ = ["main"]


def main() -> int:
    """The program; returns the exit code."""
    return run_program("hvd-coordinator", "horovod.coordinator.cli", lambda number: 0)


if __name__ == "__main__":
    sys.exit(main())
