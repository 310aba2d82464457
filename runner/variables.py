"""What variables in the launcher's environment mean here: each that has no effect gets a line, none is ignored silently."""

from __future__ import annotations

import os
from collections.abc import Mapping

from horovod.agent.helpers import helpers_problem
from horovod.runner.options import OPTIONS
from horovod.runner.settings import LEVELS, UsageProblem

__all__ = ["check_variables", "environment_notes"]

_NO_LIBRARY = "accepted without effect, no library is chosen at build time; tensors of a host's ranks are reduced in shared memory."
_AGENTS_CHOOSE = (
    "accepted without effect here: a host's ranks meet in shared memory, and what moves data between hosts is chosen where "
    "hvd-agent starts, by --plane or this variable."
)
_NO_TIMELINE = "accepted without effect: the timeline is not supported yet, nothing is written."
_NO_AUTOTUNE = "accepted without effect: there is nothing to tune yet."
_NO_GPU = "accepted without effect: NCCL is not used yet, tensors are reduced in host memory."
_NO_ELASTIC = "accepted without effect: elastic jobs are not supported yet."
_NO_GLOO = "accepted without effect: the launcher tells ranks where their agent is."
_NO_SPARK = "accepted without effect: Spark is not supported yet."

_MEANINGS: dict[str, str] = {
    # What an option says, its variable says too.
    **{option.variable: option.note for option in OPTIONS if option.variable and option.note},
    **{
        f"HOROVOD_{device}_{kind}": _NO_LIBRARY
        for device in ("GPU", "CPU")
        for kind in ("OPERATIONS", "ALLREDUCE", "ALLGATHER", "BROADCAST", "ALLTOALL", "REDUCESCATTER")
    },
    "HOROVOD_CPU_OPERATIONS": _AGENTS_CHOOSE,
    "HOROVOD_CPU_ALLREDUCE": _AGENTS_CHOOSE,
    "HOROVOD_CONTROLLER": "accepted without effect, there is one controller, this launcher.",
    "HOROVOD_TIMELINE": _NO_TIMELINE,
    "HOROVOD_TIMELINE_MARK_CYCLES": _NO_TIMELINE,
    "HOROVOD_AUTOTUNE": _NO_AUTOTUNE,
    "HOROVOD_AUTOTUNE_LOG": _NO_AUTOTUNE,
    "HOROVOD_AUTOTUNE_WARMUP_SAMPLES": _NO_AUTOTUNE,
    "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE": _NO_AUTOTUNE,
    "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES": _NO_AUTOTUNE,
    "HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE": _NO_AUTOTUNE,
    "HOROVOD_BATCH_D2D_MEMCOPIES": _NO_GPU,
    "HOROVOD_NUM_NCCL_STREAMS": _NO_GPU,
    "HOROVOD_ENABLE_ASYNC_COMPLETION": _NO_GPU,
    "HOROVOD_DISABLE_NVTX_RANGES": _NO_GPU,
    "HOROVOD_ENABLE_XLA_OPS": "accepted without effect: TensorFlow is not supported yet.",
    "HOROVOD_DISABLE_GROUP_FUSION": "accepted without effect: only tensors of one call are reduced together.",
    "HOROVOD_THREAD_AFFINITY": "accepted without effect: there is no background thread that computes; nothing is pinned.",
    "HOROVOD_ADASUM_MPI_CHUNK_SIZE": "accepted without effect: no MPI is used.",
    "HOROVOD_CCL_CACHE": "accepted without effect: oneCCL is not used.",
    "HOROVOD_GLOO_IFACE": "accepted without effect: hvd-agent chooses addresses, for the plane gloo too; see its --interface.",
    "HOROVOD_GLOO_RENDEZVOUS_ADDR": _NO_GLOO,
    "HOROVOD_GLOO_RENDEZVOUS_PORT": _NO_GLOO,
    "HOROVOD_ELASTIC": _NO_ELASTIC,
    "HOROVOD_ELASTIC_TIMEOUT": _NO_ELASTIC,
    "HOROVOD_SPARK_START_TIMEOUT": _NO_SPARK,
    "HOROVOD_SPARK_PYTHONPATH": _NO_SPARK,
    "HOROVOD_SPARK_WORK_DIR": _NO_SPARK,
    "HOROVOD_SPARK_USE_LOCAL_RANK_GPU_INDEX": _NO_SPARK,
}
# What switches something on: switched off, it asks for nothing.
_SWITCHES = frozenset(
    {
        "HOROVOD_TIMELINE_MARK_CYCLES",
        "HOROVOD_AUTOTUNE",
        "HOROVOD_BATCH_D2D_MEMCOPIES",
        "HOROVOD_ENABLE_ASYNC_COMPLETION",
        "HOROVOD_DISABLE_NVTX_RANGES",
        "HOROVOD_ENABLE_XLA_OPS",
        "HOROVOD_DISABLE_GROUP_FUSION",
        "HOROVOD_CCL_CACHE",
        "HOROVOD_ELASTIC",
        "HOROVOD_SPARK_USE_LOCAL_RANK_GPU_INDEX",
    }
)
# What the launcher itself stands for, and gives to ranks.
_HERE = {"HOROVOD_CONTROLLER": "gloo", "HOROVOD_CPU_OPERATIONS": "gloo"}
# Names of Horovod's tutorials, and our own.
_CPU_OPERATIONS = ("GLOO", "MPI", "CCL", "MLSL", "TCP")
_SIMD = ("avx512", "avx2", "baseline")


