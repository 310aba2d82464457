"""What Horovod 0.28 offers alike in the modules of all frameworks: names, arguments in order, defaults."""

from __future__ import annotations

__all__ = ["BASICS", "PROCESS_SETS"]

BASICS = {
    "init": "comm=None, process_sets=None",
    "start_timeline": "file_path, mark_cycles=False",
    **dict.fromkeys(
        (
            "shutdown", "is_initialized", "stop_timeline", "size", "local_size", "cross_size", "rank", "local_rank",
            "cross_rank", "mpi_threads_supported", "mpi_enabled", "mpi_built", "gloo_enabled", "gloo_built",
            "nccl_built", "ddl_built", "ccl_built", "cuda_built", "rocm_built",
        ),
        "",
    ),
}  # fmt: skip
PROCESS_SETS = {
    "ProcessSet": "ranks_or_comm",
    "add_process_set": "process_set",
    "remove_process_set": "process_set",
}
