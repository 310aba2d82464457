"""Horovod for tf.keras: ``import horovod.tensorflow.keras as hvd``."""

from __future__ import annotations

from typing import Any

import horovod.tensorflow  # says what to install where TensorFlow is missing  # noqa: F401  # isort: split
from horovod._keras import values
from horovod._keras.values import (
    allgather,
    allreduce,
    broadcast,
    broadcast_global_variables,
    reducescatter,
)
from horovod.common.basics import HorovodBasics
from horovod.common.process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set
from horovod.tensorflow.compression import Compression, Compressor
from horovod.tensorflow.keras import callbacks, elastic
from horovod.tensorflow.mpi_ops import cross_rank, cross_size, is_initialized, local_rank, local_size, rank, size

_basics = HorovodBasics()

init = _basics.init
shutdown = _basics.shutdown
start_timeline = _basics.start_timeline
stop_timeline = _basics.stop_timeline
mpi_threads_supported = _basics.mpi_threads_supported
mpi_enabled = _basics.mpi_enabled
mpi_built = _basics.mpi_built
gloo_enabled = _basics.gloo_enabled
gloo_built = _basics.gloo_built
nccl_built = _basics.nccl_built
ddl_built = _basics.ddl_built
ccl_built = _basics.ccl_built
cuda_built = _basics.cuda_built
rocm_built = _basics.rocm_built

Average = _basics.Average
Sum = _basics.Sum

__all__ = [
    "Average",
    "Compression",
    "DistributedOptimizer",
    "ProcessSet",
    "Sum",
    "add_process_set",
    "allgather",
    "allreduce",
    "broadcast",
    "broadcast_global_variables",
    "callbacks",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "elastic",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "init",
    "is_initialized",
    "load_model",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "reducescatter",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]


def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Makes this Keras optimizer reduce gradients over the ranks before it clips and applies them, and returns it.

    Gradients of ``backward_passes_per_step`` passes are summed (or averaged) here before.  ``groups``: lists of
    variables, or how many lists, that are reduced together.  Names and devices are accepted and not used.  Raises
    ValueError for arguments that contradict each other.
    """
    return values.wrap(
        optimizer, compression, sparse_as_dense, gradient_predivide_factor, op, backward_passes_per_step,
        average_aggregated_gradients, values.choose_groups(num_groups, groups), process_set, scale_local_gradients,
    )  # fmt: skip


def load_model(
    filepath: Any,
    custom_optimizers: Any = None,
    custom_objects: dict[str, Any] | None = None,
    compression: type[Compressor] = Compression.none,
    legacy_opts: bool = False,
) -> Any:
    """The model of this file, its optimizer a distributed one with the state that was saved.

    ``custom_optimizers``: classes that the file names.  ``legacy_opts`` is accepted and not used.
    """
    return values.load_model(filepath, custom_optimizers, custom_objects, compression)