def environment_notes(environment: Mapping[str, str] | None = None, told: Mapping[str, str] | None = None) -> list[str]:
    """A line for each variable that changes nothing here.  ``told``: variables whose options have been explained.

    Inside a rank there are none: the launcher of that rank has said them.
    """
    environment = os.environ if environment is None else environment
    if environment.get("HVD_SLOT_NONCE"):
        return []
    return [
        f"{name}={environment[name]}: {meaning}"
        for name, meaning in _MEANINGS.items()
        if name not in (told or {}) and _asks(name, environment.get(name, "").strip())
    ] + _misread(environment)


def _asks(name: str, value: str) -> bool:
    return bool(value) and not (name in _SWITCHES and value == "0") and _HERE.get(name) != value.lower()


def _misread(environment: Mapping[str, str]) -> list[str]:
    """A line for each value that is taken for another."""
    notes = []
    level = environment.get("HOROVOD_LOG_LEVEL", "").strip()
    if level and level.upper() not in LEVELS:
        notes.append(f"HOROVOD_LOG_LEVEL={level}: must be one of {', '.join(LEVELS)}; WARNING is taken.")
    dynamic = environment.get("HOROVOD_DYNAMIC_PROCESS_SETS", "").strip()
    if dynamic and not dynamic.lstrip("+-").isdigit():
        notes.append(f"HOROVOD_DYNAMIC_PROCESS_SETS={dynamic}: must be 0 or 1; 0 is taken.")
    return notes


def check_variables(environment: Mapping[str, str]) -> None:
    """UsageProblem for a value of this launcher's own variables that makes no sense."""
    problem = helpers_problem(environment.get("HVD_HELPERS", ""))
    if problem:
        raise UsageProblem(problem)
    for name in ("HOROVOD_CPU_OPERATIONS", "HOROVOD_CPU_ALLREDUCE"):
        value = environment.get(name, "").strip()
        if value and value.upper() not in _CPU_OPERATIONS:
            raise UsageProblem(
                f"the environment variable {name} is {value!r}, but it must be one of {', '.join(_CPU_OPERATIONS)}"
            )
    simd = environment.get("HVD_SIMD", "")
    if simd and simd not in _SIMD:
        raise UsageProblem(
            f"the environment variable HVD_SIMD is {simd!r}, but it must be {', '.join(_SIMD[:2])} or {_SIMD[2]}"
        )
