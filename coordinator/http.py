"""What a coordinator shows over HTTP."""

from __future__ import annotations

from collections.abc import Callable

from horovod.coordinator.metrics import CoordinatorState, Facts, coordinator_collector
from horovod.coordinator.snapshot import coordinator_snapshot
from horovod.observe.http import Pages
from horovod.observe.metrics import registry
from horovod.observe.process import process_collector

__all__ = ["coordinator_pages"]


def coordinator_pages(
    core: CoordinatorState,
    clock: Callable[[], float],
    is_listening: Callable[[], bool],
    facts: Facts | None = None,
    lag_s: Callable[[], float] | None = None,
) -> Pages:
    """Ready means that agents can connect; ``clock`` is the one that the core's events are stamped with."""

    def reason_not_ready() -> str:
        return "" if is_listening() else "agents can't connect yet"

    collectors = (coordinator_collector(core, clock, facts), process_collector("coordinator", clock, lag_s))
    return Pages(registry(*collectors), reason_not_ready, lambda: coordinator_snapshot(core, clock()))
