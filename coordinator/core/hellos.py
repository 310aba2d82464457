"""What ranks say when they call init, compared: whether one epoch can be made of it."""

from __future__ import annotations

from horovod.coordinator.core.events import RankHello
from horovod.coordinator.core.job import Job
from horovod.coordinator.core.process_sets import fault

__all__ = ["disagreement"]


def disagreement(job: Job) -> str:
    """Why these Hellos can't form an epoch, empty when they can."""
    hellos = [record.hello for record in job.ranks if record.hello is not None]
    wishes = [tuple(tuple(sorted(item.ranks)) for item in hello.process_sets) for hello in hellos]
    for hello, wish in zip(hellos, wishes, strict=True):
        if hello.generation != hellos[0].generation and not job.attached:
            return (
                f"Rank {hello.rank} is at its hvd.init() number {hello.generation}, rank {hellos[0].rank} at number "
                f"{hellos[0].generation}. All ranks must call it equally often."
            )
        if wish != wishes[0]:
            return (
                f"Process sets given to hvd.init() differ: rank {hello.rank} has {[list(x) for x in wish]}, rank "
                f"{hellos[0].rank} has {[list(x) for x in wishes[0]]}. Pass the same list on all ranks."
            )
        if hello.dynamic_process_sets != hellos[0].dynamic_process_sets:
            return "HOROVOD_DYNAMIC_PROCESS_SETS is set on some ranks only. Set it on all or on none."
        if hello.extended_join != hellos[0].extended_join:
            return _join_modes_differ(hellos)
    faults = [fault(item.ranks, job.size) for item in (hellos[0].process_sets if hellos else ())]
    return next((reason for reason in faults if reason), "")


def _join_modes_differ(hellos: list[RankHello]) -> str:
    extended = ", ".join(str(hello.rank) for hello in hellos if hello.extended_join)
    default = ", ".join(str(hello.rank) for hello in hellos if not hello.extended_join)
    return (
        f"HOROVOD_JOIN_MODE differs: rank(s) {extended} have 'extended', rank(s) {default} have the default. Set it to the "
        "same on all ranks, before hvd.init()."
    )
