"""Ranks whose program ends in the midst of others' work, or whose threads outlive it."""

from __future__ import annotations

import sys
import threading
import time

import numpy as np
from horovod.common.exceptions import ShutDownError

from tests.common.rank_programs import allreduce, hvd, mine


def ends(how: str) -> None:
    """Rank 1 ends, rank 0 waits for it."""
    allreduce(mine(4), "known")
    if hvd.rank() == 0:
        try:
            allreduce(mine(4), "known")
        except ShutDownError as error:
            print(f"ShutDownError: {error}")
        sys.exit(1)  # a thread of rank 1 lives until the launcher ends it
    if how == "thread":
        threading.Thread(target=threading.Event().wait, args=(300,)).start()
        raise KeyError("the cause")
    sys.exit({"code": 3, "text": "bad luck", "nothing": None}[how])


def main_ends_first() -> None:
    """It has printed an exception by the hook, and ends long before the thread that works."""

    def work() -> None:
        threading.main_thread().join()
        end = time.monotonic() + 2
        while allreduce(np.array([time.monotonic() < end], np.float32), "goes on"):
            pass
        print("done")

    threading.Thread(target=work).start()
    try:
        raise KeyError("not the end")
    except KeyError as error:
        sys.excepthook(KeyError, error, None)


if __name__ == "__main__":
    hvd.init()
    globals()[sys.argv[1]](*sys.argv[2:])
