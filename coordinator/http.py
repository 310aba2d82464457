"""What a coordinator shows over HTTP."""

from __future__ import annotations

import time
from collections.abc import Callable

from horovod.coordinator.metrics import CoordinatorState, Facts, coordinator_collector
from horovod.coordinator.service import Service
from horovod.coordinator.snapshot import coordinator_snapshot
from horovod.observe.http import HttpServer, Pages
from horovod.observe.loop import LoopWatch
from horovod.observe.metrics import registry
from horovod.observe.process import process_collector

__all__ = ["coordinator_pages", "coordinator_server"]


def coordinator_server(service: Service, is_listening: Callable[[], bool], host: str, port: int) -> HttpServer:
    """Shows a service; OSError when the port can't be had."""
    watch = LoopWatch()
    facts = Facts(service.agents.silence, lambda: service.agents.reconnects, lambda: service.desk.waiting)
    pages = coordinator_pages(service.core, time.monotonic, is_listening, facts, lambda: watch.lag_s)
    return HttpServer(pages, host, port, watch=watch)


def coordinator_pages(
    core: CoordinatorState,
    clock: Callable[[], float],
    is_listening: Callable[[], bool],
    facts: Facts | None = None,
    lag_s: Callable[[], float] | None = None,
) -> Pages:
    """Ready means that agents can connect; ``clock`` is the one that the core's events are stamped with."""

    def reason_not_ready() -> str:
        if not is_listening():
            return "agents can't connect yet"
        return "agents of an earlier coordinator are awaited" if core.adoption is not None else ""

    collectors = (coordinator_collector(core, clock, facts), process_collector("coordinator", clock, lag_s))
    return Pages(registry(*collectors), reason_not_ready, lambda: coordinator_snapshot(core, clock()))
