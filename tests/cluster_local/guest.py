"""A process that somebody starts by hand: carries out the lines of its stdin, one after the other, and says what came of each."""

from __future__ import annotations

import encodings.raw_unicode_escape  # noqa: F401 - as another user it may not be readable any more
import itertools
import os
import sys

import horovod.common.client  # noqa: F401 - for the same reason
import numpy as np

from tests.common.rank_programs import allgather, allreduce, hvd, mine

__all__ = ["main"]


def who() -> str:
    """Everything that a rank knows of its place."""
    local, cross = (hvd.local_rank(), hvd.local_size()), (hvd.cross_rank(), hvd.cross_size())
    return (
        f"rank {hvd.rank()}/{hvd.size()} local {local[0]}/{local[1]} cross {cross[0]}/{cross[1]} {hvd.is_homogeneous()}"
    )


def carry_out(word: str, *arguments: str) -> str:
    """The answer to one line."""
    if word == "init":
        hvd.init(*([list(map(int, arguments))] if arguments else []))
        return who()
    if word == "sum":
        return f"sum {allreduce(mine(1000), 'x')[0]:g}"
    if word == "rounds":
        for number in itertools.count():  # until one fails
            allreduce(mine(60_000), "y")
            if number == 50:
                print("rounds pass", file=sys.stderr, flush=True)
    if word == "gather":
        return f"gathered {allgather(np.full(1, hvd.rank(), np.int32)).tolist()}"
    if word == "become":
        os.setgroups([])
        os.setgid(int(arguments[0]))
        os.setuid(int(arguments[0]))
        return f"user {os.getuid()}"
    hvd.shutdown()
    return "left"


def main() -> None:
    """Until the end of stdin."""
    print(f"pid {os.getpid()}", flush=True)
    for line in sys.stdin:
        try:
            said = carry_out(*line.split())
        except Exception as error:
            said = f"{type(error).__name__}: {error}".replace("\n", " ")
        print(said, flush=True)


if __name__ == "__main__":
    main()
