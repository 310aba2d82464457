"""Every operation under the module name that scripts know, and the basic calls.

The name is history: no MPI is involved.
"""

from __future__ import annotations

from horovod.common.basics import HorovodBasics
from horovod.common.exceptions import HorovodInternalError
from horovod.common.process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set
from horovod.common.util import check_num_rank_power_of_2, gpu_available, split_list
from horovod.tensorflow.bridge import unconverted
from horovod.tensorflow.functions import (
    barrier,
    join,
    local_rank_op,
    local_size_op,
    process_set_included_op,
    rank_op,
    size_op,
)
from horovod.tensorflow.gather_ops import allgather, alltoall, broadcast, broadcast_, grouped_allgather
from horovod.tensorflow.reduce_ops import allreduce, grouped_allreduce, handle_average_backwards_compatibility
from horovod.tensorflow.scatter_ops import grouped_reducescatter, reducescatter
from horovod.tensorflow.underscored import (  # noqa: F401
    _allreduce,
    _grouped_allreduce,
    _grouped_reducescatter,
    _reducescatter,
)

_basics = HorovodBasics()

init = _basics.init
shutdown = _basics.shutdown
is_initialized = unconverted(_basics.is_initialized)
start_timeline = _basics.start_timeline
stop_timeline = _basics.stop_timeline
size = unconverted(_basics.size)
local_size = unconverted(_basics.local_size)
cross_size = unconverted(_basics.cross_size)
rank = unconverted(_basics.rank)
local_rank = unconverted(_basics.local_rank)
cross_rank = unconverted(_basics.cross_rank)
is_homogeneous = unconverted(_basics.is_homogeneous)
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
Min = _basics.Min
Max = _basics.Max
Product = _basics.Product

__all__ = [
    "Adasum",
    "Average",
    "HorovodInternalError",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "Sum",
    "add_process_set",
    "allgather",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_",
    "ccl_built",
    "check_num_rank_power_of_2",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "gpu_available",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "handle_average_backwards_compatibility",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_rank_op",
    "local_size",
    "local_size_op",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "process_set_included_op",
    "rank",
    "rank_op",
    "reducescatter",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "size_op",
    "split_list",
    "start_timeline",
    "stop_timeline",
]
