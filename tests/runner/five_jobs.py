"""A long-lived parent that runs jobs one after another and prints what they have left behind: ``commands`` or ``calls``.

It adopts orphans, so that a process that outlives its job turns up among its children, zombies too.
"""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
from collections.abc import Callable

import horovod
import pytest

from tests.leaks import holdings, wait_until_no_more_than
from tests.runner.launcher import LAUNCHER

JOBS = 5
_PR_SET_CHILD_SUBREAPER = 36


def work() -> int:
    """What the ranks do: a collective, and a child of their own."""
    from tests.common.rank_programs import allreduce, barrier, hvd, mine, total

    hvd.init()
    assert (allreduce(mine(100_000), "x") == total()).all()
    subprocess.run([sys.executable, "-c", "pass"], check=True)
    barrier()
    rank = hvd.rank()
    hvd.shutdown()
    return rank


def commands() -> None:
    """A job as a command; its process is the launcher's own."""
    program = "from tests.runner.five_jobs import work; work()"
    subprocess.run([*LAUNCHER, "-np", "2", sys.executable, "-c", program], check=True)


def failing_commands() -> None:
    """The last rank leaves a child and fails; the other one waits for it."""
    program = (
        "import subprocess, sys\nfrom tests.common.rank_programs import barrier, hvd\nhvd.init()\n"
        "if hvd.rank() == 0: barrier()\n"
        "subprocess.Popen([sys.executable, '-c', 'import signal; signal.pause()'])\nsys.exit(3)"
    )
    done = subprocess.run([*LAUNCHER, "-np", "2", sys.executable, "-c", program], stderr=subprocess.PIPE, check=False)
    assert done.returncode == 3, done


def calls() -> None:
    """A job inside this process."""
    assert horovod.run(work, num_proc=2) == [0, 1]


def failing_calls() -> None:
    """A function that raises."""
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        horovod.run(divmod, (1, 0), num_proc=2)


def main() -> None:
    """Prints what is left, as JSON, in the last line."""
    assert ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
    job: Callable[[], None] = globals()[sys.argv[1]]
    job()  # what stays loaded after the first one is no leak
    before = holdings()
    for _ in range(JOBS):
        job()
    print(json.dumps(wait_until_no_more_than(before)))


if __name__ == "__main__":
    main()
