"""What ranks say when they call init, compared: whether one epoch can be made of it."""

from __future__ import annotations

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
    faults = [fault(item.ranks, job.size) for item in (hellos[0].process_sets if hellos else ())]
    return next((reason for reason in faults if reason), "")
