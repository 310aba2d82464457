"""What Horovod 0.28 offers TensorFlow and Keras users, module by module: names, arguments in order, defaults.

``PS`` stands for the global process set, ``none`` for ``Compression.none``, ``Average`` and ``Sum`` for reductions.
``CHANGED`` are the signatures that differ from Horovod's on purpose.
"""

from __future__ import annotations

from tests.surface import BASICS, PROCESS_SETS

__all__ = ["CALLBACKS", "CHANGED", "NAMES", "SURFACE"]

_DEVICES = "device_dense='', device_sparse=''"
_FACTORS = "prescale_factor=1.0, postscale_factor=1.0"
_SCOPED = "ignore_name_scope=False, process_set=PS"
_QUESTIONS = {
    "size_op": "process_set_id=0, name=None",
    "process_set_included_op": "process_set_id=0, name=None",
    "rank_op": "name=None",
    "local_rank_op": "name=None",
    "local_size_op": "name=None",
}
_MOVES = {
    "allgather": f"tensor, name=None, {_SCOPED}",
    "grouped_allgather": f"tensors, name=None, {_SCOPED}",
    "broadcast": f"tensor, root_rank, name=None, {_SCOPED}",
    "broadcast_": "variables, root_rank, name=None, process_set=PS",
    "alltoall": f"tensor, splits=None, name=None, {_SCOPED}",
    "join": "",
}
_REDUCTIONS = {
    "allreduce": f"tensor, average=None, {_DEVICES}, compression=none, op=None, {_FACTORS}, name=None, process_set=PS, "
    "ignore_name_scope=False",
    "grouped_allreduce": f"tensors, average=None, {_DEVICES}, compression=none, op=None, {_FACTORS}, process_set=PS, "
    "ignore_name_scope=False, name=None",
    "reducescatter": "tensor, device_dense='', compression=none, op=Average, name=None, process_set=PS, "
    f"ignore_name_scope=False, {_FACTORS}",
    "grouped_reducescatter": f"tensors, device_dense='', compression=none, op=Average, process_set=PS, {_FACTORS}",
}
_UNDERSCORED = {
    "_allreduce": f"tensor, name=None, op=Sum, {_FACTORS}, {_SCOPED}",
    "_grouped_allreduce": f"tensors, name=None, op=Sum, {_FACTORS}, {_SCOPED}",
    "_reducescatter": f"tensor, name=None, op=Sum, {_SCOPED}, {_FACTORS}",
    "_grouped_reducescatter": f"tensors, name=None, op=Sum, {_SCOPED}, {_FACTORS}",
}
_STATE = {
    "broadcast_variables": "variables, root_rank, process_set=PS, inplace=False",
    "broadcast_object": "obj, root_rank=0, session=None, name=None, process_set=PS",
    "broadcast_object_fn": "root_rank=0, session=None, name=None, process_set=PS",
    "allgather_object": "obj, session=None, name=None, process_set=PS",
}
_TAPE = (
    f"gradtape, {_DEVICES}, compression=none, sparse_as_dense=False, op=Average, gradient_predivide_factor=1.0, "
    "num_groups=0, groups=None, process_set=PS"
)
_HELPER = "backward_passes_per_step, allreduce_func, sparse_as_dense, average_aggregated_gradients"
_HELPERS = {
    "LocalGradientAggregationHelper": f"{_HELPER}, rank, optimizer_type, process_set=PS, scale_local_gradients=True, "
    "name=''",
}
_WRAPPERS = {
    "DistributedOptimizer": f"optimizer, name=None, use_locking=False, {_DEVICES}, compression=none, "
    "sparse_as_dense=False, backward_passes_per_step=1, op=Average, gradient_predivide_factor=1.0, "
    "average_aggregated_gradients=False, num_groups=0, groups=None, process_set=PS, scale_local_gradients=True",
    "DistributedGradientTape": f"{_TAPE}, scale_local_gradients=True",
    "PartialDistributedGradientTape": f"{_TAPE}, local_layers=None, scale_local_gradients=True",
    "BroadcastGlobalVariablesHook": "root_rank, device=''",
    "broadcast_global_variables": "root_rank",
    "SyncBatchNormalization": "fused=False, **kwargs",
}
_COMMON = {
    "is_homogeneous": "",
    "check_num_rank_power_of_2": "num_rank",
    "gpu_available": "ext_base_name, verbose=False",
    "split_list": "items, num_parts",
    "handle_average_backwards_compatibility": "op, average",
}
_GRADIENTS = "gradient_predivide_factor=1.0, op=Average"
_WRAPPED = f"optimizer, name=None, {_DEVICES}, compression=none, sparse_as_dense=False, {_GRADIENTS}"
_PASSES = "backward_passes_per_step=1, average_aggregated_gradients=False"
_KERAS = {
    "allgather": "value, name=None",
    "broadcast": "value, root_rank, name=None",
    "reducescatter": "value, name=None, op=Average",
    "broadcast_global_variables": "root_rank",
    "load_model": "filepath, custom_optimizers=None, custom_objects=None, compression=none, legacy_opts=False",
}
CALLBACKS = {
    "BroadcastGlobalVariablesCallback": "root_rank, device='', local_variables=None",
    "MetricAverageCallback": "device=''",
    "LearningRateScheduleCallback": "initial_lr, multiplier, start_epoch=0, end_epoch=None, staircase=True, "
    "momentum_correction=True, steps_per_epoch=None",
    "LearningRateWarmupCallback": "initial_lr, warmup_epochs=5, momentum_correction=True, steps_per_epoch=None, verbose=0",
    "BestModelCheckpoint": "monitor='val_loss', verbose=0, save_weights_only=False, mode='auto', save_freq='epoch'",
}

