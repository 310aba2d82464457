"""What the ranks of tests over several hosts run.  Every result is checked where it arrives."""

from __future__ import annotations

import sys
from collections.abc import Callable

from tests.common.rank_programs import allreduce, hvd, mine, total


def sum_once() -> None:
    """The shortest job."""
    assert (allreduce(mine(1000), "x") == total()).all()


def main() -> None:
    """Runs the program that the command line names."""
    program: Callable[..., None] = globals()[sys.argv[1]]
    hvd.init()
    program(*sys.argv[2:])
    hvd.shutdown()
    print("done")


if __name__ == "__main__":
    main()
