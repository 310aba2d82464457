"""``horovodrun``, also as ``python -m horovod.runner``: heeds signals before it loads what takes time."""

import sys

from horovod.proto.signals import run_program

__all__ = ["main"]


def main() -> int:
    """The program; returns the exit code."""
    return run_program("horovodrun", "horovod.runner.launch", lambda number: 128 + number)


if __name__ == "__main__":
    sys.exit(main())
