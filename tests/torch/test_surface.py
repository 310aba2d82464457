"""Names and signatures of the public surface, and the refusals that need no second rank."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
from collections.abc import Iterator

import horovod.torch as hvd
import numpy as np
import pytest
import torch
from horovod.torch import compression, functions, mpi_ops, optimizer

PS = hvd.global_process_set
REDUCE = [
    ("average", None), ("name", None), ("op", None), ("prescale_factor", 1.0), ("postscale_factor", 1.0),
    ("process_set", PS),
]  # fmt: skip
COMPRESSED = [*REDUCE[:2], ("compression", hvd.Compression.none), *REDUCE[2:]]
GATHER = [("name", None), ("process_set", PS)]
SCATTER = [
    ("name", None), ("op", hvd.Average), ("process_set", PS), ("prescale_factor", 1.0), ("postscale_factor", 1.0),
]  # fmt: skip
ROOT = [("root_rank", ...), *GATHER]
SPLITS = [("splits", None), *GATHER]

SIGNATURES = {
    "allreduce": [("tensor", ...), *COMPRESSED],
    "allreduce_async": [("tensor", ...), *REDUCE],
    "allreduce_": [("tensor", ...), *REDUCE],
    "allreduce_async_": [("tensor", ...), *REDUCE],
    "grouped_allreduce": [("tensors", ...), *COMPRESSED],
    "grouped_allreduce_async": [("tensors", ...), *REDUCE],
    "grouped_allreduce_": [("tensors", ...), *REDUCE],
    "grouped_allreduce_async_": [("tensors", ...), *REDUCE],
    "sparse_allreduce_async": [("tensor", ...), ("name", ...), ("op", ...), ("process_set", PS)],
    "allgather": [("tensor", ...), *GATHER],
    "allgather_async": [("tensor", ...), *GATHER],
    "grouped_allgather": [("tensors", ...), *GATHER],
    "grouped_allgather_async": [("tensors", ...), *GATHER],
    "broadcast": [("tensor", ...), *ROOT],
    "broadcast_": [("tensor", ...), *ROOT],
    "broadcast_async": [("tensor", ...), *ROOT],
    "broadcast_async_": [("tensor", ...), *ROOT],
    "alltoall": [("tensor", ...), *SPLITS],
    "alltoall_async": [("tensor", ...), *SPLITS],
    "reducescatter": [("tensor", ...), SCATTER[0], ("compression", hvd.Compression.none), *SCATTER[1:]],
    "reducescatter_async": [("tensor", ...), *SCATTER],
    "grouped_reducescatter": [("tensors", ...), SCATTER[0], ("compression", hvd.Compression.none), *SCATTER[1:]],
    "grouped_reducescatter_async": [("tensors", ...), *SCATTER],
    "join": [("device", -1)],
    "barrier": [("process_set", PS)],
    "poll": [("handle", ...)],
    "synchronize": [("handle", ...)],
    "broadcast_parameters": [("params", ...), ("root_rank", ...)],
    "broadcast_optimizer_state": [("optimizer", ...), ("root_rank", ...), ("model", None)],
    "broadcast_object": [("obj", ...), ("root_rank", 0), ("name", None), ("process_set", PS)],
    "allgather_object": [("obj", ...), ("name", None), ("process_set", PS)],
    "init": [("comm", None), ("process_sets", None)],
    "start_timeline": [("file_path", ...), ("mark_cycles", False)],
    "DistributedOptimizer": [
        ("optimizer", ...), ("named_parameters", None), ("compression", hvd.Compression.none),
        ("backward_passes_per_step", 1), ("op", hvd.Average), ("gradient_predivide_factor", 1.0), ("num_groups", 0),
        ("groups", None), ("sparse_as_dense", False), ("process_set", PS),
    ],
}  # fmt: skip

NO_ARGUMENTS = [
    "shutdown", "is_initialized", "stop_timeline", "size", "local_size", "cross_size", "rank", "local_rank",
    "cross_rank", "mpi_threads_supported", "mpi_enabled", "mpi_built", "gloo_enabled", "gloo_built", "nccl_built",
    "ddl_built", "ccl_built", "cuda_built", "rocm_built",
]  # fmt: skip

OTHERS = [
    "Compression", "ProcessSet", "global_process_set", "add_process_set", "remove_process_set", "Average", "Sum",
    "Adasum", "Min", "Max", "Product", "HorovodInternalError",
]  # fmt: skip


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    """A world of size 1."""
    hvd.init()
    yield
    hvd.shutdown()


@pytest.mark.parametrize("name", SIGNATURES)
def test_signature(name: str) -> None:
    found = [
        (p.name, ... if p.default is inspect.Parameter.empty else p.default)
        for p in inspect.signature(getattr(hvd, name)).parameters.values()
    ]
    assert found == SIGNATURES[name]


@pytest.mark.parametrize("name", NO_ARGUMENTS)
def test_calls_without_arguments(name: str) -> None:
    assert not inspect.signature(getattr(hvd, name)).parameters


def test_exported_names() -> None:
    assert sorted(hvd.__all__) == sorted([*SIGNATURES, *NO_ARGUMENTS, *OTHERS])
    assert all(hasattr(hvd, name) for name in hvd.__all__)
    assert [hvd.Average, hvd.Sum, hvd.Adasum, hvd.Min, hvd.Max, hvd.Product] == list(range(6))


def test_names_that_other_code_imports() -> None:
    assert {"_basics", "handle_average_backwards_compatibility", "is_homogeneous"} <= set(vars(mpi_ops))
    assert set(SIGNATURES) - set(vars(mpi_ops)) <= {
        "DistributedOptimizer", "broadcast_parameters", "broadcast_optimizer_state", "broadcast_object",
        "allgather_object",
    }  # fmt: skip
    assert issubclass(hvd.Compression.fp16, compression.Compressor)
    assert functions.broadcast_object is hvd.broadcast_object
    assert optimizer.DistributedOptimizer is hvd.DistributedOptimizer


def wrapped(**options: object) -> object:
    w = torch.nn.Parameter(torch.zeros(2))
    return hvd.DistributedOptimizer(torch.optim.SGD([w], lr=0.1), **options)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"gradient_predivide_factor": 2.0, "op": hvd.Sum}, "predivide"),
        ({"backward_passes_per_step": 0}, "backward_passes_per_step"),
        ({"backward_passes_per_step": 1.5}, "backward_passes_per_step must be an integer > 0, not 1.5"),
        ({"compression": "fp16"}, "compression='fp16' is no compressor: use hvd.Compression"),
        ({"gradient_predivide_factor": "2"}, "gradient_predivide_factor must be a number above 0, not '2'"),
        ({"named_parameters": [torch.zeros(1)]}, "tuples"),
        ({"named_parameters": [("a", torch.zeros(1)), ("a", torch.zeros(2))]}, "duplicates: a"),
        ({"named_parameters": []}, "group 0, position 0, shape"),
        ({"groups": 0}, "groups"),
        ({"groups": -1}, "groups"),
        ({"groups": "text"}, "groups"),
        ({"groups": [["text"]]}, r"torch.Tensor"),
    ],
)
def test_contradicting_arguments(options: dict[str, object], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        wrapped(**options)


@pytest.mark.parametrize("name", ["SyncBatchNorm", "elastic"])
def test_what_is_not_there_yet_says_so(name: str) -> None:
    assert not hasattr(hvd, name)
    with pytest.raises(AttributeError, match=rf"has no attribute '{name}': .* not supported yet .* docs/roadmap\.md"):
        getattr(hvd, name)
    with pytest.raises(ModuleNotFoundError, match=r"elastic training is not supported yet"):
        importlib.import_module("horovod.torch.elastic")
    assert importlib.util.find_spec("horovod.torch.elastic") is None


FORMS = ("", "_async")
SINGLE = [
    f"{name}{form}" for name in ("allreduce", "allreduce_", "allgather", "alltoall", "reducescatter") for form in FORMS
]
SINGLE = [name for name in SINGLE if name != "allreduce__async"] + ["allreduce_async_", "broadcast", "broadcast_async_"]
GROUPED = [f"grouped_{name}{form}" for name in ("allreduce", "allgather", "reducescatter") for form in FORMS]


def _call(name: str, tensor: object, **options: object) -> object:
    argument = [torch.ones(2), tensor] if name.startswith("grouped") else tensor
    more = {"root_rank": 0} if name.startswith("broadcast") else {}
    return getattr(hvd, name)(argument, name="n", **more, **options)


@pytest.mark.parametrize("wrong", [[1, 2], np.ones(2), None, 1.0], ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("name", [*SINGLE, *GROUPED])
def test_what_is_no_tensor_is_named(name: str, wrong: object) -> None:
    word = name.removeprefix("grouped_").removesuffix("_").removesuffix("_async").removesuffix("_")
    text = rf"^{word}\.n takes a torch\.Tensor, got {type(wrong).__name__}\.$"
    with pytest.raises(TypeError, match=text):
        _call(name, wrong)
    if "compression" in inspect.signature(getattr(hvd, name)).parameters:
        with pytest.raises(TypeError, match=text):
            _call(name, wrong, compression=hvd.Compression.fp16)
        with pytest.raises(ValueError, match=rf"^{word}\.n: compression='fp16' is no compressor"):
            _call(name, torch.ones(2), compression="fp16")


@pytest.mark.parametrize("name", GROUPED)
def test_a_group_may_be_empty_but_must_be_one(name: str) -> None:
    empty = getattr(hvd, name)([])
    assert list(hvd.synchronize(empty) if name.endswith("async") else empty) == []
    with pytest.raises(TypeError, match=r"takes a list of torch\.Tensor, got NoneType"):
        getattr(hvd, name)(None)


@pytest.mark.parametrize("factor", ["prescale_factor", "postscale_factor"])
@pytest.mark.parametrize("name", [name for name in [*SINGLE, *GROUPED] if "reduce" in name])
def test_factors_must_be_numbers_and_finite_for_integers(name: str, factor: str) -> None:
    for wrong in ("x", None, [1], float("nan")):
        with pytest.raises(
            ValueError, match=r"reduce(scatter)?\.n: prescale_factor and postscale_factor must be numbers"
        ):
            _call(name, torch.ones(2), **{factor: wrong})
    with pytest.raises(ValueError, match=r"must be finite for tensors of torch\.int32"):
        _call(name, torch.ones(2, dtype=torch.int32), **{factor: float("inf")})


def test_what_is_no_sparse_tensor_or_no_process_set() -> None:
    with pytest.raises(TypeError, match=r"takes a sparse torch\.Tensor, got list"):
        hvd.sparse_allreduce_async([1], None, hvd.Sum)  # type: ignore[arg-type]
    for name in (*SINGLE, *GROUPED):
        with pytest.raises(TypeError, match="process_set is 'x', which is not registered"):
            _call(name, torch.ones(2), process_set="x")


def test_a_parameter_belongs_to_one_group() -> None:
    w = torch.nn.Parameter(torch.zeros(2))
    with pytest.raises(ValueError, match="only appear once"):
        hvd.DistributedOptimizer(torch.optim.SGD([w], lr=0.1), groups=[[w], [w]])


def test_num_groups_is_deprecated() -> None:
    with pytest.warns(DeprecationWarning, match="num_groups"):
        wrapped(num_groups=1)


def test_wrapping_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="already"):
        hvd.DistributedOptimizer(wrapped())


def test_one_rank_has_no_hooks() -> None:
    w = torch.nn.Parameter(torch.zeros(2))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([w], lr=1.0))
    for _ in range(3):
        w.sum().backward()
    optimizer.step()
    assert torch.equal(w.detach(), torch.full((2,), -3.0))
    assert type(optimizer).__module__ == "horovod.torch.optimizer"
    assert not optimizer._hooks


def test_handles_count_every_operation() -> None:
    first = hvd.allreduce_async(torch.ones(1))
    with pytest.raises(ValueError, match="split"):
        hvd.alltoall_async(torch.ones(1), [5])
    hvd.barrier()
    assert hvd.allreduce_async(torch.ones(1)) == first + 3


@pytest.mark.parametrize("op", [hvd.Sum, hvd.Average, hvd.Min, hvd.Max, hvd.Product])
def test_gradcheck_alone(op: int) -> None:
    x = torch.arange(1, 7, dtype=torch.float64).reshape(2, 3).requires_grad_()
    assert torch.autograd.gradcheck(lambda t: hvd.allreduce(t * t, op=op), (x,))
    assert torch.autograd.gradgradcheck(lambda t: hvd.allreduce(t * t, op=op), (x,))


def test_gradchecks_of_the_other_operations_alone() -> None:
    x = torch.arange(1, 7, dtype=torch.float64).reshape(2, 3).requires_grad_()
    for call in [
        hvd.allgather, lambda t: hvd.broadcast(t, 0), hvd.alltoall, hvd.reducescatter,
        lambda t: hvd.alltoall(t, [1])[0], lambda t: torch.cat(hvd.grouped_allreduce([t, t * 2])),
        lambda t: torch.cat(hvd.grouped_allgather([t, t * 2])),
        lambda t: torch.cat(hvd.grouped_reducescatter([t, t * 2], op=hvd.Sum, prescale_factor=3.0)),
    ]:  # fmt: skip
        assert torch.autograd.gradcheck(lambda t, call=call: call(t * t), (x,))
