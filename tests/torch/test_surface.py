"""Names and signatures of the public surface, and the refusals that need no second rank."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator

import horovod.torch as hvd
import numpy as np
import pytest
import torch
from horovod.common import basics, exceptions
from horovod.torch import compression, functions, mpi_ops, optimizer

from tests.torch import surface


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    """A world of size 1."""
    hvd.init()
    yield
    hvd.shutdown()


def _default(value: object) -> str:
    known = {id(hvd.global_process_set): "PS", id(hvd.Compression.none): "none"}
    return known.get(id(value), repr(value))


def _shown(called: object) -> list[str]:
    """Arguments as the catalogue writes them: defaults, but no types."""
    kinds = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    return [
        kinds.get(p.kind, "") + p.name + ("" if p.default is inspect.Parameter.empty else f"={_default(p.default)}")
        for p in inspect.signature(called).parameters.values()  # type: ignore[arg-type]
    ]


def _listed(module: str, name: str) -> list[str]:
    texts = surface.SURFACE[module][name], surface.MORE.get(name, "")
    return [text.replace("=Average", "=0") for part in texts if part for text in part.split(", ")]


@pytest.mark.parametrize(
    ("module", "name"), [(module, name) for module, names in surface.SURFACE.items() for name in names]
)
def test_signature(module: str, name: str) -> None:
    assert _shown(getattr(importlib.import_module(module), name)) == _listed(module, name)


def test_what_is_added_can_be_left_out() -> None:
    assert all("=" in text for added in surface.MORE.values() if added for text in added.split(", "))


def test_exported_names() -> None:
    module = "horovod.torch"
    assert sorted(hvd.__all__) == sorted([*surface.SURFACE[module], *surface.NAMES[module]])
    assert {name: getattr(hvd, name) for name in surface.CONSTANTS} == surface.CONSTANTS
    for module, names in surface.SURFACE.items():
        loaded = importlib.import_module(module)
        assert {name for name in names if not name.startswith("_")} <= set(loaded.__all__), module


def test_names_that_other_code_imports() -> None:
    assert isinstance(mpi_ops._basics, basics.HorovodBasics)
    assert mpi_ops._basics._get_process_set_ids_and_ranks() == {0: [0]}
    assert issubclass(hvd.Compression.fp16, compression.Compressor)
    for name in surface.SURFACE["horovod.torch"]:
        home = getattr(mpi_ops, name, getattr(functions, name, None)) or getattr(optimizer, name, None)
        assert home is None or home is getattr(hvd, name)


def test_error_classes() -> None:
    assert issubclass(exceptions.HorovodInternalError, RuntimeError)
    assert issubclass(exceptions.HostsUpdatedInterrupt, RuntimeError)
    assert issubclass(exceptions.HorovodVersionMismatchError, ImportError)
    assert exceptions.HostsUpdatedInterrupt(True).skip_sync
    error = exceptions.HorovodVersionMismatchError("torch", "1", "2")
    assert (error.name, error.version, error.installed_version) == ("torch", "1", "2")


def test_results_have_horovods_types() -> None:
    x = torch.ones(2, 3)
    assert isinstance(hvd.allreduce_async(x), int)
    assert isinstance(hvd.grouped_allreduce([x]), list)
    assert isinstance(hvd.grouped_allreduce_([x]), tuple)
    assert isinstance(hvd.grouped_allgather([x]), tuple)
    assert isinstance(hvd.grouped_reducescatter([x]), list)
    assert isinstance(hvd.alltoall(x), torch.Tensor)
    received = hvd.alltoall(x, [2])[1]
    assert (received.dtype, received.tolist()) == (torch.int32, [2])
    assert len(hvd.synchronize(hvd.alltoall_async(x))) == 2
    assert callable(hvd.sparse_allreduce_async(x.to_sparse(), "s", hvd.Sum))
    assert hvd.barrier() is None
    assert hvd.join() == 0
    assert str(hvd.ProcessSet([1, 0])) == "ProcessSet(process_set_id=None, ranks=[0, 1], mpi_comm=None)"
    assert type(hvd.nccl_built()) is int


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


def test_what_is_wrong_with_names_is_said() -> None:
    """S16: positions and shapes of what has no name, and what a generator that was used before has to do with it."""
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match=r"were not named.*: group 0, position 3, shape \[1\]\."):
        hvd.DistributedOptimizer(optimizer, list(model.named_parameters())[:3])
    names = model.named_parameters()
    hvd.DistributedOptimizer(optimizer, names)
    with pytest.raises(ValueError, match=r"position 0, shape \[3, 2\].*call model\.named_parameters\(\) again"):
        hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), names)
    tied = [("a", model[0].weight), ("b", model[0].weight)]
    assert len(hvd.DistributedOptimizer(torch.optim.SGD([model[0].weight], lr=0.1), tied)._parameter_names) == 1


def test_what_is_not_there_is_missed_as_usual() -> None:
    assert not hasattr(hvd, "nonsense")
    with pytest.raises(AttributeError, match=r"^module 'horovod\.torch' has no attribute 'nonsense'$"):
        _ = hvd.nonsense  # type: ignore[attr-defined]


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
