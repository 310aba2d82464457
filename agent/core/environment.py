"""The variables that a rank finds: Horovod's names, so that scripts and libraries that read them keep working."""

from __future__ import annotations

from collections.abc import Mapping

from horovod.agent.core.values import RankPlace


def rank_environment(job: Mapping[str, str], place: RankPlace, size: int, address: str, nonce: str) -> dict[str, str]:
    """The job's environment with what belongs to one slot; what the user has set of the last block stays."""
    own = {
        "HOROVOD_HOSTNAME": place.host,
        "HOROVOD_RANK": str(place.rank),
        "HOROVOD_SIZE": str(size),
        "HOROVOD_LOCAL_RANK": str(place.local_rank),
        "HOROVOD_LOCAL_SIZE": str(place.local_size),
        "HOROVOD_CROSS_RANK": str(place.cross_rank),
        "HOROVOD_CROSS_SIZE": str(place.cross_size),
        "HOROVOD_AGENT": address,
        "HVD_SLOT_NONCE": nonce,
    }
    defaults = {"HOROVOD_CONTROLLER": "gloo", "HOROVOD_CPU_OPERATIONS": "gloo", "PYTHONUNBUFFERED": "1"}
    return {**defaults, **job, **own}
