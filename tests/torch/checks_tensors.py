"""Dtypes and kinds of tensors: whatever torch can hold is reduced right, or refused with advice."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import horovod.torch as hvd
import pytest
import torch
from horovod.torch.layouts import copy_dense
from horovod.torch.scatter_ops import rows_of

Call = Callable[..., Any]
COMPLEX = [torch.complex64, torch.complex128]


def ranks() -> range:
    return range(hvd.size())


def mine(rank: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Small integers that differ by rank and place; complex ones have other imaginary parts."""
    real = ((torch.arange(torch.Size(shape).numel()) * 3 + rank * 5) % 7).reshape(shape)
    return torch.complex(real.double(), 2 * real.double() - rank).to(dtype) if dtype.is_complex else real.to(dtype)


def total(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    exact = torch.complex128 if dtype.is_complex else torch.int64
    return torch.stack([mine(r, shape, exact) for r in ranks()]).sum(0).to(dtype)


def uint16(values: torch.Tensor) -> torch.Tensor:
    return values.to(torch.uint16)


# ---- dtypes


def check_uint16() -> None:
    x = uint16(torch.tensor([1, 40_000 // hvd.size(), 0]))
    assert hvd.allreduce(x, op=hvd.Sum).tolist() == [hvd.size(), 40_000 // hvd.size() * hvd.size(), 0]
    assert hvd.allreduce(uint16(torch.tensor([hvd.rank(), 60_000])), op=hvd.Max).tolist() == [hvd.size() - 1, 60_000]
    assert hvd.allreduce(uint16(torch.tensor([6])), op=hvd.Average).tolist() == [6]
    assert hvd.allreduce_(x, op=hvd.Min) is x
    assert hvd.allgather(uint16(torch.tensor([hvd.rank()]))).tolist() == list(ranks())
    assert hvd.broadcast(uint16(torch.tensor([50_000 + hvd.rank()])), 0).tolist() == [50_000]
    assert hvd.alltoall(uint16(torch.arange(hvd.size()))).tolist() == [hvd.rank()] * hvd.size()
    assert hvd.reducescatter(uint16(torch.arange(hvd.size())), op=hvd.Sum).tolist() == [hvd.rank() * hvd.size()]


def check_half_precision_of_odd_sizes() -> None:
    """S10: averages of 1, 2, 3, … elements, alone and together, and what lies behind is untouched."""
    mean = sum(r + 1 for r in ranks()) / hvd.size()
    for dtype in (torch.float16, torch.bfloat16):
        guarded = [torch.full((n + 8,), 77.0, dtype=dtype) for n in (1, 2, 3, 7, 1023, 1025)]
        for group in (False, True):
            views = [g[:-8].fill_(hvd.rank() + 1) for g in guarded]
            if group:
                hvd.grouped_allreduce_(views)
            else:
                for view in views:
                    hvd.allreduce_(view)
            assert all(torch.all(view == mean) for view in views)
            assert all(torch.all(g[-8:] == 77) for g in guarded)


def check_half_precision_does_not_overflow() -> None:
    """P30: the average of large and of tiny halves is what it is."""
    for group in (False, True):
        for value in (30_000.0, 6e-8):
            x = torch.full((5,), value, dtype=torch.float16)
            got = hvd.grouped_allreduce([x, x])[1] if group else hvd.allreduce(x)
            assert torch.equal(got, x), (value, got)


def check_booleans() -> None:
    """Sum and Max say whether any rank has it, Product and Min whether all have; an average is refused."""
    x = torch.tensor([hvd.rank() == 0, True, False, hvd.rank() >= 0])
    some, every = [True, True, False, True], [hvd.size() == 1, True, False, True]
    for op, wanted in [(hvd.Sum, some), (hvd.Max, some), (hvd.Product, every), (hvd.Min, every)]:
        assert hvd.allreduce(x, op=op).tolist() == wanted
        assert hvd.grouped_allreduce([x, x[:2]], op=op)[1].tolist() == wanted[:2]
        in_place = x.clone()
        assert hvd.allreduce_(in_place, op=op) is in_place
        assert in_place.tolist() == wanted
    everywhere = torch.tensor([hvd.rank() == r for r in ranks()])
    assert hvd.reducescatter(everywhere, op=hvd.Sum).tolist() == [True]
    for call in (hvd.allreduce, hvd.allreduce_, hvd.reducescatter):
        with pytest.raises(ValueError, match="booleans have no average; use op=Sum"):
            call(x)


def check_complex_numbers() -> None:
    for dtype in COMPLEX:
        for shape in [(), (0,), (3,), (4, 5), (1025,)]:
            x = mine(hvd.rank(), shape, dtype)
            assert torch.equal(hvd.allreduce(x, op=hvd.Sum), total(shape, dtype))
            assert torch.allclose(hvd.allreduce(x), total(shape, dtype) / hvd.size())
            assert hvd.allreduce_(x, op=hvd.Sum) is x
            assert torch.equal(x, total(shape, dtype))
        x = mine(hvd.rank(), (4, 3), dtype)
        assert torch.equal(hvd.allreduce(x.conj(), op=hvd.Sum), total((4, 3), dtype).conj())
        assert torch.equal(hvd.allreduce(x.mT, op=hvd.Sum), total((4, 3), dtype).mT)
        conjugated = x.clone()
        hvd.allreduce_(conjugated.conj(), op=hvd.Sum)
        assert torch.equal(conjugated, total((4, 3), dtype))
        pair = hvd.grouped_allreduce([x, x.real.clone()], op=hvd.Sum, prescale_factor=2.0)
        assert torch.equal(pair[0], total((4, 3), dtype) * 2)
        assert torch.equal(pair[1], total((4, 3), dtype).real * 2)
        assert hvd.allreduce(x, compression=hvd.Compression.fp16).dtype is dtype


def check_complex_numbers_in_other_operations() -> None:
    for dtype in COMPLEX:
        shape = (hvd.size() + 1, 2)
        x = mine(hvd.rank(), shape, dtype)
        assert torch.equal(hvd.allgather(x), torch.cat([mine(r, shape, dtype) for r in ranks()]))
        assert torch.equal(
            hvd.allgather(x[:, 0].conj()), torch.cat([mine(r, shape, dtype)[:, 0].conj() for r in ranks()])
        )
        assert torch.equal(hvd.broadcast(x, hvd.size() - 1), mine(hvd.size() - 1, shape, dtype))
        first, count = rows_of(shape[0], hvd.size(), hvd.rank())
        assert torch.equal(hvd.reducescatter(x, op=hvd.Sum), total(shape, dtype)[first : first + count])
        sent = hvd.alltoall(x[: hvd.size()])
        assert torch.equal(sent, torch.stack([mine(r, shape, dtype)[hvd.rank()] for r in ranks()]))


def check_complex_numbers_have_no_order() -> None:
    x = torch.ones(3, dtype=torch.complex64)
    for op, word in [(hvd.Min, "Min"), (hvd.Max, "Max"), (hvd.Product, "Product"), (hvd.Adasum, "Adasum")]:
        for call in (hvd.allreduce, hvd.allreduce_):
            with pytest.raises(ValueError, match=f"complex tensors can be summed and averaged; they have no {word}"):
                call(x, op=op)
    assert torch.equal(hvd.allreduce(x), x)


def check_complex_parameters_train() -> None:
    w = torch.nn.Parameter(torch.zeros(3, dtype=torch.complex64))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([w], lr=1.0))
    for _ in range(2):
        optimizer.zero_grad()
        (w * (hvd.rank() + 1j)).real.sum().backward()
        optimizer.step()
    mean = sum(r - 1j for r in ranks()) / hvd.size()
    assert torch.allclose(w.detach(), torch.full((3,), -2 * mean, dtype=torch.complex64))


def check_8_bit_floats_are_refused_with_advice() -> None:
    dtypes = [getattr(torch, name) for name in ("float8_e4m3fn", "float8_e5m2") if hasattr(torch, name)]
    assert dtypes
    calls: list[Call] = [
        hvd.allreduce, hvd.allreduce_, hvd.allgather, lambda t: hvd.broadcast(t, 0), hvd.alltoall, hvd.reducescatter,
        lambda t: hvd.grouped_allreduce([t]), lambda t: hvd.grouped_allgather([t]),
    ]  # fmt: skip
    for dtype in dtypes:
        x = torch.full((hvd.size(),), hvd.rank() + 1.0).to(dtype)
        for call in calls:
            with pytest.raises(ValueError, match=r"can't be sent\. 8-bit floats .* tensor\.view\(torch\.uint8\)"):
                call(x)
        copied = hvd.allgather(x.view(torch.uint8)).view(dtype).float()
        assert copied.tolist() == [float(r + 1) for r in ranks() for _ in ranks()]


# ---- kinds of tensors


def _kinds() -> dict[str, Callable[[torch.Tensor], torch.Tensor]]:
    """Ways to hold the values of a (2, 4, 3, 5) tensor."""

    def with_gaps(x: torch.Tensor) -> torch.Tensor:
        holder = torch.full((4, 4, 3, 10), 99.0, dtype=x.dtype)
        holder[::2, :, :, ::2] = x
        return holder[::2, :, :, ::2]

    return {
        "rows": lambda x: x,
        "transposed": lambda x: x.permute(3, 1, 2, 0).contiguous().permute(3, 1, 2, 0),
        "channels last": lambda x: x.to(memory_format=torch.channels_last),
        "with gaps": with_gaps,
        "offset": lambda x: torch.cat([x.new_zeros(3), x.flatten()])[3:].view(x.shape),
        "negated view": lambda x: torch.complex(x.new_zeros(x.shape), -x).conj().imag,
        "requires grad": lambda x: x.clone().requires_grad_(),
        "parameter": torch.nn.Parameter,
    }


def check_all_kinds_meet_each_other() -> None:
    """S06, S07: any strides, other ones on each rank; strides of the results are those of the inputs."""
    shape = (2, 4, 3, 5)
    kinds = list(_kinds().items())
    for turn in range(len(kinds)):
        name, make = kinds[(turn + hvd.rank()) % len(kinds)]
        x = make(mine(hvd.rank(), shape, torch.float32))
        got = hvd.allreduce(x, op=hvd.Sum, name=f"kinds.{turn}")
        assert torch.equal(got, total(shape, torch.float32)), name
        assert got.requires_grad == x.requires_grad
        if name in ("rows", "transposed", "channels last"):
            assert got.stride() == x.stride(), name
        in_place = x.detach() if x.requires_grad else x
        before, address, strides = in_place.clone(), x.data_ptr(), x.stride()
        assert hvd.allreduce_(in_place, op=hvd.Sum, name=f"kinds.in_place.{turn}") is in_place
        assert torch.equal(x, total(shape, torch.float32)), name
        assert (x.data_ptr(), x.stride()) == (address, strides)
        with torch.no_grad():
            in_place.copy_(before)
        assert torch.equal(hvd.broadcast(x, 0, name=f"kinds.root.{turn}"), mine(0, shape, torch.float32)), name
        gathered = hvd.allgather(x, name=f"kinds.gathered.{turn}")
        assert torch.equal(gathered, torch.cat([mine(r, shape, torch.float32) for r in ranks()])), name


def check_views_of_one_storage() -> None:
    """S52: in place means the same storage, and of a view only the view."""
    base = torch.zeros(6, 4)
    base += hvd.rank()
    handles = [hvd.allreduce_async_(view, op=hvd.Sum) for view in (base[0], base[1:3], base[3:, 1:3])]
    for handle in handles:
        hvd.synchronize(handle)
    wanted = torch.full((6, 4), float(hvd.rank()))
    wanted[:3] = wanted[3:, 1:3] = sum(ranks())
    assert torch.equal(base, wanted)
    x = torch.ones(3)
    assert hvd.allreduce(x, op=hvd.Sum) is not x
    assert torch.equal(x, torch.ones(3))


def check_elements_that_share_memory_are_not_written() -> None:
    """Unfolded views overlap; interleaved ones only look so, and are written in place."""
    x = torch.arange(6.0)
    with pytest.raises(ValueError, match="share memory"):
        hvd.allreduce_(x.unfold(0, 3, 1), op=hvd.Sum)
    with pytest.raises(ValueError, match="share memory"):
        hvd.broadcast_(x.as_strided((2, 2), (1, 1)), 0)
    assert torch.equal(hvd.allreduce(x.unfold(0, 3, 1), op=hvd.Sum), x.unfold(0, 3, 1) * hvd.size())
    y = torch.arange(8.0)
    hvd.allreduce_(y.as_strided((2, 3), (3, 2)), op=hvd.Sum)
    written = torch.tensor([0, 2, 3, 4, 5, 7])
    assert torch.equal(y[written], written * float(hvd.size()))
    assert y[[1, 6]].tolist() == [1.0, 6.0]


def check_a_group_that_overlaps_itself_is_refused() -> None:
    x = torch.ones(4)
    for group in ([x, x], [x[:3], x[2:]], [x, torch.ones(2), x[1:2]]):
        with pytest.raises(ValueError, match="share memory"):
            hvd.grouped_allreduce_(group, op=hvd.Sum)
    assert torch.equal(x, torch.ones(4))
    halves = hvd.grouped_allreduce_([x[:2], x[2:]], op=hvd.Sum)
    assert torch.equal(torch.cat(halves), torch.full((4,), float(hvd.size())))
    assert len(hvd.grouped_allreduce([x, x])) == 2


def check_inference_tensors() -> None:
    with torch.inference_mode():
        x = torch.full((3,), float(hvd.rank()))
        for _ in range(2):
            assert torch.equal(hvd.allreduce(x, op=hvd.Sum, name="inference"), torch.full((3,), float(sum(ranks()))))
            hvd.allreduce_(x.clone(), op=hvd.Sum, name="inference.in_place")
        hvd.broadcast_(x, hvd.size() - 1)
        assert torch.equal(x, torch.full((3,), hvd.size() - 1.0))
        assert torch.equal(hvd.allgather(x[:1]), torch.full((hvd.size(),), hvd.size() - 1.0))
    for form in (hvd.allreduce_, lambda t, **kw: hvd.synchronize(hvd.allreduce_async_(t, **kw))):
        for _ in range(2):
            with torch.inference_mode():
                x = torch.full((3,), float(hvd.rank()))
            assert torch.equal(form(x, op=hvd.Sum, name="outside"), torch.full((3,), float(sum(ranks()))))
    (done,) = hvd.grouped_allreduce_([x], op=hvd.Max)
    assert done is x


def check_sparse_tensors() -> None:
    x = torch.sparse_coo_tensor([[0, 2, 2]], [1.0, 2.0, 3.0], (4,), check_invariants=False)
    for op, factor in [(hvd.Sum, hvd.size()), (hvd.Average, 1)]:
        reduced = hvd.sparse_allreduce_async(x, f"coo.{op}", op)()
        assert reduced.layout is torch.sparse_coo
        assert torch.equal(reduced.to_dense(), torch.tensor([1.0, 0.0, 5.0, 0.0]) * factor)
    empty = torch.sparse_coo_tensor(
        torch.zeros((2, 0), dtype=torch.int64), torch.zeros(0), (3, 2), check_invariants=False
    )
    assert torch.equal(hvd.sparse_allreduce_async(empty, "empty", hvd.Sum)().to_dense(), torch.zeros(3, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that compressed rows are new
        rows = x.to_dense().view(2, 2).to_sparse_csr()
    for layout in (x, rows):
        for call in (hvd.allreduce, hvd.allreduce_, hvd.allgather, lambda t: hvd.broadcast(t, 0), hvd.alltoall):
            with pytest.raises(ValueError, match="use sparse_allreduce_async"):
                call(layout)


def check_sparse_duplicates_are_summed_before_they_travel() -> None:
    """P65: ten thousand look-ups of three rows send three rows."""
    where = torch.arange(10_000).remainder(3).add(1).unsqueeze(0)
    x = torch.sparse_coo_tensor(where, torch.ones(10_000, 8) * (hvd.rank() + 1), (1000, 8), check_invariants=False)
    reduced = hvd.sparse_allreduce_async(x, "duplicates", hvd.Average)()
    assert reduced._values().shape == (3 * hvd.size(), 8)
    counts = torch.bincount(where[0], minlength=1000).double()
    mean = sum(r + 1 for r in ranks()) / hvd.size()
    assert torch.equal(reduced.to_dense().double(), (counts * mean).unsqueeze(1).expand(1000, 8))


def check_tensors_around_the_limit_of_a_chunk() -> None:
    """S12: sizes around powers of two, alone and with many small ones, in place and not."""
    sizes = [n + d for n in (1 << 14, 1 << 18) for d in (-1, 0, 1)] + [3 << 18]
    tensors = [torch.full((n,), float(i + hvd.rank())) for i, n in enumerate(sizes)]
    wanted = [float(sum(i + r for r in ranks())) for i in range(len(sizes))]
    for tensor, value in zip(tensors, wanted, strict=True):
        kept = tensor[0].item()
        assert torch.all(hvd.allreduce(tensor, op=hvd.Sum) == value)
        assert torch.all(tensor == kept)
        assert torch.all(hvd.allreduce_(tensor.clone(), op=hvd.Sum) == value)
    small = [torch.full((3,), float(hvd.rank())) for _ in range(20)]
    mixed = hvd.grouped_allreduce([*tensors, *small], op=hvd.Sum)
    assert all(torch.all(t == v) for t, v in zip(mixed, [*wanted, *[float(sum(ranks()))] * 20], strict=True))


def check_gradients_without_bytes_of_their_own() -> None:
    """Zeros that take no memory, and subclasses that wrap others: what torch copies, or refuses to, is not read as bytes."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    target = torch.ones(100_000)
    copy_dense(target, torch._efficientzerotensor(100_000), target.nbytes)
    assert torch.all(target == 0)
    with pytest.raises(NotImplementedError):
        copy_dense(target, _Wrapper(torch.zeros(100_000)), target.nbytes)
    torch.set_num_threads(threads)


class _Wrapper(torch.Tensor):
    """Has a shape, and no memory."""

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)  # type: ignore[attr-defined]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise NotImplementedError
