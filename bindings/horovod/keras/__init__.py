"""Horovod for Keras 3 on the tensorflow, torch or jax backend: ``import horovod.keras as hvd``."""

from __future__ import annotations

try:
    import keras as _keras
except ModuleNotFoundError as error:
    if error.name not in ("keras", "tensorflow", "torch", "jax"):
        raise
    raise ModuleNotFoundError(
        f"horovod.keras needs Keras and the framework of its backend; {error.name} is not installed here: "
        "pip install 'hvd[tensorflow]', or pip install keras torch and set KERAS_BACKEND=torch. "
        "Gradients can be reduced on the backends tensorflow, torch and jax.",
        name=error.name,
    ) from error

from typing import TYPE_CHECKING, Any

from horovod._keras import values
from horovod._keras.backends import binding
from horovod._keras.values import (
    allgather,
    allreduce,
    broadcast,
    broadcast_global_variables,
    reducescatter,
)
from horovod.common.basics import HorovodBasics
from horovod.common.missing import missing_attribute
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.keras import callbacks, elastic

_basics = HorovodBasics()

init = _basics.init
shutdown = _basics.shutdown
is_initialized = _basics.is_initialized
start_timeline = _basics.start_timeline
stop_timeline = _basics.stop_timeline
size = _basics.size
local_size = _basics.local_size
cross_size = _basics.cross_size
rank = _basics.rank
local_rank = _basics.local_rank
cross_rank = _basics.cross_rank
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
Adasum = _basics.Adasum

Compression = binding().Compression

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DistributedOptimizer",
    "PartialDistributedOptimizer",
    "Sum",
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
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = Average,
    num_groups: int = 0,
    groups: Any = None,
) -> Any:
    """Makes this Keras optimizer reduce gradients over the ranks before it clips and applies them, and returns it.

    ``groups``: lists of variables, or how many lists, that are reduced together.  Names and devices are accepted and
    not used.  Raises ValueError for arguments that contradict each other.
    """
    return values.wrap(
        optimizer, compression, sparse_as_dense, gradient_predivide_factor, op, 1, False,
        values.choose_groups(num_groups, groups), global_process_set, True,
    )  # fmt: skip


def PartialDistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> Any:
    """As DistributedOptimizer; weights of ``local_layers`` (a built layer or a list of them) stay on this rank.

    Their gradients are divided by the set's size with ``scale_local_gradients``.
    """
    wrapped = values.wrap(
        optimizer, compression, sparse_as_dense, gradient_predivide_factor, op, backward_passes_per_step,
        average_aggregated_gradients, groups, process_set, scale_local_gradients,
    )  # fmt: skip
    return values.register_local_layers(wrapped, local_layers)


def load_model(
    filepath: Any,
    custom_optimizers: Any = None,
    custom_objects: dict[str, Any] | None = None,
    compression: Any = Compression.none,
    legacy_opts: bool = False,
) -> Any:
    """The model of this file, its optimizer a distributed one with the state that was saved.

    ``custom_optimizers``: classes that the file names.  ``legacy_opts`` is accepted and not used.
    """
    return values.load_model(filepath, custom_optimizers, custom_objects, compression)


_KERAS_3 = not _keras.__version__.startswith(("1.", "2."))

if not TYPE_CHECKING:  # checkers find what is missing themselves

    def __getattr__(name: str) -> object:
        raise missing_attribute(__name__, name)
