"""What Horovod 0.28 offers PyTorch users, module by module: names, arguments in order, defaults.

``PS`` stands for the global process set, ``none`` for ``Compression.none``, ``Average`` for the reduction.  ``MORE`` are
the arguments that this package adds at the end, each with a default, so that no call of a user changes its meaning.
"""

from __future__ import annotations

from tests.surface import BASICS, PROCESS_SETS

__all__ = ["CONSTANTS", "MORE", "NAMES", "SURFACE"]

_FACTORS = "prescale_factor=1.0, postscale_factor=1.0"
_REDUCE = f"average=None, name=None, op=None, {_FACTORS}, process_set=PS"
_REDUCE_COMPRESSED = f"average=None, name=None, compression=none, op=None, {_FACTORS}, process_set=PS"
_SCATTER = f"name=None, op=Average, process_set=PS, {_FACTORS}"
_SCATTER_COMPRESSED = f"name=None, compression=none, op=Average, process_set=PS, {_FACTORS}"
_GATHER = "name=None, process_set=PS"

_OPERATIONS = {
    "allreduce": f"tensor, {_REDUCE_COMPRESSED}",
    "allreduce_async": f"tensor, {_REDUCE}",
    "allreduce_": f"tensor, {_REDUCE}",
    "allreduce_async_": f"tensor, {_REDUCE}",
    "grouped_allreduce": f"tensors, {_REDUCE_COMPRESSED}",
    "grouped_allreduce_async": f"tensors, {_REDUCE}",
    "grouped_allreduce_": f"tensors, {_REDUCE}",
    "grouped_allreduce_async_": f"tensors, {_REDUCE}",
    "sparse_allreduce_async": "tensor, name, op, process_set=PS",
    "allgather": f"tensor, {_GATHER}",
    "allgather_async": f"tensor, {_GATHER}",
    "grouped_allgather": f"tensors, {_GATHER}",
    "grouped_allgather_async": f"tensors, {_GATHER}",
    "broadcast": f"tensor, root_rank, {_GATHER}",
    "broadcast_": f"tensor, root_rank, {_GATHER}",
    "broadcast_async": f"tensor, root_rank, {_GATHER}",
    "broadcast_async_": f"tensor, root_rank, {_GATHER}",
    "alltoall": f"tensor, splits=None, {_GATHER}",
    "alltoall_async": f"tensor, splits=None, {_GATHER}",
    "reducescatter": f"tensor, {_SCATTER_COMPRESSED}",
    "reducescatter_async": f"tensor, {_SCATTER}",
    "grouped_reducescatter": f"tensors, {_SCATTER_COMPRESSED}",
    "grouped_reducescatter_async": f"tensors, {_SCATTER}",
    "join": "device=-1",
    "barrier": "process_set=PS",
    "poll": "handle",
    "synchronize": "handle",
}
_STATE = {
    "broadcast_parameters": "params, root_rank",
    "broadcast_optimizer_state": "optimizer, root_rank, model=None",
    "broadcast_object": "obj, root_rank=0, name=None, process_set=PS",
    "allgather_object": "obj, name=None",
}
_OPTIMIZER = {
    "DistributedOptimizer": "optimizer, named_parameters=None, compression=none, backward_passes_per_step=1, op=Average, "
    "gradient_predivide_factor=1.0, num_groups=0, groups=None, sparse_as_dense=False, process_set=PS",
}
_BATCH_NORM = {"SyncBatchNorm": "num_features, eps=1e-05, momentum=0.1, affine=True, track_running_stats=True"}

SURFACE: dict[str, dict[str, str]] = {
    "horovod.torch": {**_OPERATIONS, **BASICS, **PROCESS_SETS, **_STATE, **_OPTIMIZER, **_BATCH_NORM},
    "horovod.torch.mpi_ops": {
        **_OPERATIONS,
        **BASICS,
        "is_homogeneous": "",
        "handle_average_backwards_compatibility": "op, average",
    },
    "horovod.torch.functions": _STATE,
    "horovod.torch.optimizer": _OPTIMIZER,
    "horovod.torch.sync_batch_norm": _BATCH_NORM,
    "horovod.torch.elastic": {
        "ElasticSampler": "dataset, shuffle=True, seed=0",
        "TorchState": "model=None, optimizer=None, **kwargs",
        "run": "func",
    },
    "horovod.torch.elastic.sampler": {"ElasticSampler": "dataset, shuffle=True, seed=0"},
    "horovod.torch.elastic.state": {
        "TorchState": "model=None, optimizer=None, **kwargs",
        "get_handler_registry": "",
        "set_handler_registry": "registry",
        **dict.fromkeys(("StateHandler", "ModelStateHandler", "OptimizerStateHandler", "SamplerStateHandler"), "value"),
    },
    "horovod.common.elastic": {
        "State": "bcast_object, get_rank",
        "ObjectState": "bcast_object, get_rank, **kwargs",
        "run_fn": "func, reset",
    },
    "horovod.data": {
        "BaseDataLoader": "",
        "AsyncDataLoaderMixin": "async_loader_queue_size=64, debug_data_loader=False, *args, **kwargs",
    },
    "horovod.common.util": {
        "env": "**values",
        "_cache": "function",
        "extension_available": "ext_base_name, verbose=False",
        "gpu_available": "ext_base_name, verbose=False",
        "gloo_built": "verbose=False",
        "mpi_built": "verbose=False",
        "nccl_built": "verbose=False",
        "ddl_built": "verbose=False",
        "ccl_built": "verbose=False",
        "check_extension": "ext_name, ext_env_var='', pkg_path='', *args",
        "check_installed_version": "name, version, exception=None",
        "get_average_backwards_compatibility_fun": "reduce_ops",
        "num_rank_is_power_2": "num_rank",
        "split_list": "items, num_parts",
        "is_iterable": "value",
        "is_version_greater_equal_than": "ver, target",
    },
    "horovod.common.process_sets": {
        **PROCESS_SETS,
        "_setup": "basics",
        "_init_process_sets": "process_set_list",
        "_temp_process_set_object": "process_set_id",
    },
    "horovod.common.exceptions": {
        "HostsUpdatedInterrupt": "skip_sync=False",
        "HorovodVersionMismatchError": "name, version, installed_version",
        "get_version_mismatch_message": "name, version, installed_version",
    },
}

# Arguments that come behind those of the catalogue.
MORE = {
    "allgather_object": "process_set=PS",
    "SyncBatchNorm": "process_set=PS",
}

CONSTANTS = {"Average": 0, "Sum": 1, "Adasum": 2, "Min": 3, "Max": 4, "Product": 5}
# What else is offered.
NAMES = {"horovod.torch": ["Compression", "HorovodInternalError", "elastic", "global_process_set", *CONSTANTS]}
