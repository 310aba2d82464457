"""Every operation under the module name that scripts know, and the basic calls.

The name is history: no MPI is involved.
"""

from __future__ import annotations

import torch

from horovod.common.basics import HorovodBasics
from horovod.common.exceptions import HorovodInternalError
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.common.types import CollectiveKind, ReduceOp
from horovod.torch.gather_ops import (
    allgather,
    allgather_async,
    alltoall,
    alltoall_async,
    broadcast,
    broadcast_,
    broadcast_async,
    broadcast_async_,
    grouped_allgather,
    grouped_allgather_async,
)
from horovod.torch.pending import handles, poll, require_client, synchronize
from horovod.torch.reduce_ops import (
    allreduce,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    grouped_allreduce,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
    handle_average_backwards_compatibility,
)
from horovod.torch.scatter_ops import (
    grouped_reducescatter,
    grouped_reducescatter_async,
    reducescatter,
    reducescatter_async,
)
from horovod.torch.signatures import make_signature, set_id_of
from horovod.torch.sparse import forget_densities, sparse_allreduce_async

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
is_homogeneous = _basics.is_homogeneous
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
    "allgather",
    "allgather_async",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "handle_average_backwards_compatibility",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "poll",
    "rank",
    "reducescatter",
    "reducescatter_async",
    "rocm_built",
    "shutdown",
    "size",
    "sparse_allreduce_async",
    "start_timeline",
    "stop_timeline",
    "synchronize",
]


def join(device: int = -1) -> int:
    """This rank has no more data: it contributes zeros to allreduces until all ranks have joined.

    With HOROVOD_JOIN_MODE=extended it takes part in every operation, with nothing.  Returns the rank that joined last, the
    same everywhere.  ``device`` is accepted and not used.
    """
    handle = handles.advance()
    last = require_client().join()
    forget_densities()
    _count_alike(handle)
    return last


def _count_alike(handle: int) -> None:
    """Ranks made different numbers of calls while some had joined: from here on their automatic names are the same."""
    highest = torch.tensor([handle], device="cpu")
    signature = make_signature(
        CollectiveKind.ALLREDUCE, "join.handles", highest.dtype, [highest.shape], 0, op=ReduceOp.MAX
    )
    address = highest.data_ptr()
    require_client().reduce(signature, ((address, address, highest.nbytes),), blocking=True, keep=highest).wait()
    handles.advance_to(int(highest) + 2)  # one more than any rank has used, the look at the counter included


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Returns when all ranks of the set have called it."""
    handles.advance()
    signature = make_signature(CollectiveKind.BARRIER, "barrier", torch.uint8, (), set_id_of(process_set))
    require_client().reduce(signature, (), blocking=True).wait()