_ELASTIC = {
    "run": "func",
    "KerasState": "model, optimizer=None, **kwargs",
    "CommitStateCallback": "state, batches_per_commit=1",
    "UpdateBatchStateCallback": "state",
    "UpdateEpochStateCallback": "state",
}

SURFACE: dict[str, dict[str, str]] = {
    "horovod.tensorflow": {
        **BASICS, **PROCESS_SETS, **_QUESTIONS, **_MOVES, **_REDUCTIONS, **_UNDERSCORED, **_STATE, **_HELPERS,
        **_WRAPPERS, **_COMMON,
        "_make_allreduce_grads_fn": f"name, {_DEVICES.replace(chr(61) + chr(39) * 2, '')}, compression, sparse_as_dense, "
        "op, gradient_predivide_factor, groups, process_set=PS",
        "_allreduce_cond": "tensor, *args, process_set=PS, **kwargs",
        "_executing_eagerly": "",
    },
    "horovod.tensorflow.mpi_ops": {
        **BASICS, **_QUESTIONS, **_MOVES, **_UNDERSCORED,
        "is_homogeneous": "",
        "handle_average_backwards_compatibility": "op, average",
    },
    "horovod.tensorflow.functions": _STATE,
    "horovod.tensorflow.util": {
        "_cache": "function", "_executing_eagerly": "", "_make_subgraph": "function", "vars_to_refs": "variables",
        "refs_to_vars": "references",
    },
    "horovod.tensorflow.gradient_aggregation": _HELPERS,
    "horovod.tensorflow.gradient_aggregation_eager": {
        "LocalGradientAggregationHelperEager": f"{_HELPER}, process_set=PS, scale_local_gradients=True",
    },
    "horovod.tensorflow.elastic": {
        "run": "func",
        "TensorFlowState": "variables=None, session=None, **kwargs",
        "TensorFlowKerasState": "model, optimizer=None, backend=None, **kwargs",
    },
    "horovod.tensorflow.keras.elastic": _ELASTIC,
    "horovod.keras.elastic": _ELASTIC,
    "horovod.tensorflow.sync_batch_norm": {"SyncBatchNormalization": "fused=False, **kwargs"},
    "horovod.tensorflow.keras": {
        **BASICS, **PROCESS_SETS, **_KERAS,
        "DistributedOptimizer": f"{_WRAPPED}, {_PASSES}, num_groups=0, groups=None, process_set=PS, "
        "scale_local_gradients=True",
        "allreduce": f"value, name=None, average=None, {_FACTORS}, op=None, compression=none",
    },
    "horovod.keras": {
        **BASICS, **_KERAS,
        "DistributedOptimizer": f"{_WRAPPED}, num_groups=0, groups=None",
        "PartialDistributedOptimizer": f"{_WRAPPED}, {_PASSES}, groups=None, process_set=PS, local_layers=None, "
        "scale_local_gradients=True",
        "allreduce": f"value, name=None, average=True, {_FACTORS}, op=None, compression=none",
    },
    "horovod.tensorflow.keras.callbacks": CALLBACKS,
    "horovod.keras.callbacks": {**CALLBACKS, "BestModelCheckpoint": "monitor='val_loss', verbose=0, mode='auto', "
                                "save_freq='epoch'"},
}  # fmt: skip

_VALUE = f"value, name=None, average=None, {_FACTORS}, op=None, compression=None"
CHANGED = {
    # With average=True an op could only be given together with average=None.
    ("horovod.keras", "allreduce"): _VALUE,
    # None means Compression.none of the backend that Keras runs on.
    ("horovod.tensorflow.keras", "allreduce"): _VALUE,
    # Saving weights only is worth having here, too.
    (
        "horovod.keras.callbacks",
        "BestModelCheckpoint",
    ): "monitor='val_loss', verbose=0, mode='auto', save_freq='epoch', save_weights_only=False",
}

# What else is offered: constants, modules, objects.
NAMES = {
    "horovod.tensorflow": [
        "Adasum", "Average", "Compression", "Max", "Min", "Product", "Sum", "_IS_TF2", "elastic", "global_process_set", "mpi_ops",
        "util",
    ],
    "horovod.tensorflow.mpi_ops": ["_basics", "Average", "Sum", "Adasum", "Min", "Max", "Product"],
    "horovod.tensorflow.keras": ["Average", "Compression", "Sum", "callbacks", "elastic", "global_process_set"],
    "horovod.keras": ["Adasum", "Average", "Compression", "Sum", "callbacks", "elastic", "global_process_set"],
}  # fmt: skip
