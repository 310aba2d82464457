"""Metrics that every daemon has: what it is, and what its process uses."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import horovod
import psutil
from horovod.observe.metrics import Sample, StateCollector, counter, gauge

__all__ = ["TABLE", "process_collector"]

BUILD = gauge("hvd_build_info", "Always 1; the labels say what runs here.", "service", "version")
UPTIME = gauge("hvd_uptime_seconds", "Since the process started.")
CPU = counter("hvd_process_cpu_seconds_total", "User and system time of all threads.")
RESIDENT = gauge(
    "hvd_process_resident_bytes", "Memory of the process; what an agent shares with its ranks is counted here too."
)
DESCRIPTORS = gauge("hvd_process_open_descriptors", "Open file descriptors.")
THREADS = gauge("hvd_process_threads", "Threads.")
LAG = gauge("hvd_loop_lag_seconds", "How late the event loop was at most in the last 15 s.")
TABLE = (BUILD, UPTIME, CPU, RESIDENT, DESCRIPTORS, THREADS, LAG)


def process_collector(
    service: str, clock: Callable[[], float], lag_s: Callable[[], float] | None = None
) -> StateCollector:
    """Of this process; ``clock`` counts from now on, ``lag_s`` is that of its loop, if somebody watches it."""
    process, started = psutil.Process(), clock()

    def read() -> Iterator[Sample]:
        yield BUILD.at(1, service, horovod.__version__)
        yield UPTIME.at(clock() - started)
        times = process.cpu_times()
        yield CPU.at(times.user + times.system)
        yield RESIDENT.at(process.memory_info().rss)
        yield DESCRIPTORS.at(process.num_fds())
        yield THREADS.at(process.num_threads())
        if lag_s is not None:
            yield LAG.at(lag_s())

    return StateCollector(TABLE, read)
