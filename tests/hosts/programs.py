"""What the ranks of tests over several hosts run.  Every result is checked where it arrives."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import pytest
from horovod.common.exceptions import MismatchError

from tests.common.rank_programs import allreduce, hvd, mine, total


def sum_once() -> None:
    """The shortest job."""
    assert (allreduce(mine(1000), "x") == total()).all()


def many_epochs(count: str) -> None:
    """init and shutdown again and again: each time the agents connect anew."""
    for _ in range(int(count)):
        hvd.shutdown()
        hvd.init()
        assert (allreduce(mine(1000), "x") == total()).all()
        assert (allreduce(mine(100_000), "y") == total()).all()


def short_epochs(count: str) -> None:
    """init and shutdown with nothing between: some ranks have left before others are let in."""
    for _ in range(int(count)):
        hvd.shutdown()
        hvd.init()
    assert (allreduce(mine(1000), "x") == total()).all()


def late_contest(odd: str) -> None:
    """One rank uses a name for another shape while the others are in the next round of its plan already."""
    for attempt in range(4):
        name = f"batch.{attempt}"
        for _ in range(2):
            assert (allreduce(mine(64), name) == total()).all()
        differs = hvd.rank() == int(odd) % hvd.size()
        if differs:
            time.sleep(0.05 * attempt)  # so that others get into the round, all of them or none
        with pytest.raises(MismatchError, match=name):
            allreduce(mine(65 if differs else 64), name)
        assert (allreduce(mine(64), name) == total()).all()


def main() -> None:
    """Runs the program that the command line names."""
    program: Callable[..., None] = globals()[sys.argv[1]]
    hvd.init()
    program(*sys.argv[2:])
    hvd.shutdown()
    print("done")


if __name__ == "__main__":
    main()
