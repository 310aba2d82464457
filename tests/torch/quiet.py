"""A rank that compares what its process is like before, during and after Horovod: ``python -m tests.torch.quiet``.

Nothing here measures time: what could slow the program down is looked at itself.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from contextlib import suppress
from pathlib import Path

import horovod.torch as hvd
import torch

from tests.runner.launcher import until

ROUNDS = 50


def surroundings() -> dict[str, object]:
    """What code beside Horovod depends on."""
    signals = [signal.getsignal(number) for number in sorted(signal.valid_signals())]
    return {
        "torch threads": (torch.get_num_threads(), torch.get_num_interop_threads()),
        "variables": dict(os.environ),
        "affinity": os.sched_getaffinity(0),
        "scheduling": (
            os.sched_getscheduler(0),
            os.sched_getparam(0).sched_priority,
            os.getpriority(os.PRIO_PROCESS, 0),
        ),
        "signals": signals,
        "blocked signals": signal.pthread_sigmask(signal.SIG_BLOCK, []),
        "wakeup": _wakeup_descriptor(),
        "loop policy": type(asyncio.get_event_loop_policy()),
        "hooks": (sys.excepthook, threading.excepthook, sys.unraisablehook),
        "switch interval": sys.getswitchinterval(),
        "directory": os.getcwd(),
        "mask": _umask(),
    }


def _wakeup_descriptor() -> int:
    descriptor = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(descriptor)
    return descriptor


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def tasks() -> dict[int, str]:
    """Threads of this process, native ones too, by id."""
    found = {}
    for task in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # a thread that has ended meanwhile
            found[int(task.name)] = (task / "comm").read_text().strip()
    return found


def work_done(task: int) -> tuple[int, int]:
    """Ticks of processor time that a thread has used in user and kernel mode, and how often it gave up its core."""
    fields = Path(f"/proc/self/task/{task}/stat").read_text().rpartition(")")[2].split()
    status = Path(f"/proc/self/task/{task}/status").read_text().split("voluntary_ctxt_switches:")[1]
    return int(fields[11]) + int(fields[12]), int(status.split()[0])


def allreduces() -> None:
    """Small, large, asynchronous: all kinds of waiting."""
    for _ in range(ROUNDS):
        assert torch.all(hvd.allreduce(torch.ones(10), name="small", op=hvd.Sum) == hvd.size())
    hvd.allreduce(torch.ones(500_000), name="large")
    hvd.synchronize(hvd.allreduce_async(torch.ones(100), name="later"))


def check_that_it_sleeps(task: int) -> None:
    """A thread that takes no part in operations: a wake-up or two (it looks around every ten seconds), not one for each."""
    ticks, naps = work_done(task)
    allreduces()
    more_ticks, more_naps = work_done(task)
    assert more_ticks - ticks <= 1, f"{more_ticks - ticks} ticks of processor time"
    assert more_naps - naps <= 5, f"woke {more_naps - naps} times in {ROUNDS} operations"


def main() -> None:
    """Asserts that nothing has changed."""
    reader = ["hvd-reader"] if "HOROVOD_AGENT" in os.environ else []  # alone, nobody is there to be listened to
    torch.ones(500_000).sum()  # torch's own threads
    before, threads = surroundings(), tasks()
    hvd.init()
    allreduces()
    assert [thread.name for thread in threading.enumerate()] == ["MainThread", *reader]
    ours = [task for task in tasks() if task not in threads]
    assert len(ours) == len(reader), tasks()
    for task in ours:
        check_that_it_sleeps(task)
    assert surroundings() == before
    hvd.shutdown()
    assert surroundings() == before
    assert until(lambda: tasks().keys() <= threads.keys()), tasks()
    print("cores", sorted(os.sched_getaffinity(0)), "omp", os.environ.get("OMP_NUM_THREADS"), torch.get_num_threads())
    print("done")


if __name__ == "__main__":
    main()
